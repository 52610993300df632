"""Packets at QoS 1 over one connection, each awaited until the broker answers it, and those that were lost.

aiomqtt itself starts tasks and a timeout for each packet and counts all that are under way, which takes longer than all the
rest of a small message. This class waits on a bare future instead.

The inbox of a link: everything that happened on it, in order, until its owner reads it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from covey.shared.mqtt.link import Incoming, Received
from covey.shared.mqtt.profiles import HEAD_BYTES, UNLIMITED
from covey.shared.mqtt.throttle import Throttle

ITEM_BYTES = 512  # memory of a message besides its payload: many empty ones fill an inbox too
ITEMS_PER_TURN = 64  # handed out before other tasks run: a long inbox must not delay the keep-alive


class Inbox:
    """What happened on a link and was not taken yet, in order: an async iterator for one reader.

    A reader may be cancelled while it waits (a timeout around `anext`) and loses nothing. After `close` the reader
    still receives what had arrived before.
    """

    def __init__(self) -> None:
        self._items: deque[Incoming] = deque()
        self._changed = asyncio.Event()  # set when an item arrives or the inbox closes
        self._closed = False  # nothing arrives any more
        self._taken = 0  # items handed out so far
        self._messages = 0  # messages among the waiting items
        self.size_bytes = 0  # memory of the waiting messages, ITEM_BYTES for each included

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"Inbox({state}, {self._messages} messages, {self.size_bytes} bytes)"

    def put(self, item: Incoming) -> None:
        """Append an item. After `close` it is dropped."""
        if self._closed:
            return
        if isinstance(item, Received):
            self._messages += 1
            self.size_bytes += len(item.payload) + ITEM_BYTES
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        """Accept no more items. The reader ends after the last one."""
        self._closed = True
        self._changed.set()

    def __len__(self) -> int:
        """The number of waiting messages; `Up` and `Down` do not count."""
        return self._messages

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> Incoming:
        self._taken += 1
        if self._taken % ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        item = self._items.popleft()
        if isinstance(item, Received):
            self._messages -= 1
            self.size_bytes -= len(item.payload) + ITEM_BYTES
        return item


log = logging.getLogger(__name__)

QOS = 1
# reason codes of MQTT 5 that ask for a pause: message rate too high, quota exceeded
TRY_AGAIN = (0x96, 0x97)


class Acknowledgements:
    """What was sent over one connection and the broker has not answered yet.

    Args:
        client: the connected aiomqtt client.
        throttle: of the connection.
        within_s: time for an answer.
    """

    def __init__(self, client: Any, throttle: Throttle, *, within_s: float) -> None:
        self._paho = client._client
        self._throttle = throttle
        self._within_s = within_s
        self._answers: dict[int, asyncio.Future[Any]] = {}  # that are awaited now, by message id
        self._paho.on_publish = self._published
        self._paho.on_subscribe = self._paho.on_unsubscribe = self._answered

    def __repr__(self) -> str:
        return f"Acknowledgements({len(self._answers)} awaited)"

    async def publish(self, topic: str, payload: bytes, retain: bool) -> bool:
        """Publish a message. Returns whether the broker has acknowledged it in time.

        Raises:
            ValueError: no message can have this topic or payload.
        """
        if not await self._throttle.enter(len(payload)):
            return False
        try:
            info = self._paho.publish(topic, payload, QOS, retain)
            return bool(await self._answer(info.rc, info.mid))
        finally:
            self._throttle.leave(len(payload))

    async def subscribe(self, topics: Sequence[str]) -> Sequence[Any] | None:
        """The broker's codes by topic; None if it has not answered in time."""
        found: Sequence[Any] | None = await self._answer(
            *self._paho.subscribe([(topic, QOS) for topic in topics])
        )
        return found

    async def unsubscribe(self, topics: Sequence[str]) -> Sequence[Any] | None:
        """As `subscribe`; with MQTT 3.1.1 there are no codes."""
        found: Sequence[Any] | None = await self._answer(*self._paho.unsubscribe(list(topics)))
        return found

    def _published(self, client: Any, userdata: Any, mid: int, code: Any, properties: Any) -> None:
        """A PUBACK. One of MQTT 5 may refuse the message: for now, or for good."""
        if code.is_failure:
            log.warning("the broker refuses a message: %s", code)
        self._answered(client, userdata, mid, code.value not in TRY_AGAIN, properties)

    def _answered(self, client: Any, userdata: Any, mid: int, said: Any, properties: Any) -> None:
        if mid in self._answers:
            _settle(self._answers[mid], said)

    async def _answer(self, failed: int, message_id: int | None) -> Any:
        """The broker's answer to a packet that has left; None if none comes in time."""
        if failed or message_id is None:
            return None
        loop = asyncio.get_running_loop()
        answer = self._answers[message_id] = loop.create_future()
        timer = loop.call_later(self._within_s, _settle, answer, None)
        try:
            return await answer
        finally:
            timer.cancel()
            del self._answers[message_id]

    def end(self) -> None:
        """The connection has ended: nothing that is still under way was answered."""
        self._throttle.end()
        for answer in self._answers.values():
            _settle(answer, None)


def _settle(answer: asyncio.Future[Any], said: Any) -> None:
    if not answer.done():
        answer.set_result(said)


# -- what was under way when connections ended. Pure -------------------------------------------------------------------
#
# A broker that gets a larger packet than it takes ends the connection, and ends the next one for the same message. From the
# outside that is a connection that comes and goes.


SUSPECT = 2  # connections in a row that ended over one message


class Losses:
    """The messages of one link that were not acknowledged when its connections ended."""

    def __init__(self) -> None:
        self._under_way: list[tuple[int, str]] = []  # sizes of payloads, and their topics
        self._size = 0  # of the largest one at the latest end
        self._topic = ""  # its own; empty: nothing was under way
        self._times = 0  # ends in a row over this topic

    def __repr__(self) -> str:
        return f"<Losses: {self._times} over {self._topic or 'nothing'}>"

    @property
    def is_suspect(self) -> bool:
        """Whether it is likely that the message ends the connections."""
        return self._times >= SUSPECT

    def leaves(self, topic: str, size: int) -> None:
        """A message leaves; `left` follows."""
        self._under_way.append((size, topic))

    def left(self, topic: str, size: int, *, taken: bool) -> None:
        """It is not under way any more."""
        self._under_way.remove((size, topic))
        if taken and topic == self._topic and size >= self._size:
            self._times = 0

    def ended(self) -> None:
        """The connection has ended."""
        size, topic = max(self._under_way, default=(0, ""))
        self._times = self._times + 1 if topic and topic == self._topic else bool(topic)
        self._size, self._topic = size, topic

    def why(self, payload_bytes: int) -> str:
        """What a person reads.

        Args:
            payload_bytes: the largest payload that the broker takes; `UNLIMITED` if it names none.
        """
        seen = f"again while {self._size} bytes to {self._topic} were under way"
        if payload_bytes + HEAD_BYTES >= UNLIMITED:
            return f"{seen}; if it happens again, check the largest packet that the broker takes with `broker doctor`"
        most = payload_bytes + HEAD_BYTES
        if self._size <= payload_bytes:
            return f"{seen}; it takes packets of {most} bytes, so that is not the reason"
        return (
            f"{seen}: the broker takes packets of at most {most} bytes, and ends the connection for a larger one; raise its "
            "limit (max_packet_size), or begin a run with a lower wire.part_bytes"
        )
