"""The phases of a companion around any method: what a device adds to a sum, and what the coordinator makes of it.

The phases come before the last round, one for each step of the line and each message of trees, with all agents that are there.
An order brings what has grown so far for the cluster of the agent, so that devices keep nothing, a newcomer joins at once, and
the report of one that is missing is not missed. Each cluster has a companion of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from covey.extras.trees import ensemble as grow
from covey.extras.trees.design import Column, Design, Float64, Form, unsuited
from covey.extras.trees.ensemble import Ensemble, Rows
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.task import Task
from covey.shared.strategies.around import Around, Outer
from covey.shared.strategies.base import (
    ClientId,
    Expected,
    Facts,
    Order,
    Phase,
    Reports,
    Setup,
    Shown,
    Strategy,
    Sums,
    Term,
    Terms,
    View,
)
from covey.shared.strategies.client_half import ClientState, DataSplit, Job, Local, Mixture, Report
from covey.shared.strategies.facts import Serves
from covey.shared.strategies.part_local import of_whole
from covey.shared.strategies.phase_names import COMPANION

if TYPE_CHECKING:
    from covey.agent.data.local import DataOfLocal
    from covey.shared.scenario.scenario import Scenario

MESSAGE = "message"  # number of an order: which step of the line, or message of trees


@dataclass(frozen=True)
class Accompanied(Outer):
    """The state of a method with a companion."""

    seed: int
    last: int  # rounds before the last one
    round: int = 0  # rounds that are complete
    message: int = 0  # the next
    vectors: Mapping[str, Vector] = field(default_factory=dict)  # what has grown, by cluster
    losses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # before each message
    whole: tuple[str, ...] = ()  # clusters whose trees lower the loss no more


class Growing(Around[Accompanied]):
    """A method with a companion. A run has it in the place of the method itself."""

    form: Form
    trees: int  # messages of trees

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        own = self.method.facts
        numbers = {COMPANION: {MESSAGE: Expected(most=self.messages, whole=True)}}
        sealed = own.sealed and replace(own.sealed, apart=(*own.sealed.apart, COMPANION))
        phases = (*own.phases, COMPANION)
        return replace(own, phases=phases, numbers=own.numbers_with(numbers), sealed=sealed)

    @property
    def serves(self) -> Serves:  # type: ignore[override]
        return self.method.serves

    # with the companion: the coordinator

    @property
    def steps(self) -> int:
        """Messages of a line."""
        return grow.NEWTON if self.form.classes else 1

    @property
    def messages(self) -> int:
        return self.steps + self.trees

    def init(self, setup: Setup) -> Accompanied:
        return Accompanied(self.method.init(setup), setup.seed, setup.rounds - 1)

    def for_terms(self, state: Accompanied) -> Accompanied:
        return replace(state, inner=self.method.for_terms(state.inner), vectors={}, losses={})

    def plan(self, state: Accompanied, view: View) -> Phase:
        """A phase of the companion where it is due, else the method's."""
        # without the sums of its lines nothing can grow
        grown = state.message >= self.steps and state.vectors.keys() <= {*state.whole}
        if state.round != state.last or state.message >= self.messages or grown:
            return self.method.plan(state.inner, view)
        sizes = {COMPANION: grow.length(self.form, grows=state.message >= self.steps)}
        return Phase(COMPANION, "all", sizes, ends_round=False, may_be_empty=True)

    def order(self, state: Accompanied, phase: Phase, client: ClientId) -> Order:
        if phase.name != COMPANION:
            return self.method.order(state.inner, phase, client)
        cluster = self.assignment(state).get(client)
        return Order((_key(cluster),), {MESSAGE: state.message}, cluster)

    def model(self, state: Accompanied, key: str) -> Vector:
        if not key.startswith(COMPANION):
            return self.method.model(state.inner, key)
        # as integers: no codec rounds them, and their number is not that of the model
        return cast(Vector, self._grown(state, key.partition("-")[2]).vector.view(np.uint32))

    def _grown(self, state: Accompanied, cluster: str) -> Ensemble:
        if cluster in state.vectors:
            return Ensemble.of_vector(self.form, state.seed, state.vectors[cluster])
        return Ensemble.begun(self.form, state.seed)

    def terms(self, state: Accompanied, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name != COMPANION:
            return self.method.terms(state.inner, phase, client, report)
        assigned = self.assignment(state)
        if assigned and client not in assigned:
            return ()
        key = _key(assigned.get(client))
        return (Term(key, float(max(report.examples, 0)), COMPANION, base=""),)

    def fold(self, state: Accompanied, phase: Phase, sums: Sums, reports: Reports) -> Accompanied:
        if phase.name != COMPANION:
            inner = self.method.fold(state.inner, phase, sums, reports)
            return replace(state, inner=inner, round=state.round + phase.ends_round)
        vectors, losses, whole = dict(state.vectors), dict(state.losses), set(state.whole)
        for cluster in sorted({_cluster(one) for one in self.assignment(state).values()} or {"0"}):
            key = f"{COMPANION}-{cluster}"
            weight = sums.weight(key)
            if weight and cluster not in whole:
                zeros = np.zeros(phase.sizes[COMPANION], np.float32)
                added = sums.mean(key, zeros).astype(np.float64) * weight
                found = self._stepped(self._grown(state, cluster), added, state.message)
                if state.message >= self.steps:
                    losses[cluster] = grow.with_loss(losses.get(cluster, ()), added)
                    least, ends = grow.best(losses[cluster])
                    found = found.upto(least)
                    whole |= {cluster} if ends else set()
                vectors[cluster] = found.vector
        after = replace(state, message=state.message + 1, vectors=vectors, losses=losses)
        return replace(after, whole=tuple(sorted(whole)))

    def _stepped(self, ensemble: Ensemble, sums: Float64, message: int) -> Ensemble:
        return (grow.grown if message >= self.steps else grow.stepped)(ensemble, sums)

    def serve(self, state: Accompanied, client: ClientId) -> Order:
        own = super().serve(state, client)
        key = _key(self.assignment(state).get(client))
        return replace(own, models=(*own.models, key))

    def shown(self, state: Accompanied) -> Shown:
        shown = self.method.shown(state.inner)
        if not state.losses:
            return shown
        fell = {one: [round(seen[0], 4), round(min(seen), 4)] for one, seen in state.losses.items()}
        return replace(shown, notes={**shown.notes, COMPANION: fell})

    # an agent

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase != COMPANION:
            return self.method.work(job, local, client_state)
        ensemble = ensemble_of(self.form, job)
        if job.numbers[MESSAGE] == 0 and ensemble.vector.any():
            # the first sums depend on no model, and locks know the models of an order: those of all runs are the same
            raise PublicError(
                "the companion of the order has grown before its first message: a line begins at zero"
            )
        whole = of_whole(local)
        folds = [(fold.local, "test") for fold in job.folds]
        parts: list[Rows] = []
        for place, (one, split) in enumerate(folds or [(whole, "train")]):
            inputs, targets = cast("DataOfLocal", one).scaled(cast(DataSplit, split))
            number = place if folds else None
            parts.append(Rows(Design.of(inputs, self.form), targets, number))
        sums = grow.sums_of(ensemble, parts, grows=job.numbers[MESSAGE] >= self.steps)
        mean = (sums / max(whole.examples, 1)).astype(np.float32)
        return Report({COMPANION: mean}, examples=whole.examples), client_state

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        return self.method.personal(replace(job, models=job.models[:-1]), local, client_state)


def _cluster(cluster: int | None) -> str:
    return str(cluster or 0)


def _key(cluster: int | None) -> str:
    """Of what has grown for a cluster, in orders and sums."""
    return f"{COMPANION}-{_cluster(cluster)}"


def ensemble_of(form: Form, job: Job) -> Ensemble:
    """What the last model of an order brings. Raises PublicError if it is none."""
    try:
        words = np.ascontiguousarray(job.models[-1]).view(np.float32)
        ensemble = Ensemble.of_vector(form, job.seed, words)
    except (IndexError, ValueError):
        raise PublicError("the order has no companion of this task") from None
    if not np.isfinite(words).all():
        raise PublicError("the companion of the order holds numbers that are not finite")
    return ensemble


@dataclass(frozen=True)
class OfFleet:
    """A companion as a candidate of what a device uses."""

    ensemble: Ensemble
    fold: int | None  # of the device's samples that it has not seen; None: for use

    def answers(self, local: Local, split: DataSplit) -> Float64:
        data = cast("DataOfLocal", local)
        inputs, _ = data.scaled(split)
        found = self.ensemble.probabilities(Design.of(inputs, self.ensemble.form), self.fold)
        return found if self.ensemble.form.classes else data.unscaled(found).astype(np.float64)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        form = self.ensemble.form
        columns = [
            (one.start, one.words, -1 if one.flag is None else one.flag) for one in form.columns
        ]
        facts = np.array([self.ensemble.seed, form.width, form.classes], np.int64)
        name = np.frombuffer(b"trees", np.uint8)
        return {
            "of": name,
            "facts": facts,
            "columns": np.array(columns),
            "vector": self.ensemble.vector,
        }


@dataclass(frozen=True)
class Companion:
    """What the core knows of the extra: see `covey.shared.scenario.companion`."""

    trees: int  # messages

    def refuses(self, scenario: Scenario) -> str:
        privacy, seen = scenario.privacy, scenario.aggregation
        if why := unsuited(scenario.task):
            return why
        if scenario.rounds.mode == "buffered":
            return "buffered rounds have no moment before the last one; leave rounds.mode out"
        if scenario.rounds.stop is not None:
            return "rounds.stop may end a run before it has grown; leave one of them out"
        if scenario.wire.codec != "float32":
            return f"its sums travel as they are; leave wire.codec {scenario.wire.codec} out"
        if seen.average.rule != "mean" or seen.clips:
            return "it is made by sums alone; leave the rule and the clips of aggregation out"
        if privacy is not None and privacy.has_noise:
            return "its sums have no noise of privacy.client, local or signatures yet"
        return ""

    def around(self, method: Strategy[Any], task: Task) -> Strategy[Any]:
        return Growing(method=method, form=Form.of(task), trees=self.trees)

    def maker(self, job: Job, task: Task) -> Callable[[int | None], OfFleet]:
        ensemble = ensemble_of(Form.of(task), job)
        return lambda fold: OfFleet(ensemble, fold)

    def kept(self, arrays: Mapping[str, npt.NDArray[Any]]) -> OfFleet:
        seed, width, classes = arrays["facts"].tolist()
        rows = arrays["columns"].tolist()
        columns = tuple(
            Column(start, words, None if flag < 0 else flag) for start, words, flag in rows
        )
        form = Form(columns, width, classes)
        return OfFleet(Ensemble.of_vector(form, seed, arrays["vector"]), None)


LINEAR = Companion(trees=0)
TREES = Companion(trees=grow.MESSAGES)
