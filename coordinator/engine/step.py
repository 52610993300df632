"""The open step: one attempt at one phase, from the invitations to the fold. Pure: time is an argument."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from covey.coordinator.engine.members import Members
from covey.coordinator.engine.rules import RoundRules
from covey.shared.strategies.base import ClientId, Expected, Order, Phase, Strategy

USUAL_TIMES = (
    10.0  # the median duration, without another report: then a step with its quorum closes
)
USUAL_S = 30.0  # at least: some devices are much slower than others
SUSPECT_TIMES = 3.0  # the same where only agents are waited for whose work always failed
SUSPECT_S = 1.0
MAX_REASON = 500  # characters of a reason that are kept


class Stage(Enum):
    """Of a round engine."""

    GATHERING = "gathering"
    PLANNING = "planning"
    OPEN = "open"
    STREAMING = "buffered"  # of buffered rounds alone
    FOLDING = "folding"
    DONE = "finished"


class Spare:
    """Agents in a fixed order, of whom the first that is free is asked for again and again.

    An agent that is found busy or away loses its place, and takes it again when it is offered. So the first free agent
    is found without a look at the others, however many there are.

    Args:
        order: the agents, first choice first.
    """

    def __init__(self, order: Sequence[ClientId]) -> None:
        places = range(len(order))
        self._order = order
        self._places = dict(zip(order, places, strict=True))
        self._heap = list(places)  # places of agents that may be free
        self._in_heap = set(places)

    def __repr__(self) -> str:
        return f"<Spare: {len(self._heap)} agents>"

    def offer(self, client: ClientId) -> None:
        """The agent may be free now. An agent that is not one of these is left out."""
        place = self._places.get(client)
        if place is None or place in self._in_heap:
            return
        heapq.heappush(self._heap, place)
        self._in_heap.add(place)

    def first(self, free: Set[ClientId], busy: Collection[ClientId]) -> ClientId | None:
        """The first agent that is among `free` and not among `busy`; None if there is none."""
        heap = self._heap
        while heap:
            client = self._order[heap[0]]
            if client in free and client not in busy:
                return client
            self._in_heap.discard(heapq.heappop(heap))
        return None


@dataclass(frozen=True)
class Asked:
    """An agent's task in the open step: made once with its order, and the same until the step is over.

    It is made again by a restarted coordinator, and where the method forgets an agent.
    """

    order: Order  # as the method made it
    work: bytes  # the digest of the work that the agent got


AllAsked = Mapping[ClientId, Asked]


def order_of(
    strategy: Strategy[Any], state: Any, phase: Phase, client: ClientId, asked: AllAsked
) -> Order:
    """The method's order for an agent: the one that it got, or the same made again."""
    known = asked.get(client)
    return strategy.order(state, phase, client) if known is None else known.order


@dataclass
class Step:
    """Who was invited, who answered, and when the step must end. Times are those of the engine, in seconds.

    The engine reports every agent that comes or goes (`came`, `went`), so that `awaited` and `free` are kept up to date
    and no event has to look at the whole cohort.
    """

    number: int  # never used for another step
    phase: Phase
    cohort: dict[ClientId, float]  # invited, in this order, and when; none but the forgotten leave
    spare: list[ClientId]  # who could be invited in place of another, in this order
    target: int  # with this many reports the step closes
    quorum: int  # with fewer the step is void
    opened: float = 0.0
    deadline: float = math.inf  # never before `opened`
    quorum_at: float | None = None  # when the quorum was reached; None before
    latest: float | None = None  # when the newest report came; None before the first
    reported: set[ClientId] = field(default_factory=set)  # some of the cohort
    failed: dict[ClientId, str] = field(default_factory=dict)  # others, and why; empty: not stated
    allowance_s: float = 0.0  # that this step may take longer than others
    over_select: float = 1.0  # invited agents per needed report
    adapted_s: float | None = None  # the limit that adapts to durations; None: that of the rules
    was_resumed: bool = False  # a restart came while it was open
    took: dict[ClientId, float] = field(default_factory=dict)  # from invitation to report
    asked: dict[ClientId, Asked] = field(default_factory=dict)  # with the orders of this process
    suspects: frozenset[ClientId] = frozenset()  # whose work always came to nothing
    awaited: set[ClientId] = field(default_factory=set)  # the rest of the cohort, if present
    free: Spare = field(init=False)  # those of `spare` who may be invited
    _durations: list[float] = field(default_factory=list)  # of reports that came, ascending

    def __post_init__(self) -> None:
        self.free = Spare(self.spare)

    @classmethod
    def of(cls, number: int, phase: Phase, clients: Collection[ClientId], now: float) -> Step:
        """The step of a fold of buffered rounds: these agents and no others have reported."""
        return cls(
            number=number,
            phase=phase,
            cohort=dict.fromkeys(clients, now),
            spare=[],
            target=len(clients),
            quorum=1,
            opened=now,
            reported=set(clients),
        )

    def owes_report(self, client: ClientId) -> bool:
        """Whether the agent is in the cohort and has not reported."""
        return client in self.cohort and client not in self.reported

    @property
    def has_target(self) -> bool:
        return len(self.reported) >= self.target

    @property
    def has_quorum(self) -> bool:
        return len(self.reported) >= self.quorum

    def look_around(self, present: Set[ClientId]) -> None:
        """These agents are there when the step opens."""
        there = self.cohort.keys() & present
        self.awaited = there - self.reported - self.failed.keys()

    def came(self, client: ClientId) -> None:
        """An agent is there, perhaps again: it can answer, or it can be invited."""
        self.free.offer(client)
        if self.owes_report(client) and client not in self.failed:
            self.awaited.add(client)

    def went(self, client: ClientId) -> None:
        """An agent is gone."""
        self.awaited.discard(client)

    def invite(self, client: ClientId, now: float) -> None:
        """A spare agent that is present takes a vacant slot."""
        self.cohort[client] = now
        self.awaited.add(client)

    def report_came(self, client: ClientId, now: float) -> None:
        """Count a report; one that comes after a failure replaces it."""
        self.reported.add(client)
        self.failed.pop(client, None)
        self.awaited.discard(client)
        self.latest = now
        self.took[client] = now - self.cohort[client]
        insort(self._durations, self.took[client])
        if not self.has_quorum:
            return
        if self.quorum_at is None:
            self.quorum_at = now

    @property
    def common_reason(self) -> str:
        """Why all agents that did not report could not do the work, if all of them give one reason."""
        reasons = self.reasons
        if reasons.keys() != self.cohort.keys() - self.reported:
            return ""
        return common_reason(reasons)

    @property
    def reasons(self) -> dict[ClientId, str]:
        """Why agents failed, of those who state it."""
        return {client: why for client, why in self.failed.items() if why}

    def has_failed(self, client: ClientId, why: str = "") -> None:
        """The agent cannot do the work, for this reason, or its report was refused. Its task may change."""
        self.asked.pop(client, None)
        self.failed[client] = why or self.failed.get(client, "")
        self.awaited.discard(client)

    def reports_lost(self, clients: Collection[ClientId], present: Set[ClientId]) -> None:
        """These reports cannot be read any more; their agents are expected to send them again."""
        self.reported.difference_update(clients)
        self.awaited |= self.cohort.keys() & present & set(clients)
        if not self.has_quorum:
            self.quorum_at = None

    def set_aside(self, clients: Collection[ClientId]) -> None:
        """These reports do not count: their slots are vacant, as if their agents had failed."""
        self.reported.difference_update(clients)
        self.failed |= dict.fromkeys(clients, "")
        self.awaited.difference_update(clients)

    def forget(self, client: ClientId) -> None:
        """The agent leaves the step: its slot is vacant, and its report does not count."""
        self.spare = [one for one in self.spare if one != client]
        self.free = Spare(self.spare)
        self.suspects -= {client}
        for index in (self.reported, self.awaited):
            index.discard(client)
        for facts in (
            self.cohort,
            self.failed,
            self.took,
        ):  # or it would be learned when the step is over
            facts.pop(client, None)
        if not self.has_quorum:
            self.quorum_at = None

    def postpone(self, seconds: float) -> None:
        """No time has passed for so long."""
        self.opened += seconds
        self.deadline += seconds
        if self.quorum_at is not None:
            self.quorum_at += seconds
        if self.latest is not None:
            self.latest += seconds
        for client in self.cohort:
            self.cohort[client] += seconds

    def grace_end(self, rules: RoundRules) -> float | None:
        """When the rest is waited for no longer; None before the quorum is there, or without such a rule."""
        if self.quorum_at is None:
            return None
        ends: list[float] = []
        if rules.grace_s is not None:
            grace_end = self.quorum_at + rules.grace_s
            ends.append(grace_end)
        if rules.patience_s is not None and self.latest is not None:
            patience_end = self.latest + self._patience_s(rules.patience_s)
            ends.append(patience_end)
        return min(ends, default=None)

    def _patience_s(self, stated_s: float) -> float:
        """How long to wait for another report: it follows the durations of those that came.

        At most the stated time, or half of a limit that adapts. Agents that have never reported when they were invited are
        not waited for as long as others, which may be slow.
        """
        most = stated_s if self.adapted_s is None else self.adapted_s / 2
        if not self._durations:  # those of reports before a restart are lost
            return most + self.allowance_s
        usual = self._durations[len(self._durations) // 2]
        if self.awaited <= self.suspects:
            return min(most, max(SUSPECT_TIMES * usual, SUSPECT_S))
        return max(min(most, max(USUAL_TIMES * usual, USUAL_S)), self.allowance_s)

    def is_late(self, rules: RoundRules, now: float) -> bool:
        """Whether the deadline is over, or the grace period."""
        grace_end = self.grace_end(rules)
        if grace_end is not None and now >= grace_end:
            return True
        return now >= self.deadline

    def is_over(self, rules: RoundRules, trusted: Set[ClientId], now: float) -> bool:
        """Whether nothing more is to be waited for. `trusted` are the agents that are there and may be invited."""
        if self.has_target or self.is_late(rules, now):
            return True
        return not self.awaited and self._candidate(trusted, now) is None

    def refill(self, trusted: Set[ClientId], now: float) -> list[ClientId]:
        """Give vacant slots to spare agents, until enough of the cohort are at work or have reported."""
        needed = math.ceil((self.target * self.over_select) - 1e-9)
        invited: list[ClientId] = []
        for _ in range(needed - len(self.awaited) - len(self.reported)):
            client = self._candidate(trusted, now)
            if client is None:
                break
            self.invite(client, now)
            invited.append(client)
        return invited

    def _candidate(self, trusted: Set[ClientId], now: float) -> ClientId | None:
        """Who takes the next vacant slot, in the order of invitation; None where no agent can.

        An invitation in the second half, which cannot end in time, does not help.
        """
        if now >= self.opened + (self.deadline - self.opened) / 2:
            return None
        return self.free.first(trusted, self.cohort)

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps. Reports are in the spool, and times start again after a restart."""
        saved = {
            "number": self.number,
            "phase": asdict(self.phase),
            "cohort": list(self.cohort),
            "spare": self.spare,
            "target": self.target,
            "quorum": self.quorum,
            "failed": sorted(self.failed),
            "reasons": self.reasons,
            "over_select": self.over_select,
        }
        if self.adapted_s is not None:
            saved["adapted_s"] = self.adapted_s
        return saved

    @classmethod
    def from_json(
        cls,
        saved: Mapping[str, Any],
        reported: Collection[ClientId],
        now: float,
        *,
        rules: RoundRules,
        members: Members,
    ) -> Step:
        """The step as it was, with the reports that the spool has. It opens again now.

        Args:
            saved: as `to_json` made it.
            reported: the agents whose reports are in the spool.
            now: the time.
            rules: of the run.
            members: who is present, and who is suspected.
        """
        adapted_s: float | None = saved.get("adapted_s")
        limit_s = rules.deadline_s
        if adapted_s is not None:
            limit_s = adapted_s
        deadline = now + limit_s
        cohort: dict[ClientId, float] = dict.fromkeys(saved["cohort"], now)
        reasons = saved["reasons"]
        step = cls(
            number=saved["number"],
            phase=phase_from_json(saved["phase"]),
            cohort=cohort,
            spare=list(saved["spare"]),
            target=saved["target"],
            quorum=saved["quorum"],
            opened=now,
            deadline=deadline,
            reported=cohort.keys() & set(reported),
            over_select=saved["over_select"],
            adapted_s=adapted_s,
            was_resumed=True,
            suspects=members.suspects,
        )
        failed = set(saved["failed"]) - step.reported
        step.failed = {client: reasons.get(client, "") for client in failed}
        if step.reported:
            step.latest = now
            if step.has_quorum:
                step.quorum_at = now
        step.look_around(members.present)
        return step


def phase_from_json(saved: Mapping[str, Any]) -> Phase:
    """A phase as `dataclasses.asdict` and JSON have left it."""
    fields = dict(saved)
    fields["numbers"] = {
        name: Expected(**{**one, "words": tuple(one["words"])})
        for name, one in fields["numbers"].items()
    }
    if not isinstance(fields["cohort"], str):
        fields["cohort"] = tuple(fields["cohort"])
    return Phase(**fields)


def common_reason(reasons: Mapping[ClientId, str]) -> str:
    """The one reason why all these agents could not do their work; empty if there are several, or none."""
    alike = {_without_name(why, client) for client, why in reasons.items()}
    if len(alike) != 1:
        return ""
    return alike.pop()


def _without_name(why: str, client: ClientId) -> str:
    """The reason as it would read of any agent."""
    return why.removeprefix(f"{client}: ")[:MAX_REASON]
