"""MQTT 3.1.1 packets out of bytes and into bytes, with amqtt's codec for all but the fixed header.

The fixed header is read here, so that a payload of megabytes is cut out of the stream in one piece.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from amqtt.adapters import ReaderAdapter
from amqtt.errors import AMQTTError, CodecError, MQTTError, NoDataError
from amqtt.mqtt import packet_class
from amqtt.mqtt.packet import PUBACK, PUBLISH, MQTTFixedHeader, MQTTPacket, PacketIdVariableHeader
from amqtt.mqtt.publish import PublishVariableHeader

T = TypeVar("T")


class ProtocolError(Exception):
    """The peer does not speak MQTT 3.1.1: its connection ends."""


@dataclass(frozen=True)
class Publish:
    """A PUBLISH packet as it came in."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    packet_id: int | None


class PacketReader:
    """Feed it chunks of a stream; it returns the packets that are complete: (type, flags, body)."""

    def __init__(self, largest_bytes: int) -> None:
        self.largest_bytes = largest_bytes  # of a body; may change between two packets
        self._buffer = bytearray()
        self._wanted = 2

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Raises ProtocolError for a length that is malformed or larger than allowed."""
        self.add(data)
        packets = []
        while packet := self.next():
            packets.append(packet)
        return packets

    def add(self, data: bytes) -> None:
        """A chunk of the stream has arrived."""
        self._buffer += data

    def next(self) -> tuple[int, int, bytes] | None:
        """The next complete packet, or None. Raises ProtocolError as `feed` does."""
        if len(self._buffer) < self._wanted:
            return None
        head = self._head()
        if head is None:
            return None
        start, end = head
        if len(self._buffer) < end:
            self._wanted = end
            return None
        first = self._buffer[0]
        body = bytes(memoryview(self._buffer)[start:end])
        del self._buffer[:end]
        self._wanted = 2
        return first >> 4, first & 0x0F, body

    def _head(self) -> tuple[int, int] | None:
        """Where the body of the first packet begins and ends; None while its length is incomplete."""
        length = 0
        for position in range(1, 5):
            if position >= len(self._buffer):
                return None
            byte = self._buffer[position]
            length |= (byte & 0x7F) << 7 * (position - 1)
            if byte < 0x80:
                if length > self.largest_bytes:
                    raise ProtocolError(f"a packet of {length} bytes, at most {self.largest_bytes}")
                return position + 1, position + 1 + length
        raise ProtocolError("the length of a packet has more than four bytes")


class _Body(ReaderAdapter):  # type: ignore[misc]  # amqtt's types are not exported
    """A packet's body, for amqtt's readers."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.position = 0

    async def read(self, n: int = -1) -> bytes:
        end = len(self.body) if n < 0 else self.position + n
        data = self.body[self.position : end]
        self.position += len(data)
        return data

    def feed_eof(self) -> None:
        """Nothing follows a body in any case."""


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one of amqtt's coroutines to its end; it reads from memory and never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except (AMQTTError, MQTTError, CodecError, NoDataError, ValueError) as error:
        raise ProtocolError(f"{type(error).__name__}: {error}") from None
    coroutine.close()
    raise AssertionError("amqtt's codec waits for something other than bytes")


def decode(kind: int, flags: int, body: bytes) -> MQTTPacket[Any, Any, Any]:
    """One of amqtt's packets. Raises ProtocolError for what makes none."""
    header = MQTTFixedHeader(kind, flags, len(body))
    try:
        wanted = packet_class(header)
    except AMQTTError as error:
        raise ProtocolError(str(error)) from None
    return _now(wanted.from_stream(_Body(body), header))


def count_filters(body: bytes, *, after: int) -> int:
    """How many topic filters a SUBSCRIBE (`after` 1: each with its QoS) or an UNSUBSCRIBE (`after` 0) names.

    Far cheaper than to decode them. A body that is cut short counts its last filter too.
    """
    position, count = 2, 0  # behind the packet id
    while position < len(body):
        length = int.from_bytes(body[position : position + 2], "big")
        position += 2 + length + after
        count += 1
    return count


def decode_publish(flags: int, body: bytes) -> Publish:
    """A PUBLISH; its payload is copied once. Raises ProtocolError for what makes none."""
    reader = _Body(body)
    head = _now(
        PublishVariableHeader.from_stream(reader, MQTTFixedHeader(PUBLISH, flags, len(body)))
    )
    qos = (flags >> 1) & 3
    if qos == 3 or head.packet_id == 0 or not head.topic_name:
        raise ProtocolError("a PUBLISH with QoS 3, packet id 0 or no topic")
    return Publish(head.topic_name, body[reader.position :], qos, bool(flags & 1), head.packet_id)


def publish_head(
    topic: str, size: int, *, qos: int, retain: bool, packet_id: int | None, again: bool
) -> bytes:
    """The bytes of a PUBLISH before its payload of `size` bytes: the payload itself is never copied."""
    head = bytes(PublishVariableHeader(topic, packet_id).to_bytes())
    flags = again << 3 | qos << 1 | retain
    return bytes(MQTTFixedHeader(PUBLISH, flags, len(head) + size).to_bytes()) + head


def answer(kind: int, packet_id: int, flags: int = 0) -> bytes:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK for a packet id."""
    body = PacketIdVariableHeader(packet_id).to_bytes()
    return bytes(MQTTFixedHeader(kind, flags, len(body)).to_bytes()) + bytes(body)


def packet_id_of(body: bytes) -> int:
    """The id in a PUBACK, PUBREC, PUBREL or PUBCOMP. Raises ProtocolError without one."""
    return _now(  # type: ignore[no-any-return]
        PacketIdVariableHeader.from_stream(_Body(body), MQTTFixedHeader(PUBACK, 0, len(body)))
    ).packet_id
