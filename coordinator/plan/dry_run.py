"""A dry run of a strategy: both of its halves, over a few made-up agents, with every phase priced.

The costs are read off the orders and the reports, and scaled to the real number of agents.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.coordinator.engine.cohort import cohort_size
from covey.coordinator.plan.prices import Prices
from covey.shared.numerics import kinship
from covey.shared.numerics.split import Mask
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    Contrast,
    DataSplit,
    GradientCorrection,
    Job,
    Order,
    Phase,
    Report,
    SampleIndices,
    Setup,
    TrainingResult,
    View,
)
from covey.shared.strategies.part_local import model_of, whole_models, with_own
from covey.shared.strategies.reading import folded, order_of_evaluation
from covey.shared.wire.messages import INITIAL

# -- A made-up agent, to drive a strategy dry: it trains in no time and needs no memory --------------------------------


EXAMPLES = 32  # training samples
NO_CORRECTION = GradientCorrection()


class ConstantClient:
    """Whatever it trains, its model is one number repeated; that number differs between agents.

    It is a `Local`, whose methods are documented there.

    Args:
        value: the number, from 1
        size: length of a model's vector
        outputs: classes, or 1 for regression
        features: numbers in one sample
        width: of what the last layer reads
    """

    def __init__(self, value: int, size: int, outputs: int, features: int, width: int = 1) -> None:
        self._value = value
        self._size = size
        self._outputs = outputs
        self._features = features
        self._width = width

    def __repr__(self) -> str:
        return f"ConstantClient({self._value})"

    @property
    def examples(self) -> int:
        return EXAMPLES

    def loss(self, model: Vector) -> float:
        if not model.size:
            return 0.0
        return abs(float(model[0]) - self._value)

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        return np.full(EXAMPLES, self.loss(model), np.float32)

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        return self._constant()

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        yield [np.arange(EXAMPLES)]

    def train(
        self,
        start: Vector,
        correction: GradientCorrection = NO_CORRECTION,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        weights: npt.NDArray[np.float32] | None = None,
        contrast: Contrast | None = None,
        trained: Mask | None = None,
        velocity: Vector | None = None,
        at_home: bool = False,
    ) -> TrainingResult:
        return TrainingResult(self._constant(), 1, 1.0)

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        return np.bincount([self._value % clusters] * EXAMPLES, minlength=clusters)

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        return np.zeros((EXAMPLES, self._outputs), np.float32)

    def inputs(self) -> npt.NDArray[np.float32]:
        return np.eye(EXAMPLES, self._features, dtype=np.float32) * self._value

    def features(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float64]:
        return np.full((EXAMPLES, self._width), float(self._value))

    def targets(self, split: DataSplit) -> npt.NDArray[Any]:
        return np.zeros(EXAMPLES, np.int64)

    def card(
        self, seed: int, client: str, min_cell: int, blocks: int | None = None
    ) -> kinship.Card:
        units = np.arange(EXAMPLES)
        labels = self.targets("train")
        classes = self._outputs if self._outputs > 1 else kinship.LEVELS
        pieces = [self.inputs()]
        return kinship.card(pieces, labels, classes, units, seed, client, min_cell, blocks)

    def _constant(self) -> Vector:
        """The model: a view of one number, which takes no memory."""
        return np.broadcast_to(np.float32(self._value), (self._size,))


# -- what one kind of phase costs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PhaseCost:
    """One kind of phase. Bytes are MQTT packets of one invited agent; values are float32 numbers before encoding."""

    name: str
    times: int  # in the whole run
    invited: int  # agents
    down_bytes: int
    up_bytes: int
    down_values: int
    up_values: int
    published_bytes: int  # by the coordinator, once per phase
    idle_bytes: int = 0  # down to all agents that were not invited, together
    ends_round: bool = True

    @property
    def total_down(self) -> int:
        """Bytes to all agents in all phases of this kind."""
        return self.times * ((self.invited * self.down_bytes) + self.idle_bytes)

    @property
    def total_up(self) -> int:
        """Bytes from all agents in all phases of this kind."""
        return self.times * self.invited * self.up_bytes

    @property
    def values(self) -> int:
        """Float32 numbers, both ways, in all phases of this kind."""
        of_one = self.down_values + self.up_values
        return self.times * self.invited * of_one


def merged(phases: Iterable[PhaseCost]) -> list[PhaseCost]:
    """The phases with equal ones counted as one kind, in the order of their first time."""
    times: dict[PhaseCost, int] = {}
    for phase in phases:
        kind = replace(phase, times=0)
        times[kind] = times.get(kind, 0) + phase.times
    return [replace(kind, times=count) for kind, count in times.items()]


DRY_AGENTS = 8
MIN_ROUNDS = 3
MAX_VALUES = 20_000_000  # numbers folded, after which the last round stands for the rest
MAX_PHASES = 50  # in one round, after which the strategy is taken to be stuck
EVALUATION = Phase(phase_names.EVALUATE, "all", ends_round=False)
EMPTY_REPORT = Report({}, EXAMPLES)  # without vectors


@dataclass(frozen=True)
class _Cohort:
    """Made-up agents that a phase invites, and how many real agents they stand for."""

    names: tuple[ClientId, ...]
    invited: int


class DryRun:
    """The rounds of a scenario over made-up agents.

    Args:
        scenario: what to run
        setup: the initial models; only their lengths matter
        agents: how many agents the real run has
    """

    def __init__(self, scenario: Scenario, setup: Setup, agents: int) -> None:
        rounds = scenario.rounds
        cohort = cohort_size(agents, rounds.participation, rounds.agents)
        # how many agents will drop out is unknown before the run
        over_select = 1.0 if rounds.over_select == "auto" else rounds.over_select
        drawn = math.ceil(cohort * over_select)
        made_up = min(agents, DRY_AGENTS)
        self.scenario = scenario
        self.setup = setup
        self.agents = agents
        self.strategy = scenario.strategy
        self.state: Any = self.strategy.init(setup)  # after the newest phase
        self.prices = Prices(scenario.wire, scenario.federation, setup)
        self.clients = tuple(f"agent-{index:04d}" for index in range(made_up))
        self.sample = min(agents, drawn)  # real agents that a round draws
        self._scale = agents / made_up  # real agents for each of the made-up ones
        self._client_states: dict[ClientId, ClientState] = {}  # empty before the first work
        self._owners: set[ClientId] = set()  # agents that have got what does not travel

    def __repr__(self) -> str:
        return f"DryRun({self.scenario.name!r}, agents={self.agents})"

    def run(self) -> Iterator[list[PhaseCost]]:
        """The phases of one round after another, until the rest of the rounds is known to be alike."""
        rounds = self.scenario.rounds.count
        values_folded = 0
        for number in range(rounds):
            if number >= MIN_ROUNDS and values_folded > MAX_VALUES:
                return
            phases = list(self._round(View(number, rounds, 0, self.clients)))
            for phase in phases:
                values_folded += min(phase.invited, DRY_AGENTS) * self.setup.layout.size
            yield phases

    def preparation(self) -> list[PhaseCost]:
        """The phase in which agents send statistics of their data, if the task asks for any."""
        if not self.scenario.task.asks_fleet_for:
            return []
        cost = PhaseCost(
            name=phase_names.MOMENTS,
            times=1,
            invited=self.agents,
            down_bytes=0,
            up_bytes=self.prices.report(EMPTY_REPORT, None),
            down_values=0,
            up_values=0,
            published_bytes=0,
            ends_round=False,
        )
        return [cost]

    def evaluation(self) -> PhaseCost:
        """The evaluations, at the end and every so often before, of the models as they are served now."""
        every = self.scenario.evaluation.every
        times = 1
        if every:
            before_the_end = range(every, self.scenario.rounds.count, every)
            times += len(before_the_end)
        orders = []
        for client in self.clients:
            fallback = self.scenario.evaluation.fallback
            order = order_of_evaluation(self.strategy, self.state, client, fallback=fallback)
            orders.append(with_own(order, self.setup, client, self._owners))
        reports = [EMPTY_REPORT] * len(orders)
        return replace(self._cost(EVALUATION, self.agents, orders, reports), times=times)

    def disk_bytes(self, phases: Sequence[PhaseCost]) -> int:
        """Reports of the largest phase, arriving and accepted; two checkpoints; models sent out and exported."""
        spool = 0
        outgoing = 0
        for phase in phases:
            accepted = 4 * phase.up_values  # decoded, in float32
            of_one = phase.up_bytes + accepted
            spool = max(spool, phase.invited * of_one)
            outgoing = max(outgoing, phase.published_bytes)
        checkpoint = _state_bytes(self.state, frozenset(self.clients), self._scale, set())
        exported = 0
        for model in whole_models(self.strategy, self.state, self.setup):
            exported += model.nbytes
        return spool + outgoing + 2 * checkpoint + exported

    # -- one round ---------------------------------------------------------------------------------------------

    def _round(self, view: View) -> Iterator[PhaseCost]:
        """Drive the phases of one round; yields the cost of each that invites agents."""
        sampled: dict[tuple[ClientId, ...], int] = {}  # cohorts that this round drew
        for _ in range(MAX_PHASES):
            phase = self.strategy.plan(self.state, view)
            cohort = self._cohort(phase, view)
            names = cohort.names
            # a later phase that names the drawn agents stands for as many real ones
            invited = sampled.get(names, cohort.invited)
            if phase.cohort == "sample":
                sampled[names] = invited
            orders = []
            for client in names:
                order = self.strategy.order(self.state, phase, client)
                orders.append(with_own(order, self.setup, client, self._owners))
            reports = []
            for client, order in zip(names, orders, strict=True):
                reports.append(self._work(phase, view, client, order))
            if names:
                yield self._cost(phase, invited, orders, reports)
            if not self.scenario.is_summed:
                self._owners.update(names)
            done = replace(phase, cohort=names)
            by_client = list(zip(names, reports, strict=True))
            self.state = folded(
                self.strategy, self.state, done, by_client, parameters=self.setup.layout.parameters
            )
            if phase.ends_round:
                return
        raise RuntimeError(f"{self.scenario.strategy.name}: no phase ends the round")

    def _cohort(self, phase: Phase, view: View) -> _Cohort:
        match phase.cohort:
            case "all":
                return _Cohort(self.clients, self.agents)
            case "sample":
                # the made-up agents take turns over the rounds, so that all of them train
                sample = self._reporters()
                count = min(sample, len(self.clients))
                start = view.round * count
                turn = itertools.cycle(self.clients)
                in_order = tuple(sorted(itertools.islice(turn, start, start + count)))
                return _Cohort(in_order, sample)
            case names:
                in_order = tuple(sorted(names))
                return _Cohort(in_order, round(len(names) * self._scale))

    def _reporters(self) -> int:
        """How many real agents report in the next round: a drawn cohort, or those of one buffer."""
        rounds = self.scenario.rounds
        if rounds.mode != "buffered":
            return self.sample
        if not self.strategy.buffer.is_ready(self.state):
            return self.sample
        return min(rounds.buffer, self.agents)

    def _work(self, phase: Phase, view: View, client: ClientId, order: Order) -> Report:
        """The client's half of the strategy, on constants."""
        setup = self.setup
        task = self.scenario.task
        models = [
            self.strategy.model(self.state, key) for key in order.models if key not in INITIAL
        ]
        job = Job(
            phase.name,
            view.round,
            client,
            setup.seed,
            tuple(models),
            order.numbers,
            order.cluster,
            setup.layout,
            setup.training,
            split=setup.split,
        )
        number = self.clients.index(client) + 1
        local = ConstantClient(
            number,
            setup.layout.size,
            task.outputs,
            math.prod(task.features),
            setup.layout.last_width,
        )
        report, after = self.strategy.work(job, local, self._client_states.get(client, {}))
        self._client_states[client] = after
        return report

    # -- costs -------------------------------------------------------------------------------------------------

    def _cost(
        self, phase: Phase, invited: int, orders: Sequence[Order], reports: Sequence[Report]
    ) -> PhaseCost:
        """The cost of a phase with these orders and reports, for `invited` real agents."""
        lengths: dict[str, int] = {}  # of each model that an order names
        for order in orders:
            for key in order.models:
                lengths[key] = model_of(self.strategy, self.state, key, self.setup).size
        prices = {}
        for key, length in lengths.items():
            prices[key] = self.prices.model(key, length)
        shared_bytes = 0  # models of clusters, published once for all their agents
        single_bytes = 0  # models for one agent alone
        for key, price in prices.items():
            if key.startswith("@"):
                single_bytes += price
            else:
                shared_bytes += price
        scaled_single_bytes = single_bytes * invited / len(orders)
        published_bytes = shared_bytes + round(scaled_single_bytes)
        idle_bytes = 0
        if shared_bytes:
            idle_bytes = self._idle_bytes(phase, invited)
        wire = self.scenario.wire
        down_bytes = [_total(order, prices) for order in orders]
        up_bytes = [self.prices.report(report, wire) for report in reports]
        down_values = [_total(order, lengths) for order in orders]
        up_values = [_values(report) for report in reports]
        return PhaseCost(
            name=phase.name,
            times=1,
            invited=invited,
            down_bytes=_mean(down_bytes),
            up_bytes=_mean(up_bytes),
            down_values=_mean(down_values),
            up_values=_mean(up_values),
            published_bytes=published_bytes,
            idle_bytes=idle_bytes,
            ends_round=phase.ends_round,
        )

    def _idle_bytes(self, phase: Phase, invited: int) -> int:
        """Bytes that the agents that are not invited receive, together: their cluster's model with `delivery: all`."""
        if self.scenario.wire.delivery != "all" or phase.name == EVALUATION.name:
            return 0
        of_one = self.prices.model("0", self.setup.layout.size)
        return (self.agents - invited) * of_one


def _total(order: Order, by_model: Mapping[str, int]) -> int:
    """The sum over the models that an order names."""
    return sum(by_model[key] for key in order.models)


def _values(report: Report) -> int:
    return sum(vector.size for vector in report.vectors.values())


def _mean(values: Sequence[int]) -> int:
    """The mean, rounded to an integer; 0 of nothing."""
    if not values:
        return 0
    return round(sum(values) / len(values))


def _state_bytes(value: Any, clients: frozenset[ClientId], scale: float, seen: set[int]) -> int:
    """Bytes of a state's arrays, each counted once; what is kept per client grows with the number of agents.

    Args:
        value: the state, or a part of it
        clients: the made-up agents
        scale: real agents for each of them
        seen: ids of the arrays that were counted
    """
    match value:
        case np.ndarray():
            if id(value) in seen:
                return 0
            seen.add(id(value))
            return value.nbytes
        case Mapping():
            total = _bytes_of_all(value.values(), clients, scale, seen)
            is_per_client = len(value) > 0 and clients.issuperset(value)
            if is_per_client:
                total = round(total * scale)
            return total
        case tuple() | list():
            return _bytes_of_all(value, clients, scale, seen)
    if not is_dataclass(value):
        return 0
    parts = [getattr(value, field.name) for field in fields(value)]
    return _bytes_of_all(parts, clients, scale, seen)


def _bytes_of_all(
    values: Iterable[Any], clients: frozenset[ClientId], scale: float, seen: set[int]
) -> int:
    """The sum of `_state_bytes` over these parts of a state."""
    total = 0
    for value in values:
        total += _state_bytes(value, clients, scale, seen)
    return total
