"""The agents of a run: `Member` is all that the coordinator knows of one of them, `Members` the only mapping by agent.

To forget an agent is therefore one deletion. Pure: time is an argument, in the engine's seconds.

Presence. An agent that left counts as present for `absence_s` more: a lost session that comes back costs nothing. A roll
call asks all present agents to answer; an agent that does not answer in time has left.

Rests. An agent that is there and lets the steps that invite it close without its report, or that cannot do its work where
others can, is not invited for 2^k rounds after the k-th time in a row, from the second time on, and for at most `LONGEST`
rounds. A report ends that. So one agent that answers roll calls and never reports costs less with every round, and a device
that has recovered is back after a while without intervention.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import Any, Literal, TypeVar

from covey.shared.strategies.base import ClientId
from covey.shared.wire.documents import AgentStatus

T = TypeVar("T")
Json = dict[str, Any]
PATIENCE = 2  # times in a row
LONGEST = 16  # rounds
RECENT = 8  # rounds that show who is the last one now
KEPT = 5  # newest durations of an agent in a phase
MAX_FAILURE_CHARS = 500  # that are kept of an agent's reason

Kind = Literal["silent", "failing"]
Durations = deque[float | None]  # seconds; None: the step closed while the agent was at work


@dataclass(frozen=True)
class Trouble:
    """Work of an agent that came to nothing, the newest of some in a row."""

    kind: Kind
    times: int  # in a row
    step: int  # the newest
    until: int  # complete rounds with which it is invited again
    why: str  # of the newest; empty for silence
    has_reported: bool  # before it: perhaps the agent is slow

    @property
    def words(self) -> str:
        """A line for the operator: how often, why, and until when."""
        reason = self.why or "online, but no report came in time"
        return f"{self.times} times in a row: {reason}; invited again from round {self.until + 1}"


@dataclass(slots=True)
class RosterEntry:
    """An agent's newest status, and what its messages had to suffer since this process began."""

    status: AgentStatus
    seen: float | None  # its last live message, in seconds since the epoch; None: none so far
    labels: int  # how many
    here: bool = False  # online, and its data fits: the engine counts it as present
    member: bool = False  # it was `here` at least once; it never becomes False again
    refusals: Counter[str] | None = None  # None: none; most agents have none
    failure: str | None = None  # why its newest report without work holds none
    failures: int = 0  # reports without work in a row; 0 after a report with work
    lost: bool = False  # it went without a goodbye
    behind: float = (
        0.0  # seconds by which its clock was behind ours when its newest live status came
    )


@dataclass(slots=True)
class KeptFacts:
    """What the run's part of a checkpoint keeps of an agent, each as a column by agent; None: not known."""

    id: ClientId
    accepted: int | None = None  # the newest step whose report was accepted
    trained: int | None = None  # the newest training round that has drawn it

    # it has values of its own since a report was folded: its orders need not bring the initial ones; None where the whole
    # model travels
    owns: int | None = None
    evaluation: Json | None = None  # the figures of the newest one, by mode
    evaluated_in: int | None = None  # how many rounds were over then

    # where it could not do the work of an order: how many times, and the round (from 1) and the reason of the newest time
    failures: Json | None = None

    # the best test figures right after its local training, where they are tracked
    tracked: dict[str, float] | None = None
    sums: Json | None = None  # the newest of its data, where the task asks the fleet for them
    device: str | None = None  # the kind that it has computed on, or `records.MIXED`


COLUMNS = tuple(one.name for one in fields(KeptFacts)[1:])
_kept = attrgetter(*COLUMNS)
NOTHING_KEPT = (None,) * len(COLUMNS)


@dataclass(slots=True)
class Member(KeptFacts):
    """All that the coordinator knows of one agent. `Members` changes what its indexes follow: the first four facts."""

    leaves_at: float | None = None  # present; counts as gone at this time
    quarantine: str | None = None  # why it is not invited any more
    trouble: Trouble | None = None  # its newest work came to nothing
    entry: RosterEntry | None = None  # from its statuses

    # of `accepted`, before the open step: until it is over, its report can be taken back
    accepted_before: int | None = None

    # steps with a refused report, and the last of these steps
    refused: tuple[int, int] | None = None
    refusal: str = ""  # why its newest report was refused, until one is accepted
    has_reported: bool = False  # as far as is known
    called: bool = False  # invited by this process: its training process has started before
    samples: tuple[int, int] | None = None  # of its newest status, for training and for tests
    cluster_shown: int | None = None  # in the published roster
    durations: dict[str, Durations] | None = None  # of its work, by phase
    takes: float | None = None  # seconds of its newest round, from invitation to report
    rounds: int = 0  # the newest that it has reported in, at most `RECENT`
    last: int = 0  # of these, those in which it was the last one of three or more

    def count_failure(self, round_: int, why: str) -> None:
        """The agent could not do its work in a round, counted from 1."""
        times = self.failures["times"] + 1 if self.failures else 1
        self.failures = {"times": times, "round": round_, "why": why[:MAX_FAILURE_CHARS]}

    def took(self, phase: str, seconds: float | None) -> None:
        """How long its newest work of a phase took; None: the step closed before its end."""
        self.durations = self.durations or {}
        self.durations.setdefault(phase, deque(maxlen=KEPT)).append(seconds)


class Members:
    """The agents, and indexes of them: sets of ids that are kept up to date, not made again.

    Every change of one agent costs the same, however many agents there are.
    """

    def __init__(self) -> None:
        self._by_id: dict[ClientId, Member] = {}
        # of the forgotten: their newest accepted steps, which orders repeat should they come back
        self.departed: dict[ClientId, int] = {}
        self.known: set[ClientId] = set()  # all agents that have joined
        self.present: set[ClientId] = set()  # some of the known
        self.trusted: set[ClientId] = set()  # present and not in quarantine: who can be invited
        self.unconfirmed: set[ClientId] = set()  # present before a roll call, not seen since
        self.barred: set[ClientId] = set()  # in quarantine, present or not
        self.troubled: set[ClientId] = set()  # their newest work came to nothing
        self.listed: set[ClientId] = set()  # those with an entry of the roster
        self.readers: set[ClientId] = set()  # they read orders with a `brief`
        self.expelled: set[ClientId] = set()  # they are no members any more
        self._indexes = [one for one in vars(self).values() if isinstance(one, set)]
        self._leave_next: list[
            tuple[float, ClientId]
        ] = []  # a heap of those who leave; some changed their mind
        self.rollcall_until: float | None = None  # then the unconfirmed have left

    def __repr__(self) -> str:
        return f"<Members: {len(self.present)} of {len(self.known)} agents>"

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_id.values()))  # a copy: another thread may look

    def __getitem__(self, client: ClientId) -> Member:
        return self._by_id[client]

    def take_times(self, took: Mapping[ClientId, float]) -> None:
        """How long each reporter of a round took."""
        last = max(took, key=lambda one: took[one], default="")
        for client, seconds in took.items():
            member = self.of(client)
            member.takes = round(seconds, 3)
            if member.rounds >= RECENT:  # what was long ago counts half, and again half
                member.rounds, member.last = member.rounds // 2, member.last // 2
            member.rounds += 1
            member.last += client == last and len(took) > 2

    def get(self, client: ClientId) -> Member | None:
        """The entry of an agent; None if nothing is known of it."""
        return self._by_id.get(client)

    def of(self, client: ClientId) -> Member:
        """The same, ready to be filled where nothing is known yet."""
        member = self._by_id.get(client)
        if member is None:
            member = Member(client, accepted=self.departed.pop(client, None))
            self._by_id[client] = member
        return member

    def by_agent(self, fact: Callable[[Member], T | None]) -> dict[ClientId, T]:
        """A fact of all agents of whom it is known."""
        return {one.id: value for one in self if (value := fact(one)) is not None}

    @property
    def evaluation(self) -> dict[ClientId, Json]:
        """The figures of each agent's newest evaluation, by mode."""
        return self.by_agent(lambda one: one.evaluation)

    @property
    def trained(self) -> dict[ClientId, int]:
        """The newest training round of each agent that was drawn for one."""
        return self.by_agent(lambda one: one.trained)

    @property
    def refused(self) -> dict[ClientId, tuple[int, int]]:
        """The steps with refused reports of each agent that has some: how many, and the last one."""
        return self.by_agent(lambda one: one.refused)

    @property
    def samples(self) -> dict[ClientId, tuple[int, int]]:
        """Samples for training and for tests, of each agent whose status has come."""
        return self.by_agent(lambda one: one.samples)

    def note_samples(self, samples: Mapping[ClientId, tuple[int, int]]) -> None:
        """What agents state of their data."""
        for client, numbers in samples.items():
            self.of(client).samples = numbers

    def forget(self, client: ClientId) -> None:
        """Nothing is known of this agent any more but its newest accepted step."""
        member = self._by_id.pop(client, None)
        if member is None:
            return
        for index in self._indexes:
            index.discard(client)
        if member.accepted is not None:
            self.departed[client] = member.accepted
        self._leave_next = [one for one in self._leave_next if one[1] != client]
        heapq.heapify(self._leave_next)

    # -- presence ----------------------------------------------------------------------------------

    def join(self, client: ClientId) -> None:
        """The agent is there. If it was away, it may be able to do now what it could not do before."""
        member = self.of(client)
        if client not in self.present or member.leaves_at is not None:
            self._excuse(client, "failing")
        member.leaves_at = None
        self.known.add(client)
        self.present.add(client)
        if member.quarantine is None:
            self.trusted.add(client)
        self.unconfirmed.discard(client)

    def leave(self, client: ClientId) -> None:
        """The agent is gone, at once."""
        for index in (self.present, self.trusted, self.unconfirmed):
            index.discard(client)
        member = self._by_id.get(client)
        if member is not None:
            member.leaves_at = None

    def leave_at(self, until: float, clients: Iterable[ClientId]) -> None:
        """These agents are gone at this time unless they join again. An earlier time stays."""
        for client in clients:
            member = self._by_id[client]
            if member.leaves_at is None:
                member.leaves_at = until
                heapq.heappush(self._leave_next, (until, client))

    @property
    def next_leaves_at(self) -> float | None:
        """When the next agent counts as gone; None if no agent is leaving."""
        heap = self._leave_next
        while heap:
            until, client = heap[0]
            if self._by_id[client].leaves_at == until:
                return until
            heapq.heappop(heap)  # it returned, or is gone already
        return None

    def call_roll(self, until: float) -> None:
        """All present agents must join again until this time. A roll call that ends later stays open that long."""
        self.unconfirmed |= self.present
        for _, client in self._leave_next:
            self._by_id[client].leaves_at = None  # the roll call decides
        self._leave_next.clear()
        self.rollcall_until = max(until, self.rollcall_until or until)

    def end_absences(self, now: float) -> list[ClientId]:
        """Agents that did not answer the roll call, or left and did not return in time, are gone. Returns them.

        As a laptop that sleeps they were not there, and not silent.
        """
        gone: list[ClientId] = []
        if self.rollcall_until is not None and now >= self.rollcall_until:
            self.rollcall_until = None
            gone += self.unconfirmed
        while (until := self.next_leaves_at) is not None and now >= until:
            gone.append(heapq.heappop(self._leave_next)[1])
        for client in gone:
            self.leave(client)
            self._excuse(client, "silent")
        return gone

    # -- quarantine and rests ----------------------------------------------------------------------

    def bar(self, client: ClientId, why: str) -> None:
        """The agent is in quarantine: it is not invited any more, whether it is present or not."""
        self.of(client).quarantine = why
        self.barred.add(client)
        self.trusted.discard(client)

    def unbar(self, client: ClientId) -> None:
        """The agent can be invited again, and nothing is counted against it."""
        member = self._by_id[client]
        member.quarantine = member.refused = None
        self.barred.discard(client)
        if client in self.present:
            self.trusted.add(client)

    def note_trouble(
        self, client: ClientId, kind: Kind, step: int, round_: int, why: str = ""
    ) -> Trouble | None:
        """Count work that came to nothing, once per step. Returns the trouble if the agent rests from now on.

        Args:
            client: the agent.
            kind: of the trouble.
            step: the number of the step or order.
            round_: complete rounds.
            why: the agent's reason.
        """
        member = self.of(client)
        before = member.trouble
        if before is not None and before.step == step:
            return None
        times = 1 if before is None else before.times + 1
        rest = min(2**times, LONGEST) if times >= PATIENCE else 0
        member.trouble = Trouble(kind, times, step, round_ + rest, why, member.has_reported)
        self.troubled.add(client)
        return member.trouble if rest else None

    def reported(self, client: ClientId) -> None:
        """The agent's work has come to something."""
        member = self.of(client)
        member.has_reported = True
        member.trouble = None
        self.troubled.discard(client)

    def _excuse(self, client: ClientId, kind: Kind) -> None:
        """Trouble of this kind does not count any more."""
        member = self._by_id[client]
        if member.trouble is not None and member.trouble.kind == kind:
            member.trouble = None
            self.troubled.discard(client)

    @property
    def quarantined(self) -> dict[ClientId, str]:
        """Why each of some agents is not invited any more."""
        return {client: self._by_id[client].quarantine or "" for client in self.barred}

    def troubles(self) -> dict[ClientId, Trouble]:
        """The agents whose newest work came to nothing."""
        troubles = ((client, self._by_id[client].trouble) for client in self.troubled)
        return {client: trouble for client, trouble in troubles if trouble is not None}

    @property
    def suspects(self) -> frozenset[ClientId]:
        """Agents in trouble that have never reported, as far as is known."""
        return frozenset(
            client for client, trouble in self.troubles().items() if not trouble.has_reported
        )

    # -- accepted reports --------------------------------------------------------------------------

    def accepted(self, client: ClientId) -> int:
        """The newest step whose report was accepted from this agent, forgotten or not; 0 for none."""
        member = self._by_id.get(client)
        accepted = self.departed.get(client) if member is None else member.accepted
        return accepted or 0

    def accept(self, client: ClientId, step: int) -> None:
        """A report of the open step is in the spool. The checkpoint learns of it with the fold: until then the spool knows."""
        member = self.of(client)
        if member.accepted_before is None:
            member.accepted_before = member.accepted or 0
        member.accepted = step

    def take_back(self, client: ClientId) -> None:
        """The report of the open step is gone, and must come again."""
        member = self.of(client)
        member.accepted, member.accepted_before = member.accepted_before or 0, None

    def settle(self) -> None:
        """The step is over: nothing is taken back any more."""
        for member in self:
            member.accepted_before = None

    # -- a restart ---------------------------------------------------------------------------------

    def to_json(self) -> Json:
        """What the run's part of a checkpoint keeps, by column. Of the open step the spool knows who has reported."""
        saved: dict[str, Json] = {column: {} for column in COLUMNS}
        saved["accepted"] |= self.departed
        for member in self:
            facts = _kept(member)
            if facts == NOTHING_KEPT:  # of many agents: without a look at each fact
                continue
            for own, value in zip(saved.values(), facts, strict=True):
                if value is not None:
                    own[member.id] = value
            if member.accepted_before is not None:
                saved["accepted"][member.id] = member.accepted_before
        return saved

    def engine_json(self) -> Json:
        """What the engine's part of a checkpoint keeps, all but the durations of a run that uses them."""
        return {
            "known": sorted(self.known),
            "present": sorted(self.present),
            "refused": self.refused,
            "quarantined": self.quarantined,
            "rests": {client: asdict(trouble) for client, trouble in self.troubles().items()},
        }

    @classmethod
    def from_json(cls, engine: Mapping[str, Any], run: Mapping[str, Any]) -> Members:
        """The agents as both parts of a checkpoint have them. Who has reported is in neither: all have the benefit of the doubt."""
        members = cls()
        for client in engine["known"]:
            members.of(client).has_reported = True
            members.known.add(client)
        for client, (count, last) in engine["refused"].items():
            members.of(client).refused = (count, last)
        for client, why in engine["quarantined"].items():
            members.bar(client, why)
        for client in engine["present"]:
            members.join(client)
        for client, own in engine["rests"].items():
            members.of(client).trouble = Trouble(**own)
            members.troubled.add(client)
        for phase, durations in engine["timing"].get("durations", {}).items():
            for client, seconds in durations.items():
                for one in seconds:
                    members.of(client).took(phase, one)
        accepted = run.get("accepted", {})
        members.departed = {one: step for one, step in accepted.items() if one not in members.known}
        for name in COLUMNS:
            for client, value in run.get(name, {}).items():
                if client not in members.departed:
                    setattr(members.of(client), name, value)
        return members
