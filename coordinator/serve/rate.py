"""How much an agent may send to the coordinator. Pure: time comes in as a number of seconds.

The limits are ample for an agent that follows the protocol: a burst holds its largest report twice, so that whoever
sends a report again gets through, and a bucket is full again after a few seconds. They hold before anything is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

STATUSES = (20.0, 40.0)  # of one agent: per second, at once
STRANGERS = (200.0, 5_000.0)  # statuses of all agents together that the roster does not know
STRANGERS_BYTES = (2.0 * 2**20, 16.0 * 2**20)
REFILL_S = 4.0  # from empty to full, for parts
LEAST_PARTS = 64  # at once, however small the reports are
LARGEST_PART = 8 << 20  # bytes that the protocol allows


@dataclass
class Bucket:
    """A token bucket: `burst` at once and `per_s` in the long run. It begins full."""

    per_s: float
    burst: float
    at: float
    level: float = math.inf

    def take(self, amount: float, now: float) -> bool:
        """Take this much if it is there."""
        gained = max(now - self.at, 0.0) * self.per_s
        self.level = min(self.level + gained, self.burst)
        self.at = now
        if amount > self.level:
            return False
        self.level -= amount
        return True

    def ready_at(self, amount: float) -> float:
        """When this much will be there, if nothing is taken meanwhile."""
        missing = amount - min(self.level, self.burst)
        return self.at + max(missing, 0.0) / self.per_s


@dataclass
class _Parts:
    messages: Bucket
    content: Bucket  # bytes


class Rates:
    """The buckets of all agents, and one that agents share which nobody knows yet."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._statuses: dict[str, Bucket] = {}
        self._parts: dict[str, _Parts] = {}
        self._strangers: tuple[Bucket, Bucket] | None = None

    def status(self, agent: str, now: float) -> bool:
        """May this agent's next status be read?"""
        bucket = self._statuses.get(agent)
        if bucket is None:
            bucket = self._statuses[agent] = Bucket(*STATUSES, at=now)
        return bucket.take(1, now)

    def status_at(self, agent: str) -> float:
        """When the next status of an agent may be read that has sent too many."""
        return self._statuses[agent].ready_at(1)

    def stranger(self, size: int, now: float) -> bool:
        """May a status of this many bytes be read, from an agent that the roster does not know?"""
        if self._strangers is None:
            self._strangers = Bucket(*STRANGERS, at=now), Bucket(*STRANGERS_BYTES, at=now)
        messages, content = self._strangers
        return messages.take(1, now) and content.take(size, now)

    def part(self, agent: str, size: int, largest_report: int, now: float) -> bool:
        """May this agent's next part of a report be read? Sizes in bytes."""
        messages = max(2 * math.ceil(largest_report / self._part_bytes), LEAST_PARTS)
        content = 3 * largest_report + 2 * LARGEST_PART  # two reports, and what frames their parts
        own = self._parts.get(agent)
        if own is None:
            own = self._parts[agent] = _Parts(Bucket(1, 1, at=now), Bucket(1, 1, at=now))
        own.messages.per_s, own.messages.burst = messages / REFILL_S, messages
        own.content.per_s, own.content.burst = content / REFILL_S, content
        return own.messages.take(1, now) and own.content.take(size, now)

    def __len__(self) -> int:
        """Agents that have buckets."""
        return len(self._statuses.keys() | self._parts.keys())

    def keep(self, agents: Collection[str]) -> None:
        """Forget everybody else."""
        self._statuses = {
            agent: bucket for agent, bucket in self._statuses.items() if agent in agents
        }
        self._parts = {agent: parts for agent, parts in self._parts.items() if agent in agents}
