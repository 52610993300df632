"""MQTT 3.1.1 packets from bytes and to bytes. amqtt's codec does all but the fixed header.

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
    """The peer broke the rules of MQTT 3.1.1. The broker ends its connection."""


@dataclass(frozen=True)
class Publish:
    """A PUBLISH packet as received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    packet_id: int | None  # None at QoS 0


class PacketReader:
    """Cuts a stream into packets: (type, flags, body)."""

    def __init__(self, largest_bytes: int) -> None:
        self.largest_bytes = largest_bytes  # of a body; may change between two packets
        self._buffer = bytearray()  # received and not returned yet; begins with a packet
        self._needed = 2  # length of the buffer from which on its first packet may be complete

    def __repr__(self) -> str:
        return f"<PacketReader: {len(self._buffer)} of {self._needed} bytes>"

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The packets that a chunk of the stream completes.

        Raises:
            ProtocolError: the length of a packet is malformed or larger than allowed.
        """
        self.add(data)
        packets = []
        while packet := self.next():
            packets.append(packet)
        return packets

    def add(self, data: bytes) -> None:
        """Take in a chunk of the stream."""
        self._buffer += data

    def next(self) -> tuple[int, int, bytes] | None:
        """The next complete packet, or None. Raises ProtocolError as `feed` does."""
        if len(self._buffer) < self._needed:
            return None
        head = self._head()
        if head is None:
            return None
        start, end = head
        if len(self._buffer) < end:
            self._needed = end
            return None
        first = self._buffer[0]
        kind = first >> 4
        flags = first & 0x0F
        body = bytes(memoryview(self._buffer)[start:end])  # copies a long payload once, not twice
        del self._buffer[:end]
        self._needed = 2
        return kind, flags, body

    def _head(self) -> tuple[int, int] | None:
        """Start and end of the first packet's body in the buffer; None while its length is incomplete."""
        length = 0
        for position in range(1, 5):
            if position >= len(self._buffer):
                return None
            # seven bits of each byte, the lowest first; the eighth is set if another byte follows
            byte = self._buffer[position]
            length |= (byte & 0x7F) << (7 * (position - 1))
            if byte & 0x80:
                continue
            if length > self.largest_bytes:
                raise ProtocolError(f"a packet of {length} bytes, at most {self.largest_bytes}")
            start = position + 1
            return start, start + length
        raise ProtocolError("the length of a packet has more than four bytes")


class _Body(ReaderAdapter):  # type: ignore[misc]  # amqtt's types are not exported
    """A packet's body as amqtt's decoders read it."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.position = 0  # of the next byte to read

    async def read(self, n: int = -1) -> bytes:
        start = self.position
        end = start + n
        if n < 0:
            end = len(self.body)
        data = self.body[start:end]
        self.position += len(data)
        return data

    def feed_eof(self) -> None:
        """Nothing to do: nothing follows a body."""


def _run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one of amqtt's coroutines to its end. It reads from memory and never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except (AMQTTError, MQTTError, CodecError, NoDataError, ValueError) as error:
        raise ProtocolError(f"{type(error).__name__}: {error}") from None
    coroutine.close()
    raise AssertionError("amqtt's codec waits for something other than bytes")


def decode(kind: int, flags: int, body: bytes) -> MQTTPacket[Any, Any, Any]:
    """The packet as amqtt represents it. Raises ProtocolError for a malformed one."""
    header = MQTTFixedHeader(kind, flags, len(body))
    try:
        packet_type = packet_class(header)
    except AMQTTError as error:
        raise ProtocolError(str(error)) from None
    return _run_to_end(packet_type.from_stream(_Body(body), header))


def count_filters(body: bytes, *, after: int) -> int:
    """The number of topic filters in a SUBSCRIBE or an UNSUBSCRIBE: far cheaper than decoding them.

    Args:
        body: of the packet. If it is cut short, its last filter counts too.
        after: bytes after each filter: 1 in a SUBSCRIBE (its QoS), 0 in an UNSUBSCRIBE.
    """
    count = 0
    position = 2  # after the packet id
    while position < len(body):
        length_field = body[position : position + 2]
        position += 2 + int.from_bytes(length_field, "big") + after
        count += 1
    return count


def decode_publish(flags: int, body: bytes) -> Publish:
    """A PUBLISH; its payload is copied once. Raises ProtocolError for a malformed one."""
    reader = _Body(body)
    header = MQTTFixedHeader(PUBLISH, flags, len(body))
    head = _run_to_end(PublishVariableHeader.from_stream(reader, header))
    retain = bool(flags & 1)
    qos = (flags >> 1) & 3
    topic = head.topic_name
    packet_id = head.packet_id
    if qos == 3 or packet_id == 0 or not topic:
        raise ProtocolError("a PUBLISH with QoS 3, packet id 0 or no topic")
    return Publish(
        topic=topic, payload=body[reader.position :], qos=qos, retain=retain, packet_id=packet_id
    )


def publish_head(
    topic: str, size: int, *, qos: int, retain: bool, packet_id: int | None, again: bool
) -> bytes:
    """The bytes of a PUBLISH before its payload, so that the payload is written without a copy.

    Args:
        topic: of the message.
        size: of the payload, in bytes.
        qos: 0 or 1.
        retain: is it sent because it was retained?
        packet_id: None at QoS 0.
        again: was it sent before, without an acknowledgement?
    """
    variable_bytes = bytes(PublishVariableHeader(topic, packet_id).to_bytes())
    flags = again << 3 | qos << 1 | retain
    length = len(variable_bytes) + size
    return bytes(MQTTFixedHeader(PUBLISH, flags, length).to_bytes()) + variable_bytes


def answer(kind: int, packet_id: int, flags: int = 0) -> bytes:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK for a packet id."""
    body = bytes(PacketIdVariableHeader(packet_id).to_bytes())
    return bytes(MQTTFixedHeader(kind, flags, len(body)).to_bytes()) + body


def packet_id_of(body: bytes) -> int:
    """The id in a PUBACK, PUBREC, PUBREL or PUBCOMP. Raises ProtocolError without one."""
    header = MQTTFixedHeader(PUBACK, 0, len(body))
    head = _run_to_end(PacketIdVariableHeader.from_stream(_Body(body), header))
    return head.packet_id  # type: ignore[no-any-return]
