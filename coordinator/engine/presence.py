"""Which agents of a federation are there. Pure: time is an argument, in the engine's seconds.

An agent that left counts as present for `absence_s` more: a lost session that comes back costs nothing. A roll call asks
all present agents to answer; an agent that does not answer in time has left.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Set

from covey.shared.strategies.base import ClientId


class Presence:
    """The known agents, and those of them who can be invited.

    Every change of one agent costs the same, however many agents there are: sets are kept up to date, not made again.

    Args:
        barred: the agents in quarantine, present or not, as they are at any time: a view of the caller's.
    """

    def __init__(self, barred: Set[ClientId] = frozenset()) -> None:
        self._barred = barred
        self.known: set[ClientId] = set()  # all agents ever seen and not forgotten
        self.present: set[ClientId] = set()  # some of the known
        self.trusted: set[ClientId] = set()  # present and not barred: who can be invited
        self.leaving: dict[ClientId, float] = {}  # present; counts as gone at this time
        self._leave_next: list[
            tuple[float, ClientId]
        ] = []  # a heap of those; some changed their mind
        self.unconfirmed: set[ClientId] = set()  # present before a roll call, not seen since
        self.rollcall_until: float | None = None  # then the unconfirmed have left

    def __repr__(self) -> str:
        return f"<Presence: {len(self.present)} of {len(self.known)} agents>"

    def join(self, client: ClientId) -> None:
        """The agent is there."""
        self.known.add(client)
        self.present.add(client)
        if client not in self._barred:
            self.trusted.add(client)
        self.unconfirmed.discard(client)
        self.leaving.pop(client, None)

    def leave(self, client: ClientId) -> None:
        """The agent is gone, at once."""
        self.present.discard(client)
        self.trusted.discard(client)
        self.unconfirmed.discard(client)
        self.leaving.pop(client, None)

    def leave_at(self, until: float, clients: Iterable[ClientId]) -> None:
        """These agents are gone at this time unless they join again. An earlier time stays."""
        for client in clients:
            if client not in self.leaving:
                self.leaving[client] = until
                heapq.heappush(self._leave_next, (until, client))

    @property
    def next_leaves_at(self) -> float | None:
        """When the next agent counts as gone; None if no agent is leaving."""
        heap = self._leave_next
        while heap:
            until, client = heap[0]
            if self.leaving.get(client) == until:
                return until
            heapq.heappop(heap)  # it returned, or is gone already
        return None

    def forget(self, client: ClientId) -> None:
        """The agent is gone, and not known any more."""
        self.leave(client)
        self.known.discard(client)
        self._leave_next = [one for one in self._leave_next if one[1] != client]
        heapq.heapify(self._leave_next)

    def bar(self, client: ClientId) -> None:
        """The agent has come among the barred: it is not invited any more, whether it is present or not."""
        self.trusted.discard(client)

    def unbar(self, client: ClientId) -> None:
        """The agent is among the barred no longer: it can be invited again."""
        if client in self.present:
            self.trusted.add(client)

    def restore(self, known: Iterable[ClientId], present: Iterable[ClientId]) -> None:
        """Who was there before a restart."""
        self.known = set(known)
        self.present = set(present)
        self.trusted = self.present - self._barred

    def call_roll(self, until: float) -> None:
        """All present agents must join again until this time. A roll call that ends later stays open that long."""
        self.unconfirmed = set(self.present)
        self.leaving.clear()  # the roll call decides
        self._leave_next.clear()
        self.rollcall_until = max(until, self.rollcall_until or until)

    def end_rollcall(self) -> Collection[ClientId]:
        """Who has not answered by now has left. Returns these agents."""
        self.rollcall_until = None
        silent = tuple(self.unconfirmed)
        self.present -= self.unconfirmed
        self.trusted -= self.unconfirmed
        self.unconfirmed.clear()
        return silent

    def end_absences(self, now: float) -> Collection[ClientId]:
        """Agents that left and did not return in time are gone. Returns them."""
        overdue: list[ClientId] = []
        while True:
            until = self.next_leaves_at
            if until is None or now < until:
                return overdue
            _, client = heapq.heappop(self._leave_next)
            overdue.append(client)
            self.leave(client)
