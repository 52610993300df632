"""MQTT 3.1.1 packets from bytes and to bytes: the half of the protocol that a broker needs.

A payload of megabytes is cut out of the stream in one piece, and written without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from paho.mqtt.enums import ConnackCode, MessageType

PROTOCOL = ("MQTT", 4)  # name and level of version 3.1.1
FLAGS_OF_A_REQUEST = 2  # of SUBSCRIBE and UNSUBSCRIBE


class ProtocolError(Exception):
    """The peer broke the rules of MQTT 3.1.1. The broker ends its connection."""


class VersionError(ProtocolError):
    """The peer speaks another version. The broker answers that before it ends the connection."""


@dataclass(frozen=True)
class PublishPacket:
    """A PUBLISH packet as received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    packet_id: int | None  # None at QoS 0


@dataclass(frozen=True)
class Connect:
    """A CONNECT packet as received."""

    client_id: str  # empty: the broker gives it a name
    clean: bool
    keepalive_s: int  # 0: the client may be silent
    will: PublishPacket | None
    user: str
    password: str


@dataclass(frozen=True)
class SubscriptionPacket:
    """A SUBSCRIBE or an UNSUBSCRIBE as received."""

    packet_id: int
    filters: list[tuple[str, int]]  # with the QoS that is asked for


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
        kind = self._buffer[0] & 0xF0
        flags = self._buffer[0] & 0x0F
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


class _Body:
    """Reads a packet's body from its beginning. Raises ProtocolError where it ends too soon."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0  # of the next byte to read

    def __bool__(self) -> bool:
        return self._position < len(self._body)

    def take(self, count: int) -> bytes:
        data = self._body[self._position : self._position + count]
        if len(data) < count:
            raise ProtocolError("a packet ends before its fields do")
        self._position += count
        return data

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def data(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str:
        try:
            return self.data().decode()
        except UnicodeDecodeError:
            raise ProtocolError("a text is not in UTF-8") from None

    def rest(self) -> bytes:
        return self._body[self._position :]


def decode_connect(body: bytes) -> Connect:
    """A CONNECT. Raises VersionError for another version, and ProtocolError for a malformed one."""
    reader = _Body(body)
    name, level = reader.text(), reader.byte()
    if (name, level) != PROTOCOL:
        raise VersionError(f"{name[:10]!r} at level {level}, expected MQTT 3.1.1")
    flags = reader.byte()
    if flags & 0x01:
        raise ProtocolError("a reserved flag is set in CONNECT")
    keepalive_s = reader.number()
    client_id = reader.text()
    will = None
    if flags & 0x04:
        will = PublishPacket(
            reader.text(), reader.data(), (flags >> 3) & 3, bool(flags & 0x20), None
        )
    user = reader.text() if flags & 0x80 else ""
    password = reader.text() if flags & 0x40 else ""
    return Connect(client_id, bool(flags & 0x02), keepalive_s, will, user, password)


def decode_request(kind: int, flags: int, body: bytes, *, most: int) -> SubscriptionPacket:
    """A SUBSCRIBE, or an UNSUBSCRIBE, which has no QoS. Raises ProtocolError for a malformed one.

    Args:
        kind: which of the two.
        flags: of the packet.
        body: of the packet.
        most: filters that it may have; the rest of a longer one is not read.
    """
    reader = _Body(body)
    packet_id = reader.number()
    filters: list[tuple[str, int]] = []
    while reader:
        if len(filters) == most:
            raise ProtocolError(f"a request with more than {most} filters")
        pattern = reader.text()
        filters.append((pattern, reader.byte() if kind == MessageType.SUBSCRIBE else 0))
    if flags != FLAGS_OF_A_REQUEST or not filters:
        raise ProtocolError("a request without filters or with wrong flags")
    return SubscriptionPacket(packet_id, filters)


def decode_publish(flags: int, body: bytes) -> PublishPacket:
    """A PUBLISH; its payload is copied once. Raises ProtocolError for a malformed one."""
    reader = _Body(body)
    qos = (flags >> 1) & 3
    topic = reader.text()
    packet_id = reader.number() if qos else None
    if qos == 3 or packet_id == 0:
        raise ProtocolError("a PUBLISH with QoS 3 or packet id 0")
    return PublishPacket(topic, reader.rest(), qos, bool(flags & 1), packet_id)


def packet_id_of(body: bytes) -> int:
    """The id in a PUBACK, PUBREC, PUBREL or PUBCOMP. Raises ProtocolError without one."""
    return _Body(body).number()


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
    name = topic.encode()
    fields = _number(len(name)) + name
    if packet_id is not None:
        fields += _number(packet_id)
    flags = again << 3 | qos << 1 | retain
    return _fixed_header(MessageType.PUBLISH | flags, len(fields) + size) + fields


def answer(kind: int, packet_id: int, more: bytes = b"") -> bytes:
    """PUBACK, PUBREC, PUBCOMP, UNSUBACK, or a SUBACK with its codes, for a packet id."""
    return _fixed_header(kind, 2 + len(more)) + _number(packet_id) + more


def connack(code: ConnackCode, *, is_resumed: bool = False) -> bytes:
    """The answer to a CONNECT."""
    return bytes([MessageType.CONNACK, 2, is_resumed, code])


def _number(value: int) -> bytes:
    return value.to_bytes(2, "big")


def _fixed_header(first: int, length: int) -> bytes:
    """The first byte of a packet and the length of its body, as `PacketReader` reads them."""
    head = bytearray([first])
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)
