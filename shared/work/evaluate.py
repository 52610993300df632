"""The evaluation of an order: figures in all modes, and what its judge chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.figures import (
    Figures,
    answers,
    baseline_figures,
    figures_of,
    kind_of,
    or_diverged,
    weighted_mean,
)
from covey.shared.strategies.base import EVALUATE, Strategy
from covey.shared.strategies.client_half import (
    LAST_MODEL,
    ClientState,
    DataSplit,
    Job,
    Local,
    Mixture,
    Report,
)
from covey.shared.strategies.part_local import PartLocal, of_whole, tuned
from covey.shared.wire.messages import Work
from covey.shared.work.at_hand import seen_by_methods

Float64 = npt.NDArray[np.float64]


@runtime_checkable
class Measured(Protocol):
    """A `Local` whose data only its own training knows: it gives figures of test data, and not outputs."""

    def figures(self, mixture: Mixture) -> Figures:
        """Figures of a mixture of models on the test part."""


def is_summed(work: Work) -> bool:
    """Whether the figures of an evaluation are the vector of a secure sum."""
    return work.phase == EVALUATE and bool(work.sizes)


def evaluated(
    strategy: Strategy[Any], job: Job, local: Local, client_state: ClientState, *, work: Work
) -> tuple[Report, ClientState]:
    """The report of an evaluation, with figures in the modes served, fine-tuned and own last and those of the baseline, and the
    client state, which stays."""
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
    return Report({}, local.examples, numbers), client_state


def last_values(local: Local, split: DataSplit) -> Float64 | None:
    """Of forecasts the last value in each window, for each step (n, steps); None of other samples."""
    own: Callable[[DataSplit], Float64 | None] | None = getattr(local, "last_values", None)
    return None if own is None else own(split)


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


def _outputs(mixture: Mixture, local: Local, split: DataSplit = "test") -> Float64:
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
