"""The size of a PUBLISH packet, against the table of MQTT 3.1.1 (section 2.2.3, table 2.4)."""

from __future__ import annotations

import pytest

from covey.shared.mqtt.profiles import publish_bytes


@pytest.mark.parametrize(
    ("remaining", "length_bytes"),
    [
        (127, 1),
        (128, 2),
        (16_383, 2),
        (16_384, 3),
        (2_097_151, 3),
        (2_097_152, 4),
        (268_435_455, 4),
    ],
)
def test_the_remaining_length_takes_one_byte_for_every_seven_bits(
    remaining: int, length_bytes: int
) -> None:
    topic_bytes = 20
    payload_bytes = remaining - 4 - topic_bytes
    assert publish_bytes(topic_bytes, payload_bytes) == 1 + length_bytes + remaining


def test_an_empty_packet_has_its_two_length_fields() -> None:
    assert publish_bytes(0, 0) == 6
