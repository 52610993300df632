"""The evaluation of an order: figures in all modes, and what its judge chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from covey.shared.candidate_names import TREES
from covey.shared.numerics.figures import (
    Figures,
    answers,
    baseline_figures,
    figures_of,
    kind_of,
    or_diverged,
    weighted_mean,
)
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.companion import companion, companion_in
from covey.shared.strategies.base import EVALUATE, Strategy
from covey.shared.strategies.client_half import (
    LAST_MODEL,
    ClientState,
    DataSplit,
    Fold,
    Job,
    Local,
    Mixture,
    Report,
)
from covey.shared.strategies.part_local import PartLocal, of_whole, tuned
from covey.shared.wire.messages import Work
from covey.shared.work.at_hand import seen_by_methods
from covey.shared.work.candidates import BeforeHome, Candidate, Make, OfFold, last_values, made
from covey.shared.work.judge import Judgement, figures_with, fleet_of, forgotten, only_served
from covey.shared.work.order_settings import task_of


@runtime_checkable
class Measured(Protocol):
    """A `Local` whose data only its own training knows: it gives figures of test data, and not outputs."""

    def figures(self, mixture: Mixture) -> Figures:
        """Figures of a mixture of models on the test part."""


@dataclass(frozen=True)
class Judging:
    """What the judge on an agent needs besides the order."""

    folds: Iterable[Fold]
    others: Mapping[str, Make]
    budget_s: float | None
    clock: Callable[[], float]
    new: Callable[[], Vector | None]


def is_summed(work: Work) -> bool:
    """Whether the figures of an evaluation are the vector of a secure sum."""
    return work.phase == EVALUATE and bool(work.sizes)


def evaluated(
    strategy: Strategy[Any],
    job: Job,
    local: Local,
    client_state: ClientState,
    *,
    work: Work,
    judging: Judging | None,
) -> tuple[Report, ClientState]:
    """The report of an evaluation, and the client state after it."""
    if judging is None:
        return _figures(strategy, job, local, client_state, work=work), client_state
    return _judged(strategy, job, local, client_state=client_state, work=work, judging=judging)


def _figures(
    strategy: Strategy[Any], job: Job, local: Local, client_state: ClientState, *, work: Work
) -> Report:
    """Figures in the modes served, fine-tuned and own last, and those of the baseline."""
    evaluation = work.evaluation
    mixture = served_by(strategy, job, local, client_state)
    on_whole = of_whole(local)
    numbers: dict[str, Any] = {"server": measure(mixture, on_whole)}
    epochs = int(evaluation.get("tune_epochs", 0))
    if epochs > 0:
        numbers["tuned"] = measure(tuned(on_whole, mixture, epochs, job.split), on_whole)
    if LAST_MODEL in client_state:
        numbers["last"] = measure(((1.0, client_state[LAST_MODEL]),), on_whole)
    if numbers["server"]["n"] and not isinstance(on_whole, Measured):
        train, truth = local.targets("train"), local.targets("test")
        before, after = last_values(local, "train"), last_values(local, "test")
        last = None if before is None or after is None else (before, after)
        numbers["baseline"] = baseline_figures(train, truth, last)
    return Report({}, local.examples, numbers)


def _judged(
    strategy: Strategy[Any],
    job: Job,
    local: Local,
    *,
    client_state: ClientState,
    work: Work,
    judging: Judging,
) -> tuple[Report, ClientState]:
    """The same of the last evaluation, with what the agent answers with from then on."""
    mixture = served_by(strategy, job, local, client_state)
    on_whole = of_whole(local)
    if isinstance(on_whole, Measured) or work.task.get("anomalies") is not None:
        report = _figures(strategy, job, local, client_state, work=work)
        return replace(report, numbers=only_served(report.numbers)), client_state
    given = BeforeHome(
        mixture,
        task_of(work).outputs,
        split=job.split,
        new=judging.new,
        others=judging.others,
        companion=brought(job, work),
    )
    fleet, state = fleet_of(work.numbers), client_state
    known = Judgement.of_memory(client_state, mixture)
    candidates: Mapping[str, Candidate] = {}
    if known is None:
        report = _figures(strategy, job, local, client_state, work=work)
        known, candidates = Judgement.made(
            on_whole,
            given,
            judging.folds,
            plain(report.numbers),
            measure=str(work.task.get("measure") or ""),
            budget_s=judging.budget_s,
            clock=judging.clock,
        )
        if TREES in candidates:  # what people compare with
            alone = plain(figures_with(candidates, {TREES: 1.0}, on_whole))
            known = replace(known, figures={**known.figures, TREES: alone})
        state = {**forgotten(client_state), **known.to_memory()}
    choice = known.choice_after(work)
    if not candidates:
        candidates = made(on_whole, given, known.snapshots, choice.weights)
    return Report({}, local.examples, known.numbers(choice, candidates, fleet, on_whole)), state


def brought(job: Job, work: Work) -> OfFold | None:
    """The candidate that the companion of an order brings; None without one."""
    name = companion_in(work.evaluation)
    return companion(name).maker(job, task_of(work)) if name else None


def served_by(
    strategy: Strategy[Any], job: Job, local: Local, client_state: ClientState
) -> Mixture:
    """The mixture of whole models that the order of an evaluation serves the agent."""
    visible = seen_by_methods(client_state)
    if not isinstance(local, PartLocal):
        return strategy.personal(job, local, visible)
    return local.whole_mixture(strategy.personal(job, cast(Local, local), local.seen(visible)))


def measure(mixture: Mixture, local: Local) -> Figures:
    """Figures of a mixture of models on the test part; {"n": 0} without test data, no figures if it diverged."""
    if isinstance(local, Measured):
        return or_diverged(local.figures(mixture))
    truth = local.targets("test")
    if not len(truth):
        return {"n": 0}
    with np.errstate(all="ignore"):  # outputs that are not finite are reported as such
        return or_diverged(figures_of(truth, _outputs(mixture, local)))


def _outputs(mixture: Mixture, local: Local, split: DataSplit = "test") -> npt.NDArray[np.float64]:
    """The answers on a part of the data (n, ...)."""
    kind = kind_of(local.targets(split))
    return weighted_mean(
        [weight for weight, _ in mixture],
        [answers(local.predict(model, split), kind) for _, model in mixture],
    )


def plain(value: Any) -> Any:
    """Numpy's numbers and arrays as Python's own, which msgpack accepts."""
    match value:
        case np.ndarray() | np.generic():
            return value.tolist()
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value
