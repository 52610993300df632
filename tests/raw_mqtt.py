"""A client of MQTT 3.1.1 that sends exactly what a test asks for, also what no well-behaved library would send."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from covey.shared.mqtt.broker_url import BrokerUrl

CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Heard:
    """A message that arrived."""

    topic: str
    payload: bytes
    retained: bool


def text(value: str | bytes) -> bytes:
    """A string as MQTT writes it: two bytes of length first."""
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    """A packet with its fixed header."""
    rest, length = len(body), bytearray()
    while True:
        rest, digit = rest // 128, rest % 128
        length.append(digit | (128 if rest else 0))
        if not rest:
            return bytes([first]) + bytes(length) + body


def connect_packet(
    client_id: str,
    user: str = "",
    password: str = "",
    will: tuple[str, bytes] | None = None,
    *,
    clean: bool = True,
    keepalive_s: int = 0,
    level: int = 4,
) -> bytes:
    flags = 0x80 * bool(user) | 0x40 * bool(password) | 0x04 * bool(will) | 0x02 * clean
    body = text("MQTT") + bytes([level, flags, 0, keepalive_s]) + text(client_id)
    if will:
        body += text(will[0]) + text(will[1])
    body += text(user) if user else b""
    body += text(password) if password else b""
    return packet(0x10, body)


def subscribe_packet(filters: Sequence[str], qos: int = 1) -> bytes:
    return packet(0x82, b"\0\1" + b"".join(text(each) + bytes([qos]) for each in filters))


def publish_packet(
    topic: str, payload: bytes, *, retain: bool = False, packet_id: int = 1
) -> bytes:
    """A PUBLISH at QoS 1."""
    return packet(0x32 | retain, text(topic) + packet_id.to_bytes(2, "big") + payload)


@dataclass
class Raw:
    """One connection to a broker."""

    url: BrokerUrl
    client_id: str
    user: str = ""
    password: str = ""
    will: tuple[str, bytes] | None = None
    code: int = -1  # answer to CONNECT: 0 if accepted, -1 if the broker closed the connection
    heard: list[Heard] = field(default_factory=list)  # all messages so far
    acknowledges: bool = True  # does it send a PUBACK for each message?
    _buffer: bytearray = field(default_factory=bytearray)

    def __enter__(self) -> Self:
        plain = socket.create_connection((self.url.host, self.url.port), TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = self.url.tls_context()
        self.socket: socket.socket = plain
        try:
            if context is not None:
                self.socket = context.wrap_socket(plain, server_hostname=self.url.host)
            self.socket.sendall(connect_packet(self.client_id, self.user, self.password, self.will))
            answer = self.until(CONNACK)
        except (OSError, ssl.SSLError):
            answer = None
        self.code = -1 if answer is None else answer[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection without a DISCONNECT: the broker publishes the last will."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes. Nothing happens if the broker has closed the connection."""
        try:
            self.socket.sendall(data)
        except OSError:
            return

    def subscribe(self, *filters: str) -> bytes | None:
        """Subscribe and return the codes of the SUBACK; None if the broker closed the connection."""
        self.send(subscribe_packet(filters))
        answer = self.until(SUBACK)
        return None if answer is None else answer[2:]

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish at QoS 1. Returns False if the broker closes the connection instead of acknowledging."""
        self.send(publish_packet(topic, payload, retain=retain))
        return self.until(PUBACK) is not None

    def ping(self) -> bool:
        """Wait for a PINGRESP: all earlier messages are in `heard` then. Returns False if the broker closed the connection."""
        self.send(b"\xc0\0")
        return self.until(PINGRESP) is not None

    def until(self, kind: int) -> bytes | None:
        """The body of the next packet of a kind; messages before it go to `heard`. None if the broker closed the connection."""
        while True:
            found = self._packet()
            if found is None:
                return None
            first, body = found
            if first >> 4 == PUBLISH:
                self._message(first, body)
            if first >> 4 == kind:
                return body

    def _message(self, first: int, body: bytes) -> None:
        end = 2 + int.from_bytes(body[:2], "big")
        start = end
        if first & 0x06:
            start += 2
            if self.acknowledges:
                self.send(packet(0x40, body[end:start]))
        self.heard.append(Heard(body[2:end].decode(), body[start:], bool(first & 1)))

    def _packet(self) -> tuple[int, bytes] | None:
        head = self._take(2)
        if head is None:
            return None
        length, shift, digit = 0, 0, head[1]
        while True:
            length |= (digit & 0x7F) << shift
            if digit < 128:
                break
            shift += 7
            more = self._take(1)
            if more is None:
                return None
            digit = more[0]
        body = self._take(length)
        return None if body is None else (head[0], body)

    def _take(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            try:
                data = self.socket.recv(1 << 16)
            except (ConnectionError, ssl.SSLError):
                return None
            if not data:
                return None
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken
