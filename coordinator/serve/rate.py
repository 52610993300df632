"""How much an agent may send to the coordinator. Pure: time comes in as a number of seconds.

The limits are ample for an agent that follows the protocol: a burst holds its largest report twice, so that an agent that
sends a report again gets through, and a bucket is full again after a few seconds. They hold before anything is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from covey.shared.mqtt.throttle import Bucket
from covey.shared.strategies.base import ClientId

MIB = 2.0**20
# each: per second, at once
STATUSES = (20.0, 40.0)  # of one agent
UNKNOWN_STATUSES = (500.0, 10_000.0)  # of all agents together that the roster does not know
UNKNOWN_BYTES = (2.0 * MIB, 16.0 * MIB)
# of one agent, beyond its limits or refused; a long one counts as several. Then its topics are left
FLOOD = (20.0, 200.0)
LONG_BYTES = 1 << 16
MAX_SENDERS = 10_000  # names of which this is known, apart from those of the run
REFILL_S = 4.0  # from empty to full, for parts
MIN_PARTS = 64  # at once, however small the reports are
MAX_PART_BYTES = 8 << 20  # bytes that the protocol allows


@dataclass(slots=True)
class _Limits:
    """Messages and their bytes: both must be within their limits."""

    messages: Bucket
    content: Bucket  # bytes

    def take(self, size: int, now: float) -> bool:
        return self.messages.take(1, now) and self.content.take(size, now)


@dataclass(slots=True)
class _OfAgent:
    """The buckets of one agent."""

    statuses: Bucket
    parts: _Limits
    beyond: Bucket  # messages that were dropped


class Rates:
    """The buckets of all agents, and one that unknown agents share."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._agents: dict[ClientId, _OfAgent] = {}
        self._unknown: _Limits | None = None  # shared by unknown agents; None: none came

    def status(self, agent: str, now: float) -> bool:
        """Whether this agent's next status may be read."""
        return self._of(agent, now).statuses.take(1, now)

    def status_at(self, agent: str) -> float:
        """When the next status of an agent may be read that has sent too many."""
        return self._agents[agent].statuses.ready_at(1)

    def stranger(self, size: int, now: float) -> bool:
        """Whether a status of this many bytes may be read, from an agent that the roster does not know."""
        shared = self._unknown
        if shared is None:
            shared = _Limits(Bucket(*UNKNOWN_STATUSES, at=now), Bucket(*UNKNOWN_BYTES, at=now))
            self._unknown = shared
        return shared.take(size, now)

    def part(self, agent: str, size: int, largest_report: int, now: float) -> bool:
        """Whether this agent's next part of a report may be read. Sizes in bytes."""
        own = self._of(agent, now).parts
        report_in_parts = largest_report / self._part_bytes
        parts_of_report = math.ceil(report_in_parts)
        of_two_reports = 2 * parts_of_report
        at_once = max(of_two_reports, MIN_PARTS)
        _resize(own.messages, at_once)
        # two reports, and what frames their parts
        reports_bytes = 3 * largest_report
        frames_bytes = 2 * MAX_PART_BYTES
        content_bytes = reports_bytes + frames_bytes
        _resize(own.content, content_bytes)
        return own.take(size, now)

    def floods(self, agent: str, size: int, now: float) -> bool:
        """Whether one more message of this agent, of this many bytes, was dropped than an honest agent could cause."""
        if agent not in self._agents and len(self._agents) >= MAX_SENDERS:
            return False
        own = self._of(agent, now)
        # one that repeats a report of many parts is honest, if they may be parts of this run
        burst = own.parts.messages.burst if size <= 2 * self._part_bytes else 0.0
        share = MIN_PARTS / max(burst, MIN_PARTS)
        return not own.beyond.take((1 + size / LONG_BYTES) * share, now)

    def _of(self, agent: str, now: float) -> _OfAgent:
        own = self._agents.get(agent)
        if own is None:
            # `part` gives those for parts their sizes
            parts = _Limits(Bucket(1, 1, at=now), Bucket(1, 1, at=now))
            statuses, beyond = Bucket(*STATUSES, at=now), Bucket(*FLOOD, at=now)
            own = self._agents[agent] = _OfAgent(statuses, parts, beyond)
        return own

    def __len__(self) -> int:
        """Agents that have buckets."""
        return len(self._agents)

    def forget(self, agent: ClientId) -> None:
        """Its next message has full buckets."""
        self._agents.pop(agent, None)

    def keep(self, agents: Set[ClientId]) -> None:
        """Forget all others."""
        for agent in self._agents.keys() - agents:
            del self._agents[agent]


def _resize(bucket: Bucket, burst: float) -> None:
    """Hold this much at once, and fill within `REFILL_S`."""
    bucket.burst = burst
    bucket.per_s = burst / REFILL_S
