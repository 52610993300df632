"""What a run will cost, before anything starts: traffic, memory and disk, from sizes alone.

A method states what agents get and send (`Strategy.exchanges`); nothing trains here, and nothing is encoded. Not counted are
orders, statuses, acknowledgements, newcomers, drop-outs and repeated rounds, nor what depends on what agents report: votes and
CFL's rounds of all members before a split. Where a method chooses its number of
clusters, the largest it may choose counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from covey.coordinator.engine.cohort import cohort_size
from covey.shared.candidate_names import HOMES
from covey.shared.mqtt.profiles import PROFILES, UNLIMITED, Profile
from covey.shared.numerics import kinship
from covey.shared.numerics.mixture import REFITS
from covey.shared.numerics.split import FLOAT32_BYTES, TensorsOfRole
from covey.shared.numerics.vectors import BLOCK
from covey.shared.privacy.settings import SecureSettings
from covey.shared.scenario.scenario import Scenario
from covey.shared.secure.parameters import group_of
from covey.shared.strategies.base import GRADIENT, Exchange, Setup, Strategy
from covey.shared.strategies.phase_names import CARD, EVALUATE, EXCHANGES, MOMENTS, SIGNATURE
from covey.shared.wire.codec import Codec
from covey.shared.wire.parts import part_count

EPOCHS_OF_FOLDS = 2  # three folds train on two thirds of the samples each
FLOAT64_BYTES = 8

# bytes besides values: of a part with its packet and topic, of a model, of a report, and of each vector in it
PART = 120
MODEL_ENVELOPE = 97
REPORT_ENVELOPE = 190
VECTOR_ENVELOPE = 50

# Bytes of a secure sum with n members, as (constant, for each member): down and up in the phases of messages, and what the
# phase of updates has more.
BOX, JOIN, UNMASK = EXCHANGES
OF_A_SUM = {
    BOX: ((0, 0), (710, 0)),
    JOIN: ((500, 225), (485, 98)),
    "": ((470, 234), (392, 0)),
    UNMASK: ((285, 69), (510, 32)),
}
GONE = (0.1, 0.2, 0.3)  # shares of the members of a sum


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
    each_round: bool = False

    @property
    def round_down(self) -> int:
        """Bytes to all agents in one phase."""
        return self.invited * self.down_bytes + self.idle_bytes

    @property
    def round_up(self) -> int:
        """Bytes from all agents in one phase."""
        return self.invited * self.up_bytes


@dataclass(frozen=True)
class BrokerSeconds:
    """What the limits of a managed broker mean for a run."""

    profile: str
    seconds: float  # that its limits take at least, of all phases together
    retained: int  # messages that the models of a phase take
    most_retained: int  # that the broker keeps

    @property
    def text(self) -> str:
        """For a table."""
        text = f"at least {_duration(self.seconds)}"
        if self.retained > self.most_retained:
            text += f"; its models take {self.retained} of {self.most_retained} retained messages"
        return text


@dataclass(frozen=True)
class SumsPlan:
    """The secure sums of a phase."""

    groups: int
    members: int  # of the largest group
    threshold: int  # that must answer
    void: Mapping[str, float]  # chance that too few are left, by the share of members that are gone


@dataclass(frozen=True)
class Plan:
    """The figures of a run. A round's figures are those of the last round, all agents together."""

    method: str
    agents: int
    rounds: int
    values: int  # length of a model's vector, as far as it travels
    models: int  # K, that the server keeps
    kept: str  # K in words, where it is unknown before the run too
    phases: tuple[PhaseCost, ...]
    memory_bytes: int  # of the coordinator, for models
    disk_bytes: int  # of the coordinator, at most at a time
    parts: tuple[TensorsOfRole, ...] = ()  # of the model; empty where all of it travels
    brokers: tuple[BrokerSeconds, ...] = ()  # of managed brokers that limit their clients' rates
    sums: Mapping[str, SumsPlan] = field(default_factory=dict)  # by phase, where they are secure
    evaluation_epochs: int = 0  # that each agent trains in the last evaluation, besides all rounds
    budget_s: float = 0.0  # of a real device for the most of these; 0: it judges nothing
    round_epochs: int = 1  # that it trains in a round

    @property
    def down_bytes(self) -> int:
        """Bytes to all agents in the whole run."""
        return sum(phase.times * phase.round_down for phase in self.phases)

    @property
    def up_bytes(self) -> int:
        """Bytes from all agents in the whole run."""
        return sum(phase.times * phase.round_up for phase in self.phases)

    @property
    def round_down_bytes(self) -> int:
        """Bytes to all agents in the last round."""
        return sum(phase.round_down for phase in self.phases if phase.each_round)

    @property
    def round_up_bytes(self) -> int:
        """Bytes from all agents in the last round."""
        return sum(phase.round_up for phase in self.phases if phase.each_round)

    @property
    def mbit_per_agent(self) -> float:
        """Megabits of float32 values per agent, without overhead and evaluation, as papers count traffic."""
        values = sum(
            phase.times * phase.invited * (phase.down_values + phase.up_values)
            for phase in self.phases
            if phase.name != EVALUATE
        )
        return values * 32 / 1e6 / self.agents

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line of a table."""
        model = _size(FLOAT32_BYTES * self.values)
        rows = [
            ("agents, rounds", f"{self.agents}, {self.rounds}"),
            ("model", f"{self.values} values, {model}; {self.kept} kept"),
        ]
        rows += [(part.role, str(part)) for part in self.parts]
        for phase in self.phases:
            traffic = _both_ways(phase.down_bytes, phase.up_bytes)
            times = "once" if phase.times == 1 else f"{phase.times} times"
            rows.append((f"{phase.name}, {times}", f"{phase.invited} agents, each {traffic}"))
        for name, sums in self.sums.items():
            of = f"{sums.groups} of up to {sums.members} agents, of whom {sums.threshold} must answer"
            chances = [f"{chance:.2g} if {gone} are gone" for gone, chance in sums.void.items()]
            rows += [(f"sums, {name}", of), (f"void sums, {name}", ", ".join(chances))]
        if epochs := self.evaluation_epochs:
            as_rounds = f"as in {epochs / self.round_epochs:.3g} rounds"
            within = f", within {self.budget_s:g} s on a device" if self.budget_s else ""
            text = f"at most {epochs} epochs of each agent's samples, {as_rounds}{within}"
            rows.append(("the last evaluation trains", text))
        return [
            *rows,
            ("a round, all agents", _both_ways(self.round_down_bytes, self.round_up_bytes)),
            ("the run, all agents", _both_ways(self.down_bytes, self.up_bytes)),
            ("the run, per agent", _size((self.down_bytes + self.up_bytes) / self.agents)),
            ("as papers count it", f"{self.mbit_per_agent:.2f} Mbit of float32 values per agent"),
            ("coordinator's memory", f"{_size(self.memory_bytes)} for models, besides the program"),
            ("coordinator's disk", f"{_size(self.disk_bytes)} at most at a time"),
            *[(f"messages at {broker.profile}", broker.text) for broker in self.brokers],
        ]

    def to_json(self) -> dict[str, Any]:
        """The fields, then the totals that are derived from them."""
        derived = ("round_down_bytes", "round_up_bytes", "down_bytes", "up_bytes", "mbit_per_agent")
        return asdict(self) | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True)
class _Pricing:
    """A scenario, with what the prices of its phases depend on."""

    scenario: Scenario
    setup: Setup
    agents: int
    models: int  # K

    def exchanges(self) -> list[Exchange]:
        """What agents get and send in the whole run, each with its number of times but those of each round."""
        scenario, setup = self.scenario, self.setup
        privacy = scenario.privacy
        stated = scenario.strategy.exchanges(setup, self.agents, math.prod(scenario.task.features))
        evaluation = Exchange(EVALUATE, (setup.layout.size,))
        phases = []
        if scenario.task.asks_fleet_for:
            phases.append(Exchange(MOMENTS, cohort="all", times=1))
        own = () if setup.own is None else (setup.own.size,)
        if own and not scenario.is_summed:
            phases.append(Exchange("values that stay", own, cohort="all", times=1))
        for one in stated:
            if own and scenario.is_summed:
                one = replace(one, down=(*one.down, *own))
            if one.name == EVALUATE:
                evaluation = one
            else:
                phases.append(one)
        every = scenario.evaluation.every or scenario.rounds.count
        times = math.ceil(scenario.rounds.count / every)
        if scenario.evaluation.judges and (privacy is None or privacy.local is None):
            times += REFITS  # orders with the weights of the fleet
        return [*phases, replace(evaluation, cohort="all", times=times)]

    def costs(self) -> list[PhaseCost]:
        """The phases of the run."""
        taken: dict[str, int] = {}
        costs = []
        for one in self.exchanges():
            left = self.scenario.rounds.count - taken.get(one.name, 0)
            times = left if one.times is None else one.times
            taken[one.name] = taken.get(one.name, 0) + times
            if times:
                costs.append(self._cost(one, times))
        return costs

    def _cost(self, one: Exchange, times: int) -> PhaseCost:
        invited = self._invited(one)
        down = sum(map(self._model, one.down))
        published = max(down, self.models * self._model(self.setup.layout.size))
        published = invited * down if one.own else published if one.down else 0
        idle = 0
        if self.scenario.wire.delivery == "all" and one.down and one.name != EVALUATE:
            idle = (self.agents - invited) * self._model(self.setup.layout.size)
        lengths = {name: self._length(name, size) for name, size in one.up.items()}
        return PhaseCost(
            name=one.name,
            times=times,
            invited=invited,
            down_bytes=down,
            up_bytes=self._report(lengths, one.down),
            down_values=sum(one.down),
            up_values=sum(lengths.values()),
            published_bytes=published,
            idle_bytes=idle,
            each_round=one.times is None,
        )

    def _invited(self, one: Exchange) -> int:
        """How many agents: all, those that a round draws, or those of a buffer."""
        rounds = self.scenario.rounds
        if one.cohort == "all":
            return self.agents
        if one.cohort != "sample":
            return min(one.cohort, self.agents)
        if rounds.mode == "buffered":
            return min(rounds.buffer, self.agents)
        # how many agents will drop out is unknown before the run
        over_select = 1.0 if rounds.over_select == "auto" else rounds.over_select
        drawn = cohort_size(self.agents, rounds.participation, rounds.agents)
        return min(self.agents, math.ceil(drawn * over_select))

    def _length(self, name: str, size: int) -> int:
        """The length of a vector in a report; a card has as many cells as there are classes."""
        if name != CARD:
            return size
        outputs = self.setup.whole.outputs
        classes = outputs if outputs > 1 else kinship.LEVELS
        return kinship.BLOCKS * min(classes, kinship.MOST_CLASSES) * kinship.PROJECTED

    def _model(self, length: int) -> int:
        """Bytes of a model on its way to an agent."""
        payload = sum(Codec(self.scenario.wire.down).payload_bytes(length, based=False))
        return self._packets(payload + MODEL_ENVELOPE)

    def _report(self, lengths: Mapping[str, int], down: Sequence[int]) -> int:
        """Bytes of a report. Vectors as long as a model of the order travel as differences, but for gradients."""
        wire = self.scenario.wire
        codec = Codec(wire.codec, wire.delta, keep=wire.keep)
        payload = REPORT_ENVELOPE
        for name, length in lengths.items():
            based = name != GRADIENT and length in down
            payload += sum(codec.payload_bytes(length, based)) + VECTOR_ENVELOPE
        return self._packets(payload)

    def _packets(self, size: int) -> int:
        return size + PART * part_count(size, self.scenario.wire.part_bytes)


def plan(scenario: Scenario, setup: Setup, agents: int | None = None) -> Plan:
    """The figures of a scenario.

    Args:
        scenario: what would run
        setup: its initial models; only their lengths matter
        agents: how many agents; by default those of the fleet, else those that a run waits for
    """
    known = agents or _agents_of(scenario)
    strategy, values = scenario.strategy, setup.layout.size
    exact = len(strategy.clusters(strategy.init(setup)))
    named = getattr(strategy, "n_clusters", None) or getattr(strategy, "most_clusters", None)
    models = max(exact, named or 1)
    phases = _Pricing(scenario, setup, known, models).costs()
    sums: dict[str, SumsPlan] = {}
    if scenario.sums is not None:
        clear = () if strategy.facts.sealed is None else strategy.facts.sealed.clear
        sealed = []
        for one in phases:
            is_evaluation = one.name == EVALUATE
            masked = replace(one, up_values=scenario.sums.slots.length) if is_evaluation else one
            found = None
            if masked.up_values and one.name not in clear:
                found = sums_of(scenario.sums.settings, one.invited, models)
            if found is not None:
                sums[one.name] = found
            sealed += [one] if found is None else with_sums(masked, found)
        phases = sealed
    stored = values if strategy.facts.keeps else 0
    stored += sum(one.up_values for one in phases if one.name == SIGNATURE)
    return Plan(
        method=str(getattr(strategy, "name", "")),
        agents=known,
        rounds=scenario.rounds.count,
        values=values,
        models=models,
        kept=_kept(strategy, models),
        phases=tuple(phases),
        memory_bytes=_memory_bytes(values, models, 0 if strategy.facts.individual else models),
        disk_bytes=_disk_bytes(phases, models * values + known * stored, models * setup.whole.size),
        parts=() if setup.split is None else setup.split.parts(),
        brokers=tuple(
            broker_seconds(phases, scenario.wire.part_bytes, profile)
            for profile in PROFILES
            if profile.messages_per_s < UNLIMITED
        ),
        sums=sums,
        evaluation_epochs=_evaluation_epochs(scenario),
        budget_s=0.0
        if scenario.evaluation.deliver == "served"
        else scenario.evaluation.deliver.budget_s,
        round_epochs=scenario.training.epochs,
    )


def _evaluation_epochs(scenario: Scenario) -> int:
    """For mode E-tuned, and where devices judge, to the longest training at home, then again for each fold."""
    evaluation = scenario.evaluation
    return evaluation.tune_epochs + (max(HOMES) * (1 + EPOCHS_OF_FOLDS) if evaluation.judges else 0)


def _kept(strategy: Strategy[Any], models: int) -> str:
    """How many models the server keeps; unknown where the method chooses its number of clusters."""
    if getattr(strategy, "n_clusters", models) is not None:
        return str(models)
    return f"at most {models}" if hasattr(strategy, "most_clusters") else "one for each cluster"


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


def _disk_bytes(phases: Sequence[PhaseCost], state: int, exported: int) -> int:
    """Reports of the largest phase, arriving and accepted; two checkpoints; models sent out and exported.

    Args:
        phases: of the run.
        state: values in a checkpoint.
        exported: values of the models at the end.
    """
    spool = max(one.invited * (one.up_bytes + FLOAT32_BYTES * one.up_values) for one in phases)
    outgoing = max(one.published_bytes for one in phases)
    return spool + outgoing + FLOAT32_BYTES * (2 * state + exported)


# -- secure sums ---------------------------------------------------------------------------------------


def sums_of(settings: SecureSettings, agents: int, clusters: int) -> SumsPlan | None:
    """The sums of a phase, with clusters of equal size; None for clusters that are too small for a sum.

    Args:
        settings: of the scenario.
        agents: in the phase.
        clusters: that they are in.
    """
    of_cluster = -(-agents // clusters)
    groups = -(-of_cluster // settings.group)
    members = -(-of_cluster // groups)
    try:
        group = group_of(members, settings.colluders, settings.threshold, settings.least)
    except ValueError:
        return None
    void = {f"{gone:.0%}": group.void_chance(gone) for gone in GONE}
    return SumsPlan(groups * clusters, group.members, group.threshold, void)


def with_sums(phase: PhaseCost, sums: SumsPlan) -> list[PhaseCost]:
    """The phases of a sum around one in which agents send updates."""
    steps = []
    for name, (down, up) in OF_A_SUM.items():
        more_down, more_up = (base + each * sums.members for base, each in (down, up))
        if name:
            empty = replace(phase, name=name, down_values=0, up_values=0, idle_bytes=0)
            published = more_down * sums.groups
            step = replace(empty, down_bytes=more_down, up_bytes=more_up, published_bytes=published)
        else:
            masked = FLOAT32_BYTES * phase.up_values + REPORT_ENVELOPE + PART + more_up
            published = phase.published_bytes + more_down * phase.invited
            step = replace(
                phase,
                down_bytes=phase.down_bytes + more_down,
                up_bytes=masked,
                published_bytes=published,
            )
        steps.append(step)
    return steps


# -- managed brokers -----------------------------------------------------------------------------------


def broker_seconds(phases: Sequence[PhaseCost], part_bytes: int, profile: Profile) -> BrokerSeconds:
    """How long a managed broker takes for the messages of a run, by its limits alone.

    In a phase the coordinator publishes models and orders, then devices fetch them, then all of them send reports.

    Args:
        phases: of the plan.
        part_bytes: of the scenario.
        profile: of the broker.
    """
    part = min(part_bytes, profile.part_bytes)
    seconds, retained = 0.0, 0
    for phase in phases:
        published = math.ceil(phase.published_bytes / part)
        fetched, sent = math.ceil(phase.down_bytes / part), math.ceil(phase.up_bytes / part)
        out_s = profile.seconds(phase.published_bytes, published + phase.invited)
        all_down = phase.invited * phase.down_bytes / profile.all_bytes_per_s
        all_up = phase.invited * phase.up_bytes / profile.all_bytes_per_s
        packets = 2 * math.ceil(fetched / profile.filters)  # each names the next parts, or the last
        down_s = max(all_down, packets / profile.subscribes_per_s)
        up_s = max(all_up, profile.seconds(phase.up_bytes, sent))
        seconds += phase.times * (out_s + down_s + up_s)
        retained = max(retained, published + phase.invited)
    return BrokerSeconds(profile.name, seconds, retained, profile.retained_messages)


# -- in words ------------------------------------------------------------------------------------------


def _duration(seconds: float) -> str:
    """Seconds in three digits and a usual unit."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def _both_ways(down: float, up: float) -> str:
    return f"{_size(down)} down, {_size(up)} up"


def _size(count: float) -> str:
    """Bytes in three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
