"""What a run will cost, before anything starts: traffic, phases, memory and disk.

Nothing here knows a method by name: the strategy is driven dry, see `dry_run`. Not counted are orders,
statuses and acknowledgements (a few kB), newcomers, drop-outs and repeated rounds. A real run may differ:
CFL may split, and a client that learns may act otherwise than a constant one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from covey.coordinator.plan.cost import PhaseCost, merged
from covey.coordinator.plan.dry_run import EVALUATION, DryRun
from covey.coordinator.plan.limits import BrokerSeconds, broker_seconds
from covey.coordinator.plan.sums import SumsPlan, has_updates, sums_of_round, with_sums
from covey.shared.mqtt.profiles import PROFILES, UNLIMITED
from covey.shared.numerics.split import Part
from covey.shared.numerics.vectors import BLOCK
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Setup

FLOAT32_BYTES = 4
FLOAT64_BYTES = 8


@dataclass(frozen=True)
class Plan:
    """The figures of a run. A round's figures are those of the last round, all agents together."""

    method: str
    agents: int
    rounds: int
    values: int  # length of a model's vector, as far as it travels
    models: int  # K, that the server keeps
    phases: tuple[PhaseCost, ...]
    round_down_bytes: int
    round_up_bytes: int
    memory_bytes: int  # of the coordinator, for models
    disk_bytes: int  # of the coordinator, at most at a time
    parts: tuple[Part, ...] = ()  # of the model; empty where all of it travels
    brokers: tuple[BrokerSeconds, ...] = ()  # of managed brokers that limit their clients' rates
    sums: SumsPlan | None = None  # without secure sums

    @property
    def down_bytes(self) -> int:
        """Bytes to all agents in the whole run."""
        return sum(phase.total_down for phase in self.phases)

    @property
    def up_bytes(self) -> int:
        """Bytes from all agents in the whole run."""
        return sum(phase.total_up for phase in self.phases)

    @property
    def mbit_per_agent(self) -> float:
        """Megabits of float32 values per agent, without overhead and evaluation, as papers count traffic."""
        values = 0
        for phase in self.phases:
            if phase.name != EVALUATION.name:
                values += phase.values
        return values * 32 / 1e6 / self.agents

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line of a table."""
        model_bytes = FLOAT32_BYTES * self.values
        model = _size(model_bytes)
        per_agent = (self.down_bytes + self.up_bytes) / self.agents
        rows = [
            ("agents, rounds", f"{self.agents}, {self.rounds}"),
            ("model", f"{self.values} values, {model}; {self.models} kept"),
        ]
        rows += [(part.role, str(part)) for part in self.parts]
        for phase in self.phases:
            traffic = _both_ways(phase.down_bytes, phase.up_bytes)
            times = "once" if phase.times == 1 else f"{phase.times} times"
            rows.append((f"{phase.name}, {times}", f"{phase.invited} agents, each {traffic}"))
        if self.sums is not None:
            rows += self.sums.rows()
        return [
            *rows,
            ("a round, all agents", _both_ways(self.round_down_bytes, self.round_up_bytes)),
            ("the run, all agents", _both_ways(self.down_bytes, self.up_bytes)),
            ("the run, per agent", _size(per_agent)),
            ("as papers count it", f"{self.mbit_per_agent:.2f} Mbit of float32 values per agent"),
            ("coordinator's memory", f"{_size(self.memory_bytes)} for models, besides the program"),
            ("coordinator's disk", f"{_size(self.disk_bytes)} at most at a time"),
            *[(f"messages at {broker.profile}", broker.text) for broker in self.brokers],
        ]

    def to_json(self) -> dict[str, Any]:
        """The fields, then the totals that are derived from them."""
        row = asdict(self)
        row["down_bytes"] = self.down_bytes
        row["up_bytes"] = self.up_bytes
        row["mbit_per_agent"] = self.mbit_per_agent
        return row


def plan(scenario: Scenario, setup: Setup, agents: int | None = None) -> Plan:
    """The figures of a scenario.

    Args:
        scenario: what would run
        setup: its initial models; only their lengths matter
        agents: how many agents; by default those of the fleet, else those that a run waits for
    """
    known = agents or _agents_of(scenario)
    dry = DryRun(scenario, setup, known)
    rounds = list(dry.run())
    last_round = rounds[-1]
    while len(rounds) < scenario.rounds.count:
        rounds.append(last_round)
    phases: list[PhaseCost] = []
    for of_one_round in rounds:
        phases += of_one_round
    phases += dry.preparation()
    sums = _sums(scenario, dry, phases, last_round)
    if sums is not None:
        phases = [one for phase in phases for one in _with_sums(dry, phase, sums)]
        last_round = [one for phase in last_round for one in _with_sums(dry, phase, sums)]
    evaluation = [dry.evaluation()]
    if sums is not None:
        figures = replace(evaluation[0], up_values=scenario.sums.slots.length)
        evaluation = with_sums(figures, sums, dry.prices)
    phases += evaluation
    kinds = merged(phases)
    models = len(dry.strategy.clusters(dry.state))
    held = 0 if dry.strategy.individual else models
    values = setup.layout.size
    return Plan(
        method=str(getattr(dry.strategy, "name", "")),
        agents=known,
        rounds=scenario.rounds.count,
        values=values,
        models=models,
        phases=tuple(kinds),
        round_down_bytes=sum(phase.total_down for phase in last_round),
        round_up_bytes=sum(phase.total_up for phase in last_round),
        memory_bytes=_memory_bytes(values, models, held),
        disk_bytes=dry.disk_bytes(kinds),
        parts=() if setup.split is None else setup.split.parts(),
        brokers=tuple(
            broker_seconds(kinds, scenario.wire.part_bytes, profile)
            for profile in PROFILES
            if profile.messages_per_s < UNLIMITED
        ),
        sums=sums,
    )


def _sums(
    scenario: Scenario, dry: DryRun, phases: Sequence[PhaseCost], last_round: Sequence[PhaseCost]
) -> SumsPlan | None:
    """The secure sums of the last round, if the scenario has any."""
    if scenario.privacy is None or scenario.privacy.secure is None:
        return None
    [*_, last] = [phase for phase in phases if has_updates(dry.strategy, phase)]
    exchanges = sum(has_updates(dry.strategy, phase) for phase in last_round)
    clusters = len(set(dry.strategy.assignment(dry.state).values())) or 1
    settings = scenario.privacy.secure
    return sums_of_round(settings, last.invited, clusters, last.up_values, exchanges)


def _with_sums(dry: DryRun, phase: PhaseCost, sums: SumsPlan) -> list[PhaseCost]:
    return with_sums(phase, sums, dry.prices) if has_updates(dry.strategy, phase) else [phase]


def _agents_of(scenario: Scenario) -> int:
    """Agents of the fleet without newcomers, else those that the run waits for, or draws."""
    fleet = scenario.fleet
    in_fleet = fleet.agents - fleet.newcomers if fleet is not None else 0
    return in_fleet or scenario.rounds.start_agents or scenario.rounds.agents or 1


def _memory_bytes(values: int, models: int, sums: int) -> int:
    """New models while the old ones are mapped from disk, one being sent; one block in float64 and its addend.

    Args:
        values: the length of a model.
        models: K.
        sums: of reports that are added up on arrival, each on two grids in float64.
    """
    in_memory = FLOAT32_BYTES * values * (models + 1)
    added_up = 2 * FLOAT64_BYTES * values * sums
    return in_memory + added_up + (2 * FLOAT64_BYTES * BLOCK)


def _both_ways(down: float, up: float) -> str:
    return f"{_size(down)} down, {_size(up)} up"


def _size(count: float) -> str:
    """Bytes in three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
