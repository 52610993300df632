"""How much an agent may send to the coordinator. Pure: time comes in as a number of seconds.

The limits are ample for an agent that follows the protocol: a burst holds its largest report twice, so that an agent that
sends a report again gets through, and a bucket is full again after a few seconds. They hold before anything is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

MIB = 2.0**20
# each: per second, at once
STATUSES = (20.0, 40.0)  # of one agent
UNKNOWN_STATUSES = (200.0, 5_000.0)  # of all agents together that the roster does not know
UNKNOWN_BYTES = (2.0 * MIB, 16.0 * MIB)
REFILL_S = 4.0  # from empty to full, for parts
MIN_PARTS = 64  # at once, however small the reports are
MAX_PART_BYTES = 8 << 20  # bytes that the protocol allows


@dataclass
class Bucket:
    """A token bucket: `burst` at once and `per_s` in the long run. It begins full."""

    per_s: float
    burst: float
    at: float
    level: float = math.inf

    def take(self, amount: float, now: float) -> bool:
        """Take this much if it is there."""
        passed = max(now - self.at, 0.0)
        gained = passed * self.per_s
        self.level = min(self.level + gained, self.burst)
        self.at = now
        if amount > self.level:
            return False
        self.level -= amount
        return True

    def resize(self, burst: float) -> None:
        """Hold this much at once, and fill within `REFILL_S`."""
        self.burst = burst
        self.per_s = burst / REFILL_S

    def ready_at(self, amount: float) -> float:
        """When this much will be there, if nothing is taken meanwhile."""
        missing = amount - min(self.level, self.burst)
        return self.at + max(missing, 0.0) / self.per_s


@dataclass
class _Parts:
    """Messages and their bytes: both must be within their limits."""

    messages: Bucket
    content: Bucket  # bytes

    def take(self, size: int, now: float) -> bool:
        return self.messages.take(1, now) and self.content.take(size, now)


class Rates:
    """The buckets of all agents, and one that agents share which nobody knows yet."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._statuses: dict[str, Bucket] = {}  # by agent, of those that the roster knows
        self._parts: dict[str, _Parts] = {}  # by agent
        self._unknown: _Parts | None = None  # shared by agents that nobody knows; None: none came

    def status(self, agent: str, now: float) -> bool:
        """May this agent's next status be read?"""
        if agent not in self._statuses:
            self._statuses[agent] = Bucket(*STATUSES, at=now)
        return self._statuses[agent].take(1, now)

    def status_at(self, agent: str) -> float:
        """When the next status of an agent may be read that has sent too many."""
        return self._statuses[agent].ready_at(1)

    def stranger(self, size: int, now: float) -> bool:
        """May a status of this many bytes be read, from an agent that the roster does not know?"""
        if self._unknown is None:
            statuses = Bucket(*UNKNOWN_STATUSES, at=now)
            self._unknown = _Parts(statuses, Bucket(*UNKNOWN_BYTES, at=now))
        return self._unknown.take(size, now)

    def part(self, agent: str, size: int, largest_report: int, now: float) -> bool:
        """May this agent's next part of a report be read? Sizes in bytes."""
        if agent not in self._parts:
            self._parts[agent] = _Parts(Bucket(1, 1, at=now), Bucket(1, 1, at=now))
        own = self._parts[agent]
        parts_of_report = math.ceil(largest_report / self._part_bytes)
        own.messages.resize(max(2 * parts_of_report, MIN_PARTS))
        # two reports, and what frames their parts
        own.content.resize(3 * largest_report + 2 * MAX_PART_BYTES)
        return own.take(size, now)

    def __len__(self) -> int:
        """Agents that have buckets."""
        return len(self._statuses.keys() | self._parts.keys())

    def keep(self, agents: Set[str]) -> None:
        """Forget everybody else."""
        for agent in self._statuses.keys() - agents:
            del self._statuses[agent]
        for agent in self._parts.keys() - agents:
            del self._parts[agent]
