"""Keeps one connection within the profile of its broker: what leaves when, and in packets of which size."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from covey.shared.mqtt.link import UNANSWERED, Subscribed
from covey.shared.mqtt.profiles import HEAD_BYTES, UNLIMITED, Profile

log = logging.getLogger(__name__)

Topics = Sequence[str]


@dataclass(slots=True)
class Bucket:
    """A token bucket: `burst` at once and `per_s` in the long run. It begins full. Pure: time is an argument."""

    per_s: float
    burst: float
    at: float
    level: float = math.inf

    def take(self, amount: float, now: float) -> bool:
        """Take this much if it is there."""
        passed_s = max(now - self.at, 0.0)
        self.level = min(self.level + (passed_s * self.per_s), self.burst)
        self.at = now
        if amount > self.level:
            return False
        self.level -= amount
        return True

    def owe(self, amount: float, now: float) -> float:
        """Take this much in any case. Returns how long to wait until it is there (s)."""
        if self.take(amount, now):
            return 0.0
        self.level -= amount
        return -self.level / self.per_s

    def ready_at(self, amount: float) -> float:
        """When this much will be there, if nothing is taken meanwhile."""
        wait_s = max(amount - min(self.level, self.burst), 0.0) / self.per_s
        return self.at + wait_s


class Throttle:
    """The packets of one connection that wait their turn, in order, and those that are under way.

    Args:
        profile: what the broker allows.
        at_once: messages under way at once, if the broker allows more.
    """

    def __init__(self, profile: Profile, at_once: int) -> None:
        self.profile = profile
        now = asyncio.get_running_loop().time()
        self._at_once = min(at_once, profile.unacknowledged)
        self._messages = _bucket(profile.steady_messages, profile.burst_messages, now)
        self._bytes = _bucket(profile.steady_bytes, profile.burst_bytes, now)
        self._subscribes = _bucket(profile.subscribes_per_s - 1, 1, now)
        self._door = asyncio.Lock()  # held by the message whose turn it is
        self._asking = asyncio.Lock()  # the same, for subscriptions
        self._left = asyncio.Event()  # set when a message is no longer under way
        self._under_way = 0
        self._bytes_under_way = 0
        self._subscribed: set[str] = set()
        self._complained: set[str] = set()  # topics of messages that were kept back
        self.has_ended = False

    def __repr__(self) -> str:
        return f"Throttle({self.profile}, {self._under_way} under way)"

    def keeps_back(self, topic: str, size: int, retain: bool) -> bool:
        """Whether the broker would end the connection for a message with a payload of this size. It is logged, once."""
        why = self.profile.refuses(topic, size, retain)
        if why and topic not in self._complained:
            self._complained.add(topic)
            log.warning("not published: %s", why)
        return bool(why)

    async def enter(self, size: int) -> bool:
        """Wait until a message with a payload of this size may leave; `leave` follows. False if the connection has ended."""
        async with self._door:
            while self._is_full(size) and not self.has_ended:
                self._left.clear()
                await self._left.wait()
            for bucket, amount in ((self._messages, 1), (self._bytes, size + HEAD_BYTES)):
                await self._taken(bucket, amount)
            if self.has_ended:
                return False
            self._under_way += 1
            self._bytes_under_way += size
            return True

    def leave(self, size: int) -> None:
        """A message is not under way any more."""
        self._under_way -= 1
        self._bytes_under_way -= size
        self._left.set()

    def end(self) -> None:
        """The connection has ended: what waits for its turn does not leave."""
        self.has_ended = True
        self._left.set()

    async def subscribe(
        self, topics: Topics, send: Callable[[Topics], Awaitable[Subscribed]]
    ) -> Subscribed:
        """Subscribe in as many packets as it takes. What exceeds the subscriptions of a connection counts as refused."""
        new = [topic for topic in topics if topic not in self._subscribed]
        excess = set(new[max(self.profile.subscriptions - len(self._subscribed), 0) :])
        refused = [topic for topic in topics if topic in excess]
        for packet in self._packets([topic for topic in topics if topic not in excess]):
            await self._turn_to_ask()
            answer = await send(packet)
            if not answer.answered:
                return UNANSWERED
            refused += answer.refused
            self._subscribed |= set(packet) - set(answer.refused)
        return Subscribed(refused=tuple(refused))

    async def unsubscribe(self, topics: Topics, send: Callable[[Topics], Awaitable[bool]]) -> bool:
        """End subscriptions in as many packets as it takes."""
        for packet in self._packets(topics):
            await self._turn_to_ask()
            if not await send(packet):
                return False
            self._subscribed -= set(packet)
        return True

    def _packets(self, topics: Topics) -> list[Topics]:
        most = min(self.profile.filters, max(len(topics), 1))
        return [topics[first : first + most] for first in range(0, len(topics), most)]

    async def _turn_to_ask(self) -> None:
        if self._subscribes is not None:
            async with self._asking:
                await self._taken(self._subscribes, 1)

    def _is_full(self, size: int) -> bool:
        if self._under_way >= self._at_once:
            return True
        most = self.profile.unacknowledged_bytes
        return self._under_way > 0 and self._bytes_under_way + size > most

    async def _taken(self, bucket: Bucket | None, amount: float) -> None:
        if bucket is None:
            return
        wait_s = bucket.owe(amount, asyncio.get_running_loop().time())
        if wait_s and not self.has_ended:
            await asyncio.sleep(wait_s)


def _bucket(per_s: float, burst: float, now: float) -> Bucket | None:
    """None: without a limit."""
    return Bucket(per_s, burst, now) if per_s < UNLIMITED // 4 else None
