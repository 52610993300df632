"""What a run will cost, before anything starts: traffic, phases, memory and disk.

Nothing here knows a method by name: the strategy is driven dry, see `dry_run`. Not counted are orders,
statuses and acknowledgements (a few kB), newcomers, drop-outs and repeated rounds. A real run may differ:
CFL may split, and a client that learns may act otherwise than a constant one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from covey.coordinator.plan.dry_run import EVALUATION, DryRun, PhaseCost, merged
from covey.coordinator.plan.prices import AGENT, Prices
from covey.shared.mqtt.profiles import PROFILES, UNLIMITED, Profile
from covey.shared.numerics.split import Part
from covey.shared.numerics.vectors import BLOCK
from covey.shared.privacy.settings import SecureSettings
from covey.shared.scenario.scenario import Scenario
from covey.shared.secure import messages
from covey.shared.secure.parameters import Group, group_of
from covey.shared.strategies.base import MODEL, Numbers, Report, Setup, Strategy

# ----------------------------------------------------------------------------------------------------------------------
# What the limits of managed brokers mean for a run: how long its messages take at least, and how many are retained.


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


def _duration(seconds: float) -> str:
    """Seconds in three digits and a usual unit."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


# ----------------------------------------------------------------------------------------------------------------------
# What secure sums add to the phases of a run: messages, bytes, seconds, and the chance that too few members are left.
#
# Sizes are those of messages made of zeros. Seconds were measured on one core of a server; a Raspberry Pi 4 takes about eight
# times as long.


GONE = (0.1, 0.2, 0.3)  # shares of members
CHECKED_S = 0.75e-3  # for each other member: signatures, cells and keys of one sum
MASKED_S = 1.5e-9  # for each value of one mask
WORD = 4  # bytes
EXCHANGES = 4  # an order and a report each: box, join, report, answer
KEY, SIGNATURE, SECONDS = bytes(32), bytes(64), 1 << 30
ENTRY = messages.Entry(
    federation="covey",
    agent=AGENT,
    serial=1,
    key=KEY,
    since=SECONDS,
    until=SECONDS,
    signature=SIGNATURE,
)


@dataclass(frozen=True)
class SumsPlan:
    """The sums of a round."""

    groups: int
    members: int  # of the largest group
    threshold: int  # that must answer
    messages: int  # of each agent, both ways, without parts
    device_s: float  # of each agent, besides its training
    coordinator_s: float  # without drop-outs
    void: Mapping[str, float]  # chance that too few are left, by the share of members that are gone

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line of a table."""
        size = f"{self.groups} of up to {self.members} agents, of whom {self.threshold} must answer"
        work = f"{self.device_s:.2g} s at a device, {self.coordinator_s:.2g} s at the coordinator"
        chances = ", ".join(
            f"{chance:.2g} if {gone} are gone" for gone, chance in self.void.items()
        )
        return [
            ("secure sums, a round", f"{size}; {self.messages} messages of an agent; {work}"),
            ("chance of a void", chances),
        ]


def sums_of_round(
    settings: SecureSettings, agents: int, clusters: int, values: int, exchanges: int
) -> SumsPlan | None:
    """The sums of a round, with clusters of equal size; None for clusters that are too small for a sum.

    Args:
        settings: of the scenario.
        agents: in a round.
        clusters: that they are in.
        values: length of an update.
        exchanges: phases of the round whose updates are summed.
    """
    of_cluster = -(-agents // clusters)
    groups = -(-of_cluster // settings.group)
    try:
        group = _group(settings, -(-of_cluster // groups))
    except ValueError:
        return None
    mask_s = MASKED_S * values
    count = groups * clusters
    return SumsPlan(
        groups=count,
        members=group.members,
        threshold=group.threshold,
        messages=exchanges * 2 * EXCHANGES,
        device_s=exchanges * group.members * (CHECKED_S + mask_s),
        coordinator_s=exchanges * count * group.members * (CHECKED_S + mask_s),
        void={f"{gone:.0%}": group.void_chance(gone) for gone in GONE},
    )


def _group(settings: SecureSettings, members: int) -> Group:
    return group_of(members, settings.colluders, settings.threshold, settings.least)


def has_updates(strategy: Strategy[Any], phase: PhaseCost) -> bool:
    """Whether agents send updates in a phase, which are summed under masks."""
    clear = () if strategy.sealed is None else strategy.sealed.clear
    return phase.up_values > 0 and phase.name not in clear


def with_sums(phase: PhaseCost, sums: SumsPlan, prices: Prices) -> list[PhaseCost]:
    """The phases of a sum around one in which agents send updates."""
    n = sums.members
    box = messages.Box(number=1, key=KEY, signature=SIGNATURE)
    member = messages.Member.of(ENTRY, box)
    terms = messages.Terms(
        federation="covey",
        run="run",
        step=1,
        sum=bytes(16),
        cluster="0",
        number=0,
        start=KEY,
        vectors={MODEL: 1 << 20},
        clip=1.0,
        cap=1,
        levels=1,
        deviation=0.0,
        multiplier=0.0,
        threshold=sums.threshold,
        colluders=0,
        least=sums.threshold,
        seconds=1.0,
        members=[member] * n,
    )
    row = messages.ListRow(place=n, mask_key=KEY, commitment=KEY, signature=SIGNATURE)
    answered = messages.UnmaskRow(place=n, signature=SIGNATURE)
    cells = bytes(messages.PAIR_BYTES * (n - 1))
    join = messages.Join(
        terms=KEY, place=n, mask_key=KEY, seed=KEY, cells=cells, signature=SIGNATURE
    )
    head = messages.ReportHead(
        terms=KEY, listing=KEY, place=n, vector=KEY, lacking=[], row=SIGNATURE, signature=SIGNATURE
    )
    answer = messages.Answer(
        unmask=KEY, place=n, keys=bytes(32 * (n - 1)), share=bytes(33), signature=SIGNATURE
    )
    inbox = messages.CellInbox(listing=KEY, cells=cells)
    listing = messages.JoinList(terms=KEY, rows=[row] * n)
    unmask = messages.UnmaskList(listing=KEY, rows=[answered] * n)

    def sent(numbers: Numbers | None = None, **sizes: int) -> int:
        vectors = {name: np.broadcast_to(np.float32(0), (size,)) for name, size in sizes.items()}
        return prices.report(Report(vectors, examples=1, numbers=numbers or {}), None)

    def published(size: int) -> int:
        return prices.model("secure-0-unmask", _words(size))

    def step(name: str, shared: int, up: int) -> PhaseCost:
        return replace(
            phase,
            name=name,
            down_bytes=shared,
            up_bytes=up,
            down_values=0,
            up_values=0,
            published_bytes=shared * sums.groups,
            idle_bytes=0,
            ends_round=False,
        )

    lists, own = published(len(listing.to_bytes())), published(len(inbox.to_bytes()))
    masked = replace(
        phase,
        down_bytes=phase.down_bytes + lists + own,
        up_bytes=sent(
            {"head": [1 << 31] * _words(len(head.to_bytes()))}, masked=phase.up_values + 2
        ),
        published_bytes=phase.published_bytes + lists * sums.groups + own * phase.invited,
        ends_round=False,
    )
    shown = messages.Introduction(entry=ENTRY, box=box, start=bytes(32), expelled=b"")
    answers = step(
        "secure-unmask",
        published(len(unmask.to_bytes())),
        sent(secure=_words(len(answer.to_bytes()))),
    )
    return [
        step("secure-box", 0, sent(secure=_words(len(shown.to_bytes())))),
        step(
            "secure-join",
            published(len(terms.to_bytes())),
            sent(secure=_words(len(join.to_bytes()))),
        ),
        masked,
        replace(answers, ends_round=phase.ends_round),
    ]


def _words(size: int) -> int:
    """Integers of four bytes in a message, with its length."""
    return 1 + -(-size // WORD)


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
