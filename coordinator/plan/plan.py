"""What a run will cost, before anything starts: traffic, phases, memory and disk.

Nothing here knows a method by name. The strategy is driven dry, both halves, over a few made-up agents whose models
are constants (no memory, no training); who gets which models and who sends which vectors is read off the orders and
reports, and scaled to the real number of agents. Orders, statuses and acknowledgements (a few kB) are not counted,
neither are newcomers, drop-outs and repeats; a CFL that splits or a client that learns may do otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.coordinator.engine.sampling import cohort_size
from covey.shared.numerics.vectors import BLOCK, Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.wire import Wire
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
from covey.shared.wire.codec import Codec
from covey.shared.wire.messages import DIGEST_BYTES, Encoded, ModelContent, Part, ReportContent
from covey.shared.wire.packet_size import publish_bytes
from covey.shared.wire.parts import part_count, part_length
from covey.shared.wire.topics import Topics

DRY_AGENTS = 8
DRY_VALUES = 20_000_000  # after so many values folded the last round stands for the rest
DRY_PHASES = 50  # phases in one round, after which a strategy is taken to be stuck
EXAMPLES = 32  # training samples of a made-up agent
NO_CORRECTION = GradientCorrection()
AGENT = "agent-0000"  # as long as most ids: topics and reports carry it


@dataclass(frozen=True)
class PhaseCost:
    """One kind of phase. Bytes are MQTT packets of one invited agent; values are float32 numbers before encoding."""

    name: str
    times: int
    invited: int
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
        return self.times * (self.invited * self.down_bytes + self.idle_bytes)

    @property
    def total_up(self) -> int:
        return self.times * self.invited * self.up_bytes


@dataclass(frozen=True)
class Plan:
    """The figures of a run. `models` is K; a round's figures are those of the last round, all agents together."""

    method: str
    agents: int
    rounds: int
    values: int  # length of a model's vector
    models: int
    phases: tuple[PhaseCost, ...]
    round_down_bytes: int
    round_up_bytes: int
    memory_bytes: int
    disk_bytes: int

    @property
    def down_bytes(self) -> int:
        return sum(phase.total_down for phase in self.phases)

    @property
    def up_bytes(self) -> int:
        return sum(phase.total_up for phase in self.phases)

    @property
    def mbit_per_agent(self) -> float:
        """Megabits of float32 values per registered agent, no overhead, evaluation left out (as papers count it)."""
        values = sum(
            p.times * p.invited * (p.down_values + p.up_values)
            for p in self.phases
            if p.name != "evaluate"
        )
        return values * 32 / 1e6 / self.agents

    def rows(self) -> list[tuple[str, str]]:
        """Label and text for a table of two columns."""
        phases = [
            (
                f"{phase.name}, {phase.times} times",
                f"{phase.invited} agents, each {_size(phase.down_bytes)} down, {_size(phase.up_bytes)} up",
            )
            for phase in self.phases
        ]
        return [
            ("agents, rounds", f"{self.agents}, {self.rounds}"),
            ("model", f"{self.values} values, {_size(4 * self.values)}; {self.models} kept"),
            *phases,
            (
                "a round, all agents",
                f"{_size(self.round_down_bytes)} down, {_size(self.round_up_bytes)} up",
            ),
            ("the run, all agents", f"{_size(self.down_bytes)} down, {_size(self.up_bytes)} up"),
            ("the run, per agent", f"{_size((self.down_bytes + self.up_bytes) / self.agents)}"),
            ("as papers count it", f"{self.mbit_per_agent:.2f} Mbit of float32 values per agent"),
            (
                "coordinator's memory",
                f"{_size(self.memory_bytes)} for models, besides the program itself",
            ),
            ("coordinator's disk", f"{_size(self.disk_bytes)} at most at a time"),
        ]

    def to_json(self) -> dict[str, Any]:
        derived = ("down_bytes", "up_bytes", "mbit_per_agent")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def plan(scenario: Scenario, setup: Setup, agents: int | None = None) -> Plan:
    """The figures for so many agents; None: as many as the fleet has, or as must be there at the start."""
    rounds = scenario.rounds
    fleet = scenario.fleet.agents - scenario.fleet.newcomers if scenario.fleet else None
    known = agents or fleet or rounds.start_agents or rounds.agents or 1
    dry = _DryRun(scenario, setup, known)
    history = list(dry.run())
    repeated = rounds.count - len(history)
    per_round = [*history, *([history[-1]] * repeated)]
    own = [*dry.preparation(), *dry.evaluations()]
    phases = _merged([phase for phases in per_round for phase in phases] + own)
    models = dry.strategy.clusters(dry.state)
    return Plan(
        method=str(getattr(dry.strategy, "name", "")),
        agents=known,
        rounds=rounds.count,
        values=setup.layout.size,
        models=len(models),
        phases=tuple(phases),
        round_down_bytes=sum(phase.total_down for phase in per_round[-1]),
        round_up_bytes=sum(phase.total_up for phase in per_round[-1]),
        # new models while the old ones lie mapped on disk, one on its way out, one block in float64 and its addend
        memory_bytes=4 * setup.layout.size * (len(models) + 1) + 2 * 8 * BLOCK,
        disk_bytes=dry.disk_bytes(phases),
    )


# -- the dry run -------------------------------------------------------------------------------------------------------


class _DryRun:
    """Rounds of a strategy over made-up agents, and what each phase costs for the real number of agents."""

    def __init__(self, scenario: Scenario, setup: Setup, known: int) -> None:
        self.scenario, self.setup, self.known = scenario, setup, known
        self.strategy = scenario.strategy
        self.clients = tuple(f"agent-{index:04d}" for index in range(min(known, DRY_AGENTS)))
        self.sample = min(known, math.ceil(self._cohort() * scenario.rounds.over_select))
        self.client_states: dict[ClientId, ClientState] = {client: {} for client in self.clients}
        self.state: Any = self.strategy.init(setup)
        self.prices = _Prices(scenario.wire, scenario.federation, setup)

    def run(self) -> Iterator[list[PhaseCost]]:
        """The phases of one round after another, until it has been enough to know."""
        rounds, worked = self.scenario.rounds.count, 0
        for number in range(rounds):
            if number >= 3 and worked > DRY_VALUES:
                return
            phases = list(self._round(View(number, rounds, 0, self.clients)))
            worked += sum(
                min(phase.invited, DRY_AGENTS) * self.setup.layout.size for phase in phases
            )
            yield phases

    def preparation(self) -> list[PhaseCost]:
        """The phase that sums up features, where the scenario wants them standardised by the fleet."""
        if self.scenario.task.standardise != "federated":
            return []
        report = self.prices.report(Report({}, EXAMPLES), None)
        return [PhaseCost("moments", 1, self.known, 0, report, 0, 0, 0, ends_round=False)]

    def evaluations(self) -> list[PhaseCost]:
        """At the end, and every so many rounds before; models as they are served now."""
        every, rounds = self.scenario.evaluation.every, self.scenario.rounds.count
        times = 1 + (len(range(every, rounds, every)) if every else 0)
        orders = [self.strategy.serve(self.state, client) for client in self.clients]
        empty = [Report({}, EXAMPLES)] * len(orders)
        return [
            self._cost(Phase("evaluate", "all", ends_round=False), times, self.known, orders, empty)
        ]

    def disk_bytes(self, phases: Sequence[PhaseCost]) -> int:
        """Reports of the largest phase, arriving and accepted; two checkpoints; models sent out and exported."""
        spool = max(phase.invited * (phase.up_bytes + 4 * phase.up_values) for phase in phases)
        outgoing = max(phase.published_bytes for phase in phases)
        state = _state_bytes(
            self.state, frozenset(self.clients), self.known / len(self.clients), set()
        )
        exported = sum(model.nbytes for model in self.strategy.clusters(self.state))
        return spool + outgoing + 2 * state + exported

    def _cohort(self) -> int:
        return cohort_size(
            self.known, self.scenario.rounds.participation, self.scenario.rounds.agents
        )

    def _round(self, view: View) -> Iterator[PhaseCost]:
        drawn: dict[tuple[ClientId, ...], int] = {}
        for _ in range(DRY_PHASES):
            phase = self.strategy.plan(self.state, view)
            names, invited = self._invited(phase, view)
            invited = drawn.get(
                names, invited
            )  # those whom this round drew before stand for as many
            if phase.cohort == "sample":
                drawn[names] = invited
            orders = [self.strategy.order(self.state, phase, client) for client in names]
            reports = [self._work(phase, view, *pair) for pair in zip(names, orders, strict=True)]
            if names:
                yield self._cost(phase, 1, invited, orders, reports)
            done = Phase(
                phase.name, names, phase.sizes, phase.ends_round, phase.quorum, phase.may_be_empty
            )
            self.state = self.strategy.fold(
                self.state, done, list(zip(names, reports, strict=True))
            )
            if phase.ends_round:
                return
        raise RuntimeError(f"{self.scenario.strategy.name}: no phase ends the round")

    def _invited(self, phase: Phase, view: View) -> tuple[tuple[ClientId, ...], int]:
        """Made-up names, and how many agents they stand for."""
        match phase.cohort:
            case "all":
                return self.clients, self.known
            case "sample":
                count = min(self.sample, len(self.clients))
                start = view.round * count
                chosen = {
                    self.clients[(start + offset) % len(self.clients)] for offset in range(count)
                }
                return tuple(sorted(chosen)), self.sample
            case names:
                return tuple(sorted(names)), round(len(names) * self.known / len(self.clients))

    def _work(self, phase: Phase, view: View, client: ClientId, order: Order) -> Report:
        models = tuple(self.strategy.model(self.state, key) for key in order.models)
        setup = self.setup
        job = Job(
            phase.name,
            view.round,
            client,
            setup.seed,
            models,
            order.numbers,
            order.cluster,
            setup.layout,
            setup.training,
        )
        local = _Constant(
            self.clients.index(client) + 1,
            setup.layout.size,
            self.scenario.task.outputs,
            math.prod(self.scenario.task.features),
        )
        report, self.client_states[client] = self.strategy.work(
            job, local, self.client_states[client]
        )
        return report

    def _cost(
        self,
        phase: Phase,
        times: int,
        invited: int,
        orders: Sequence[Order],
        reports: Sequence[Report],
    ) -> PhaseCost:
        lengths = {
            key: self.strategy.model(self.state, key).size
            for order in orders
            for key in order.models
        }
        price = {key: self.prices.model(key, length) for key, length in lengths.items()}
        down = [sum(price[key] for key in order.models) for order in orders]
        up = [self.prices.report(report, self.scenario.wire) for report in reports]
        shared = sum(price[key] for key in price if not key.startswith("@"))
        single = sum(price[key] for key in price if key.startswith("@"))
        idle = (
            self.known - invited
            if self.scenario.wire.delivery == "all" and phase.name != "evaluate"
            else 0
        )
        held = (
            self.prices.model("0", self.setup.layout.size) if shared else 0
        )  # their own cluster's model
        return PhaseCost(
            name=phase.name,
            times=times,
            invited=invited,
            down_bytes=_average(down),
            up_bytes=_average(up),
            down_values=_average([sum(lengths[key] for key in order.models) for order in orders]),
            up_values=_average(
                [sum(vector.size for vector in report.vectors.values()) for report in reports]
            ),
            published_bytes=shared + round(single * invited / len(orders)),
            idle_bytes=idle * held,
            ends_round=phase.ends_round,
        )


class _Constant:
    """An agent whose every model is one number repeated, different for each agent: it trains in no time."""

    def __init__(self, value: int, size: int, outputs: int, features: int) -> None:
        self._value, self._size, self._outputs, self._features = value, size, outputs, features

    @property
    def examples(self) -> int:
        return EXAMPLES

    def loss(self, model: Vector) -> float:
        return abs(float(model[0]) - self._value) if model.size else 0.0

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        return np.full(EXAMPLES, self.loss(model), np.float32)

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        return np.broadcast_to(np.float32(self._value), (self._size,))

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
        frozen: int = 0,
        velocity: Vector | None = None,
    ) -> TrainingResult:
        return TrainingResult(np.broadcast_to(np.float32(self._value), (self._size,)), 1, 1.0)

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        return np.bincount([self._value % clusters] * EXAMPLES, minlength=clusters)

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        return np.zeros((EXAMPLES, self._outputs), np.float32)

    def inputs(self) -> npt.NDArray[np.float32]:
        return np.eye(EXAMPLES, self._features, dtype=np.float32) * self._value

    def targets(self, split: DataSplit) -> npt.NDArray[Any]:
        return np.zeros(EXAMPLES, np.int64)


# -- prices ------------------------------------------------------------------------------------------------------------


class _Prices:
    """Bytes on the wire: content, cut into parts, each in an MQTT packet at QoS 1."""

    def __init__(self, wire: Wire, federation: str, setup: Setup) -> None:
        self._wire, self._topics, self._setup = wire, Topics(federation), setup
        self._down = Codec(wire.down, block=wire.block)

    def model(self, key: str, length: int) -> int:
        """One model, or a part of one, on its way to one agent."""
        empty = Encoded(codec=self._down.name, length=length, data=b"")
        plain = len(ModelContent(layout=self._setup.layout.digest, vector=empty).to_bytes())
        return self._packets(
            self._topics.model(key), plain + _growth(self._down.payload_bytes(length, based=False))
        )

    def report(self, report: Report, wire: Wire | None) -> int:
        """One report on its way to the coordinator."""
        codec = Codec(wire.codec, wire.delta, wire.block, wire.keep) if wire else Codec()
        vectors, growth = {}, 0
        for name, vector in report.vectors.items():
            based = codec.delta and name in report.bases
            named = "float32" if codec.name == "topk" and not based else codec.name
            base = bytes(DIGEST_BYTES) if based else b""
            vectors[name] = Encoded(codec=named, length=vector.size, base=base, data=b"")
            growth += _growth(codec.payload_bytes(vector.size, based))
        content = ReportContent(
            run="r" * 16,
            step=1000,
            client=AGENT,
            examples=report.examples,
            steps=report.steps,
            loss=report.loss,
            numbers=dict(report.numbers),
            seconds=1.0,
            vectors=vectors,
        )
        return self._packets(
            f"{self._topics.base}/agents/{AGENT}/report", len(content.to_bytes()) + growth
        )

    def _packets(self, topic: str, size: int) -> int:
        return _packets(len(topic), size, self._wire.part_bytes)


@cache
def _packets(topic: int, size: int, part_bytes: int) -> int:
    """All parts; the largest part index stands for all, which is at most 4 bytes too many per part."""
    count = part_count(size, part_bytes)
    part = Part(
        digest=bytes(DIGEST_BYTES), index=count - 1, count=count, size=size, about=1000, data=b""
    )
    around, length = len(part.to_bytes()), part_length(size, count)
    return sum(
        publish_bytes(
            topic + 1 + len(str(index)), around + _growth((min(length, size - index * length),))
        )
        for index in range(count)
    )


def _growth(sizes: Sequence[int]) -> int:
    """Bytes that msgpack binaries of these sizes take more than empty ones."""
    return sum(size + (0 if size < 1 << 8 else 1 if size < 1 << 16 else 3) for size in sizes)


def _average(values: Sequence[int]) -> int:
    return round(sum(values) / len(values)) if values else 0


def _merged(phases: Sequence[PhaseCost]) -> list[PhaseCost]:
    """Equal phases as one, in the order of their first time."""
    times: dict[tuple[Any, ...], int] = {}
    for phase in phases:
        key = tuple(getattr(phase, field.name) for field in fields(phase) if field.name != "times")
        times[key] = times.get(key, 0) + phase.times
    return [PhaseCost(key[0], count, *key[1:]) for key, count in times.items()]


def _state_bytes(value: Any, clients: frozenset[ClientId], scale: float, seen: set[int]) -> int:
    """Bytes of a state's arrays, each once; what is kept per client grows with the number of agents."""
    match value:
        case np.ndarray():
            new = id(value) not in seen
            seen.add(id(value))
            return value.nbytes if new else 0
        case Mapping():
            total = sum(_state_bytes(item, clients, scale, seen) for item in value.values())
            return round(total * scale) if value and clients.issuperset(value) else total
        case tuple() | list():
            return sum(_state_bytes(item, clients, scale, seen) for item in value)
    if is_dataclass(value):
        return sum(
            _state_bytes(getattr(value, field.name), clients, scale, seen)
            for field in fields(value)
        )
    return 0


def _size(count: float) -> str:
    """Three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
