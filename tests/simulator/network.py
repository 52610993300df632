"""A network between every pair of program and broker: its packets are lost, late, doubled, overtaken, parted, held up.

A habit strikes packets at random, in both directions, of the pairs that it names. An event strikes one pair for a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from covey.broker.topic_filters import is_topic
from covey.shared.mqtt.link import Received, Will
from tests.kit.memory_broker import HELD_S, MemoryBroker, MemoryLink
from tests.simulator.life import is_dead
from tests.simulator.plan import HABITS, Fault

Direction = Literal["", "up", "down"]
Published = Callable[[int, str, str, bytes], None]  # shard, client id, topic, payload
LATE_S = 1.0  # the longest delay of a packet on a slow way; those behind it wait, too


class FaultyBroker(MemoryBroker):
    """A broker with a network around it.

    Args:
        seed: of the faults.
        shard: its number.
        faults: the plan's; habits count here.
        struck: counts what has struck.
        published: sees each publication that arrives.
    """

    def __init__(
        self,
        seed: int,
        shard: int,
        faults: Sequence[Fault],
        struck: Counter[str],
        published: Published,
    ) -> None:
        super().__init__(seed)
        self._habits = [fault for fault in faults if fault.kind in HABITS and fault.is_at(shard)]
        self._struck = struck
        self.published = partial(published, shard)

    def link(self, client_id: str, will: Will | None = None) -> PairLink:
        return PairLink(self, client_id, will)

    def strikes(self, kind: str, client_id: str) -> bool:
        """Whether a habit strikes this packet."""
        for habit in self._habits:
            if (
                habit.kind == kind
                and asyncio.get_running_loop().time() < habit.lasts
                and client_id.startswith(habit.who)
                and self._chance(habit.chance)
            ):
                self._struck[kind] += 1
                return True
        return False

    def hold_up(self, client_id: str, lasts_s: float, direction: Direction) -> bool:
        """Let no packet of a client pass for a time; with a direction, end the connection afterwards. False: not there."""
        link = self._connected.get(client_id)
        if not isinstance(link, PairLink):
            return False
        link.hold_up(lasts_s, direction)
        return True

    def _deliver(self, link: MemoryLink, message: Received) -> None:
        if self.strikes("lost", link.client_id):
            link._lose("the broker lost the session")
            return
        overtaken = self.strikes("overtaken", link.client_id)
        link._receive(message, self.random.uniform(0, HELD_S) if overtaken else 0.0)
        if self.strikes("doubled", link.client_id):
            link._receive(message, self.random.uniform(0, HELD_S))


class PairLink(MemoryLink):
    """The way between one program and one broker."""

    _broker: FaultyBroker

    def __init__(self, broker: FaultyBroker, client_id: str, will: Will | None) -> None:
        super().__init__(broker, client_id, will)
        self._held_until = 0.0  # nothing passes before (loop time)
        self._ended: Direction = ""  # the direction in which nothing passes any more
        self._over = asyncio.Event()  # the session
        self._upwards = asyncio.Lock()  # packets of a program arrive in their order
        self._queue: deque[Received] = deque()  # on their way to the program
        self._last_at = 0.0  # when the last of them arrives

    def hold_up(self, lasts_s: float, direction: Direction) -> None:
        loop = asyncio.get_running_loop()
        if not direction:
            self._held_until = loop.time() + lasts_s
            return
        self._ended = direction
        since = self._since

        def noticed() -> None:  # by the keep-alive
            if self.up and self._since == since:
                self._lose("the broker was silent")

        loop.call_later(lasts_s, noticed)

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        if not is_topic(topic):
            raise ValueError(f"{topic!r} is not a topic to publish to")
        if not await self._passes("up"):
            return False
        content = bytes(payload)
        self._broker.published(self.client_id, topic, content)
        self._broker.route(topic, content, retain)
        if self._broker.strikes("doubled", self.client_id):
            self._broker.route(topic, content, retain)
        # a session lost here: the message has arrived, its acknowledgement has not
        return await self._passes("down")

    async def _travel(self) -> bool:
        """A subscription, there and back."""
        return await self._passes("up")

    async def _passes(self, direction: Direction) -> bool:
        """Let a packet pass. False if the session is lost on the way."""
        if not self.up or is_dead():
            return False
        session = self._since
        if direction == "up":
            async with self._upwards:
                await asyncio.sleep(self._delay_s())
        else:
            await asyncio.sleep(0)
        if self._ended == direction:
            await self._over.wait()
        if self.up and self._since == session and self._broker.strikes("lost", self.client_id):
            self._lose("the broker lost the session")
        return self.up and self._since == session

    def _delay_s(self) -> float:
        broker, now = self._broker, asyncio.get_running_loop().time()
        late_s = broker.random.uniform(0, LATE_S) if broker.strikes("late", self.client_id) else 0.0
        return max(self._held_until - now, late_s)

    def _receive(self, message: Received, after_s: float) -> None:
        if not self.up or self._ended == "down":
            return
        delay_s = self._delay_s()
        if after_s or (not delay_s and not self._queue):
            super()._receive(message, after_s)
            return
        # in order: each timer lets the first one pass
        self._queue.append(message)
        loop = asyncio.get_running_loop()

        def arrive() -> None:
            self._held.discard(timer)
            self._inbox.put(self._queue.popleft())

        self._last_at = max(loop.time() + delay_s, self._last_at)
        timer = loop.call_at(self._last_at, arrive)
        self._held.add(timer)

    def _leave(self, *, will: bool) -> None:
        super()._leave(will=will)
        self._queue.clear()
        self._over.set()
        self._over = asyncio.Event()
        self._held_until, self._ended = 0.0, ""
