"""MQTT packets in a stream of bytes: where they end, whose connection it is, and one sent again. Pure."""

from __future__ import annotations

CONNECT, PUBLISH = 1, 3
DUP, QOS = 0x08, 0x06
HEADER_MOST = 5  # bytes of a fixed header


class Packets:
    """Feed it bytes as they come; it returns whole packets, and keeps what is left."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """All packets that are whole now. Raises ValueError for a length that no packet has."""
        self._rest += data
        packets = []
        while (end := _end(self._rest)) is not None and end <= len(self._rest):
            packets.append(self._rest[:end])
            self._rest = self._rest[end:]
        return packets


def _end(data: bytes) -> int | None:
    """Where the first packet ends; None while its length is not known yet."""
    length = 0
    for place, byte in enumerate(data[1:HEADER_MOST]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return 2 + place + length
    if len(data) >= HEADER_MOST:
        raise ValueError("a packet's length has at most four bytes")
    return None


def kind(packet: bytes) -> int:
    """The type of a packet."""
    return packet[0] >> 4


def client_id(packet: bytes) -> str:
    """The client id in a CONNECT of MQTT 3.1.1."""
    start = next(i for i in range(1, HEADER_MOST) if packet[i] < 0x80) + 1
    name_length = int.from_bytes(packet[start : start + 2], "big")
    at = start + 2 + name_length + 4  # protocol name, level, flags, keep-alive
    length = int.from_bytes(packet[at : at + 2], "big")
    return packet[at + 2 : at + 2 + length].decode()


def once_more(packet: bytes) -> bytes | None:
    """A PUBLISH at QoS 1 as its sender would repeat it; None for every other packet."""
    if kind(packet) != PUBLISH or not packet[0] & QOS:
        return None
    return bytes([packet[0] | DUP]) + packet[1:]
