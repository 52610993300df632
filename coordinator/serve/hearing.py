"""Whom the coordinator hears: all agents, by wildcards; while one of them floods it, the others alone, by name.

A message beyond the limits of its agent is dropped, but to receive it costs the coordinator its time. No broker lets a client
leave one topic of a wildcard, so the wildcard gives way to the names of all other agents that the run knows. After
`AWAY_S` all are heard again; newcomers wait until then, for brokers retain their statuses. In a larger fleet than
`MAX_NAMES` nobody is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from covey.coordinator.engine.members import Members
from covey.shared.mqtt.program import Effect, Subscribe, Unsubscribe
from covey.shared.programs.timers import earliest
from covey.shared.strategies.base import ClientId
from covey.shared.wire.topics import Topics

AWAY_S = 60.0
MAX_NAMES = 10_000
AT_ONCE = 500  # topics in a packet


@dataclass(frozen=True)
class Flooding:
    """The topics of an agent were left."""

    agent: ClientId


class Hearing:
    """The subscriptions to the topics of agents, on each broker.

    Args:
        topics: of the federation.
        members: of the run.
    """

    def __init__(self, topics: Topics, members: Members) -> None:
        self._topics = topics
        self._members = members
        self._wildcards: dict[int, set[str]] = {}  # by broker: what is read of all agents
        self._left: dict[int, set[ClientId]] = {}  # by broker: the agents that are not heard
        self._back_at: dict[int, float] = {}  # by broker: when all are heard again

    def __repr__(self) -> str:
        return f"<Hearing: without {self._left}>"

    def connected(self, shard: int, filters: Iterable[str]) -> None:
        """A broker came up, and these filters are subscribed: all agents are heard there."""
        self._wildcards[shard] = {self._topics.every_status, self._topics.every_report} & {*filters}
        self._left.pop(shard, None)
        self._back_at.pop(shard, None)

    def reports(self, shard: int, *, wanted: bool) -> list[Effect]:
        """Begin to read the reports on a broker, or leave them to its aggregator."""
        every_report = self._topics.every_report
        wildcards = self._wildcards.setdefault(shard, set())
        (wildcards.add if wanted else wildcards.discard)(every_report)
        filters = self._names({every_report}, shard) if shard in self._left else [every_report]
        return _packets(Subscribe if wanted else Unsubscribe, filters, shard)

    def has_left(self, agent: ClientId, shard: int) -> bool:
        """Whether this agent is not heard on this broker: what still comes was under way."""
        return agent in self._left.get(shard, ())

    def leave(self, agent: ClientId, shard: int, now: float) -> list[Effect | Flooding]:
        """Hear all other agents alone; nothing where they are too many."""
        wildcards = self._wildcards.get(shard, set())
        if not wildcards or len(self._known()) > MAX_NAMES:
            return []
        is_first = shard not in self._left
        self._left.setdefault(shard, set()).add(agent)
        if not is_first:
            topics = [self._topics.status(agent), self._topics.report(agent)]
            return [Unsubscribe(topics, shard), Flooding(agent)]
        self._back_at[shard] = now + AWAY_S
        names = _packets(Subscribe, self._names(wildcards, shard), shard)
        # first of all the flood ends: what others send meanwhile, they send again
        return [Unsubscribe(sorted(wildcards), shard), *names, Flooding(agent)]

    @property
    def wake_at(self) -> float | None:
        """When agents are heard again that were left; None: none was."""
        return earliest(*self._back_at.values())

    def back(self, now: float) -> list[Effect]:
        """Hear all agents again whose time is over."""
        effects: list[Effect] = []
        for shard in [shard for shard, at in self._back_at.items() if at <= now]:
            wildcards = self._wildcards[shard]
            effects += _packets(Subscribe, sorted(wildcards), shard)
            effects += _packets(Unsubscribe, self._names(wildcards, shard), shard)
            self.connected(shard, wildcards)
        return effects

    def _known(self) -> set[ClientId]:
        return {*self._members.listed, *self._members.known}

    def _names(self, wildcards: Iterable[str], shard: int) -> list[str]:
        """The topics, one by one, of all agents that were not left."""
        agents = sorted(self._known() - self._left[shard])
        found: list[str] = []
        if self._topics.every_status in wildcards:
            found += map(self._topics.status, agents)
        if self._topics.every_report in wildcards:
            found += map(self._topics.report, agents)
        return found


def _packets(
    kind: type[Subscribe | Unsubscribe], topics: Sequence[str], shard: int
) -> list[Effect]:
    return [
        kind(topics[first : first + AT_ONCE], shard) for first in range(0, len(topics), AT_ONCE)
    ]
