"""The size of an MQTT 3.1.1 PUBLISH packet at QoS 1, to count the bytes that a run sends."""

from __future__ import annotations

TYPE_AND_FLAGS_BYTES = 1
TOPIC_LENGTH_BYTES = 2
PACKET_ID_BYTES = 2
BITS_PER_LENGTH_BYTE = 7  # of the remaining length, in each of its bytes


def publish_bytes(topic_bytes: int, payload_bytes: int) -> int:
    """The size of a whole packet (MQTT 3.1.1, sections 2.2 and 3.3).

    Args:
        topic_bytes: length of the topic in UTF-8.
        payload_bytes: length of the payload.
    """
    topic_field = TOPIC_LENGTH_BYTES + topic_bytes
    remaining = topic_field + PACKET_ID_BYTES + payload_bytes
    length_bits = remaining.bit_length()
    length_bytes = -(-length_bits // BITS_PER_LENGTH_BYTE)  # rounded up
    return TYPE_AND_FLAGS_BYTES + length_bytes + remaining
