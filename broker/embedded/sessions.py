"""A client's session on the embedded broker: its queue, and the messages that it has not acknowledged.

Pure state without sockets. Messages leave in the order of their arrival (MQTT 3.1.1, section 4.6).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MAX_IN_FLIGHT = 200  # messages that were sent to a client and not acknowledged
SLOW_BYTES = 64 << 20  # a longer queue slows down those who publish to the client
MAX_BYTES = 1 << 30  # a longer queue loses its oldest messages; a broker sets its own limit
MAX_MESSAGES = 1 << 20  # the same, in messages
MAX_OFFLINE_MESSAGES = 1000  # in the queue of a persistent session without a connection
LAST_PACKET_ID = 65535


@dataclass(frozen=True)
class QueuedMessage:
    """A message in the queue of one client."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(frozen=True)
class Sending:
    """A message to be sent now."""

    message: QueuedMessage
    packet_id: int | None  # None at QoS 0
    again: bool = False  # it was sent before, without an acknowledgement


class ClientSession:
    """What the broker keeps for a client id. A persistent session (`clean` False) outlives its connection."""

    def __init__(
        self,
        client_id: str,
        *,
        clean: bool,
        max_bytes: int = MAX_BYTES,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        self.client_id = client_id
        self.max_bytes = max_bytes  # of the queue
        self.max_messages = max_messages  # in the queue, while the client is connected
        self.clean = clean
        self.online = True
        self.user = ""  # the owner of the session; "" at an open broker
        self.subscriptions: dict[str, int] = {}  # QoS by topic filter
        self.wildcards = 0  # how many of the subscriptions contain a wildcard
        self.dropped = 0  # messages that a full queue lost since the last warning
        self.waiting_bytes = 0  # sum of the payloads in the queue
        self._queue: deque[QueuedMessage] = deque()  # not yet sent, oldest first
        self._in_flight: dict[int, QueuedMessage] = {}  # sent and not acknowledged, by packet id
        self._again: deque[int] = deque()  # ids of `_in_flight` to be sent once more
        self._last_id = 0  # the packet id used last; 0: none yet

    def __repr__(self) -> str:
        state = "online" if self.online else "offline"
        counts = f"{len(self._queue)} waiting, {len(self._in_flight)} in flight"
        return f"<Session {self.client_id!r}: {state}, {counts}>"

    @property
    def is_slow(self) -> bool:
        """Whether the queue is so long that those who publish to the client should wait."""
        return self.waiting_bytes > SLOW_BYTES

    def add(self, message: QueuedMessage) -> None:
        """Queue a message. A queue that is too long loses its oldest messages."""
        if not self.online and message.qos == 0:
            return
        self._queue.append(message)
        self.waiting_bytes += len(message.payload)
        max_messages = self.max_messages if self.online else MAX_OFFLINE_MESSAGES
        while self.waiting_bytes > self.max_bytes or len(self._queue) > max_messages:
            oldest = self._queue.popleft()
            self.waiting_bytes -= len(oldest.payload)
            self.dropped += 1

    def next(self) -> Sending | None:
        """The next message to send; None if the queue is empty or too many messages are unacknowledged."""
        if self._again:
            packet_id = self._again.popleft()
            return Sending(self._in_flight[packet_id], packet_id, again=True)
        if not self._queue or len(self._in_flight) >= MAX_IN_FLIGHT:
            return None
        message = self._queue.popleft()
        self.waiting_bytes -= len(message.payload)
        if message.qos == 0:
            return Sending(message, None)
        packet_id = self._free_id()
        self._in_flight[packet_id] = message
        return Sending(message, packet_id)

    def acknowledge(self, packet_id: int) -> None:
        """The client has received it. An unknown id is ignored, because a client may acknowledge twice."""
        self._in_flight.pop(packet_id, None)

    def resume(self) -> None:
        """A new connection: unacknowledged messages are sent again, before everything else."""
        self.online = True
        self._again = deque(self._in_flight)

    def _free_id(self) -> int:
        while True:
            self._last_id = self._last_id % LAST_PACKET_ID + 1
            if self._last_id not in self._in_flight:
                return self._last_id
