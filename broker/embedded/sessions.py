"""A client's session on the embedded broker: what waits for it, and what it has not acknowledged.

Pure state, no sockets. Messages leave in the order in which they came (MQTT 3.1.1, section 4.6).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

IN_FLIGHT = 200
"""Messages on their way to a client and not acknowledged, at most."""
PLENTY_BYTES = 64 << 20
"""From here on those who publish to the client are slowed down."""
MAX_BYTES = 1 << 30
"""From here on its oldest messages are dropped, and counted: it does not read. A broker with limits has its own number."""
MAX_MESSAGES = 1 << 20
"""Likewise, in messages."""
OFFLINE_MESSAGES = 1000
"""What a persistent session keeps for a client that is away, at most."""


@dataclass(frozen=True)
class Waiting:
    """A message for one client."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(frozen=True)
class Sending:
    """A message to be put on the wire now. `packet_id` None: QoS 0."""

    message: Waiting
    packet_id: int | None
    again: bool = False


class Session:
    """Outlives its connection where the client asked for that (`clean` False)."""

    def __init__(
        self,
        client_id: str,
        *,
        clean: bool,
        max_bytes: int = MAX_BYTES,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        self.client_id = client_id
        self.max_bytes = max_bytes
        self.max_messages = max_messages
        self.clean = clean
        self.online = True
        self.user = ""
        self.subscriptions: dict[str, int] = {}
        self.wildcards = 0  # of the subscriptions
        self.dropped = 0
        self.waiting_bytes = 0
        self._queue: deque[Waiting] = deque()
        self._in_flight: dict[int, Waiting] = {}
        self._again: deque[int] = deque()
        self._last_id = 0

    @property
    def plenty(self) -> bool:
        """Does so much wait that senders should wait too?"""
        return self.waiting_bytes > PLENTY_BYTES

    def add(self, message: Waiting) -> None:
        """Queue a message; drops the oldest ones where too much waits."""
        if not self.online and message.qos == 0:
            return
        self._queue.append(message)
        self.waiting_bytes += len(message.payload)
        max_messages = self.max_messages if self.online else OFFLINE_MESSAGES
        while self.waiting_bytes > self.max_bytes or len(self._queue) > max_messages:
            self.waiting_bytes -= len(self._queue.popleft().payload)
            self.dropped += 1

    def next(self) -> Sending | None:
        """The next message to send; None when nothing waits or too much is unacknowledged."""
        if self._again:
            packet_id = self._again.popleft()
            return Sending(self._in_flight[packet_id], packet_id, again=True)
        if not self._queue or len(self._in_flight) >= IN_FLIGHT:
            return None
        message = self._queue.popleft()
        self.waiting_bytes -= len(message.payload)
        if message.qos == 0:
            return Sending(message, None)
        packet_id = self._free_id()
        self._in_flight[packet_id] = message
        return Sending(message, packet_id)

    def acknowledge(self, packet_id: int) -> None:
        """The client has it. An id that is not known is ignored: the client may acknowledge twice."""
        self._in_flight.pop(packet_id, None)

    def resume(self) -> None:
        """A new connection: send what was not acknowledged again, before everything else."""
        self.online = True
        self._again = deque(self._in_flight)

    def _free_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65535 + 1
            if self._last_id not in self._in_flight:
                return self._last_id
