"""The size of an MQTT 3.1.1 PUBLISH packet at QoS 1, to count the bytes that a run sends."""

from __future__ import annotations

LENGTH_BITS_PER_BYTE = 7  # bits of the remaining length that one byte of the fixed header carries


def publish_bytes(topic_bytes: int, payload_bytes: int) -> int:
    """The whole packet, for a topic and a payload of these sizes (MQTT 3.1.1, sections 2.2 and 3.3).

    The packet is one byte of type and flags, the remaining length, the length of the topic (2 bytes),
    the topic, the packet identifier (2 bytes) and the payload.
    """
    remaining = 2 + topic_bytes + 2 + payload_bytes
    length_bytes = -(-remaining.bit_length() // LENGTH_BITS_PER_BYTE)
    return 1 + length_bytes + remaining
