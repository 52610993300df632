"""A broker inside the process, with MQTT's faults on a seed.

Its links behave like `shared.mqtt.mqtt_link.MqttLink`: clean sessions, retained messages, wildcards, last will,
take-over of a client id, reconnection with `Down` and `Up`. Under a deterministic event loop the same seed
gives the same history. It needs asyncio only: no sockets, no threads.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from covey.broker.topic_filters import Retained, Subscriptions, is_filter, is_topic
from covey.shared.mqtt.acknowledgements import Inbox
from covey.shared.mqtt.backoff import Backoff
from covey.shared.mqtt.link import UNANSWERED, Down, Incoming, Received, Subscribed, Up, Will
from covey.shared.mqtt.profiles import MOSQUITTO, Profile
from covey.shared.mqtt.throttle import Throttle

MAX_AT_ONCE = 64  # messages of one link under way, as those of the link to a real broker
HELD_S = 0.05  # the longest delay of a reordered or duplicated message


class MemoryBroker:
    """The broker. Each fault is a probability in [0, 1], apart from the delay.

    Args:
        seed: of the faults.
        duplicate: a message is delivered twice.
        reorder: a delivery is delayed, so that others overtake it, also on the same topic.
        drop_session: a publication or a delivery ends the client's connection. The last will is published, messages
            on their way to the client are lost, and the client reconnects by itself.
        delay_s: seconds that each delivery takes.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        drop_session: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        self.duplicate = duplicate
        self.reorder = reorder
        self.drop_session = drop_session
        self.delay_s = delay_s
        self.random = random.Random(f"memory broker {seed}")  # noqa: S311  bad luck, no secrets
        self.retained = Retained()
        self.denied: set[str] = set()  # topic filters to which subscriptions are refused
        self._connected: dict[str, MemoryLink] = {}  # by client id
        self._subscriptions: Subscriptions[MemoryLink] = Subscriptions()  # of connected links
        self._parted: dict[str, float] = {}  # when a client can reach the broker again (s)
        self.back_at = 0.0  # loop time; connections are refused before

    def __repr__(self) -> str:
        return f"<MemoryBroker: {len(self._connected)} clients, {self.retained!r}>"

    def link(self, client_id: str, will: Will | None = None) -> MemoryLink:
        """A link for `async with`. It connects at once unless the broker is away."""
        return MemoryLink(self, client_id, will)

    @property
    def clients(self) -> list[str]:
        """Ids of the connected clients."""
        return sorted(self._connected)

    @property
    def patterns(self) -> set[str]:
        """The topic filters to which connected clients have subscribed."""
        return {pattern for link in self._connected.values() for pattern in link._patterns}

    def restart(self, keep_retained: bool = True, *, away_s: float = 0.0) -> None:
        """Crash and start again after `away_s`. All connections are lost, no last will is published.

        Args:
            keep_retained: False for a broker that stores nothing on disk.
            away_s: seconds during which connections are refused.
        """
        self.back_at = asyncio.get_running_loop().time() + away_s
        for link in list(self._connected.values()):
            link._lose("the broker went away", will=False)
        if not keep_retained:
            self.retained.clear()

    def disconnect(self, client_id: str) -> None:
        """Break one client's connection; it reconnects by itself. Raises KeyError if it is not connected."""
        self._connected[client_id]._lose("the connection broke")

    def part(self, client_id: str, lasts_s: float) -> None:
        """Break one client's connection, and refuse another one for this time (s)."""
        self._parted[client_id] = asyncio.get_running_loop().time() + lasts_s
        if client_id in self._connected:
            self.disconnect(client_id)

    def _admit(self, link: MemoryLink) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self.back_at or now < self._parted.get(link.client_id, 0.0):
            return False
        holder = self._connected.get(link.client_id)
        if holder is not None:  # a link with an empty inbox is false
            holder._lose("another client took the client id over")
        self._connected[link.client_id] = link
        return True

    def _forget(self, link: MemoryLink, *, will: bool) -> None:
        del self._connected[link.client_id]
        for pattern in link._patterns:
            self._subscriptions.remove(pattern, link)
        if will and link.will:
            # later: a chain of lost sessions and last wills must not fill the stack
            loop = asyncio.get_running_loop()
            loop.call_soon(self.route, link.will.topic, link.will.payload, True)

    async def publish(self, link: MemoryLink, topic: str, payload: bytes, retain: bool) -> None:
        """A link's PUBLISH has arrived. The acknowledgement follows."""
        self.route(topic, payload, retain)

    def subscribe(self, link: MemoryLink, topics: Sequence[str]) -> list[str]:
        """A link's SUBSCRIBE has arrived. Returns the topics that are refused."""
        granted = [topic for topic in topics if topic not in self.denied]
        for topic in granted:
            link._patterns.add(topic)
            self._subscriptions.add(topic, link)
        for topic in granted:
            if link.up:
                self._resend(link, topic)
        return [topic for topic in topics if topic in self.denied]

    def unsubscribe(self, link: MemoryLink, topics: Sequence[str]) -> None:
        """A link's UNSUBSCRIBE has arrived."""
        for topic in topics:
            link._patterns.discard(topic)
            self._subscriptions.remove(topic, link)

    def route(self, topic: str, payload: bytes, retain: bool) -> None:
        """Keep a message where it is retained, and deliver it to every link whose filters fit."""
        if retain:
            self.retained.keep(topic, payload)
        for link in self._subscriptions.holders_of(topic):
            self._deliver(link, Received(topic, payload))

    def _resend(self, link: MemoryLink, pattern: str) -> None:
        for topic, payload in self.retained.matching(pattern):
            self._deliver(link, Received(topic, payload, retained=True))

    def _deliver(self, link: MemoryLink, message: Received) -> None:
        if self._chance(self.drop_session):
            link._lose("the broker lost the session")
            return
        late = self._chance(self.reorder)
        link._receive(message, self.delay_s + (self.random.uniform(0, HELD_S) if late else 0.0))
        if self._chance(self.duplicate):
            link._receive(message, self.random.uniform(0, HELD_S))

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability


class MemoryLink:
    """A `shared.mqtt.link.Link` to a `MemoryBroker`, which obeys a profile."""

    def __init__(
        self, broker: MemoryBroker, client_id: str, will: Will | None, profile: Profile = MOSQUITTO
    ) -> None:
        self.client_id = client_id
        self.profile = profile
        self._throttle: Throttle | None = None  # of the connection
        self.will = will
        self.up = False
        self._broker = broker
        self._backoff = Backoff(uniform=broker.random.uniform)
        self._inbox = Inbox()
        self._patterns: set[str] = set()  # topic filters of this session
        self._held: set[asyncio.TimerHandle] = set()  # delayed deliveries
        self._comeback: asyncio.TimerHandle | None = None  # the next attempt to connect
        self._since = 0.0  # loop time of the latest connection: identifies the session
        self._reported_down = False  # `Down` is in the inbox, without an `Up` after it
        self._closed = False  # set once; nothing happens afterwards

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<MemoryLink {self.client_id!r}: {state}>"

    async def __aenter__(self) -> Self:
        self._connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(will=False)

    async def abort(self) -> None:
        """Break the connection: the broker publishes the last will, and this link stays closed."""
        self._close(will=True)

    def incoming(self) -> AsyncIterator[Incoming]:
        return self._inbox

    def __len__(self) -> int:
        return len(self._inbox)

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        if not is_topic(topic):
            raise ValueError(f"{topic!r} is not a topic to publish to")
        throttle = self._throttle
        if throttle is None or throttle.keeps_back(topic, len(payload), retain):
            return False
        if not await throttle.enter(len(payload)):
            return False
        try:
            if not await self._travel():
                return False
            await self._broker.publish(self, topic, bytes(payload), retain)
            # a session lost here: the message has arrived, its acknowledgement has not
            return await self._travel()
        finally:
            throttle.leave(len(payload))

    async def subscribe(self, topics: Sequence[str]) -> Subscribed:
        wrong = [topic for topic in topics if not is_filter(topic)]
        if wrong:
            raise ValueError(f"{wrong} are not topic filters")
        if self._throttle is None:
            return UNANSWERED
        return await self._throttle.subscribe(topics, self._subscribe)

    async def _subscribe(self, topics: Sequence[str]) -> Subscribed:
        if not await self._travel():
            return UNANSWERED
        refused = self._broker.subscribe(self, topics)
        return Subscribed(refused=tuple(refused)) if self.up else UNANSWERED

    async def unsubscribe(self, topics: Sequence[str]) -> bool:
        return self._throttle is not None and await self._throttle.unsubscribe(
            topics, self._unsubscribe
        )

    async def _unsubscribe(self, topics: Sequence[str]) -> bool:
        if not await self._travel():
            return False
        self._broker.unsubscribe(self, topics)
        return True

    async def _travel(self) -> bool:
        """Send a packet to the broker or back. Returns False if the session is lost on the way."""
        if not self.up:
            return False
        session = self._since
        await asyncio.sleep(0)
        if self.up and self._broker._chance(self._broker.drop_session):
            self._lose("the broker lost the session")
        return self.up and self._since == session

    def _connect(self) -> None:
        if not self._broker._admit(self):
            self._down("connection refused")
            return
        self.up = True
        self._reported_down = False
        self._since = asyncio.get_running_loop().time()
        self._throttle = Throttle(self.profile, MAX_AT_ONCE)
        self._inbox.put(Up(profile=self.profile))

    def _lose(self, why: str, *, will: bool = True) -> None:
        if self.up:
            self._leave(will=will)
            self._down(why, asyncio.get_running_loop().time() - self._since)

    def _down(self, why: str, lasted_s: float = 0.0) -> None:
        if not self._reported_down:
            self._inbox.put(Down(why))
            self._reported_down = True
        delay_s = max(self._backoff.delay(lasted_s), self.profile.connect_every_s)
        self._comeback = asyncio.get_running_loop().call_later(delay_s, self._connect)

    def _leave(self, *, will: bool) -> None:
        self.up = False
        if self._throttle is not None:
            self._throttle.end()
        self._throttle = None
        self._broker._forget(self, will=will)
        self._patterns.clear()
        for timer in self._held:
            timer.cancel()
        self._held.clear()

    def _close(self, *, will: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._comeback:
            self._comeback.cancel()
        if self.up:
            self._leave(will=will)
        self._inbox.close()

    def _receive(self, message: Received, after_s: float) -> None:
        if not self.up:
            return
        if not after_s:
            self._inbox.put(message)
            return

        def arrive() -> None:
            self._held.discard(timer)
            self._inbox.put(message)

        timer = asyncio.get_running_loop().call_later(after_s, arrive)
        self._held.add(timer)
