"""What a broker allows, and links that keep to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from covey.agent.device.events import Action, Subscribe, Unsubscribe
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Subscribed
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.part_window import PartWindow
from covey.shared.mqtt.profiles import HEAD_BYTES, MOSQUITTO, PROFILES, profile_named
from covey.shared.mqtt.throttle import Throttle
from tests import clock

AWS = profile_named("aws")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("mqtts://a1b2-ats.iot.eu-west-1.amazonaws.com", "aws"),
        ("mqtts://fleet.westeurope-1.ts.eventgrid.azure.net", "azure"),
        ("mqtts://x1.ala.eu-central-1.emqxsl.com", "emqx-serverless"),
        ("wss://y2.s1.eu.hivemq.cloud:8884", "hivemq"),
        ("mqtt://broker.local", "mosquitto"),
        ("mqtts://iot.example.org?profile=aws", "aws"),
        ("mqtts://a1b2-ats.iot.eu-west-1.amazonaws.com?profile=mosquitto", "mosquitto"),
    ],
)
def test_an_address_has_the_profile_of_its_vendor_or_the_one_that_it_names(
    address: str, name: str
) -> None:
    url = BrokerUrl.parse(address)
    assert url.profile.name == name
    assert BrokerUrl.parse(str(url)) == url
    assert str(url).endswith("profile=" + name) == ("profile" in address)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="expected one of mosquitto, aws, azure"):
        BrokerUrl.parse("mqtt://host?profile=acme")


def test_a_client_id_that_the_broker_would_refuse_is_refused_before_anything_connects() -> None:
    url = BrokerUrl("host", profile=AWS)
    with pytest.raises(UserError, match="shorten --id"):
        MqttLink(url, client_id="x", fixed_id="f" * 129)
    MqttLink(BrokerUrl("host"), client_id="x" * 129)


def test_of_the_profile_and_what_the_broker_names_the_lower_limit_counts() -> None:
    named = {"MaximumPacketSize": 70_000, "ReceiveMaximum": 20}
    found = AWS.narrowed(named)
    assert (found.payload_bytes, found.unacknowledged) == (70_000 - HEAD_BYTES, 20)
    assert AWS.narrowed({"MaximumPacketSize": 1 << 28, "ReceiveMaximum": 65_535}) == AWS
    assert "no retained messages" in AWS.narrowed({"RetainAvailable": 0}).unusable


@pytest.mark.parametrize("profile", PROFILES[:3])
def test_a_burst_and_a_second_of_the_steady_rate_are_within_the_limit(profile: object) -> None:
    one = profile_named(str(profile))
    assert one.burst_messages + one.steady_messages <= one.messages_per_s
    assert one.burst_bytes + one.steady_bytes <= one.bytes_per_s


def test_subscriptions_leave_in_packets_that_the_broker_takes_and_the_rest_counts_as_refused() -> (
    None
):
    packets: list[Sequence[str]] = []

    async def send(topics: Sequence[str]) -> Subscribed:
        packets.append(topics)
        return Subscribed()

    async def program() -> Subscribed:
        return await Throttle(AWS, 64).subscribe([f"t/{number}" for number in range(53)], send)

    assert clock.run(program()).refused == ("t/50", "t/51", "t/52")
    assert [len(packet) for packet in packets] == [8, 8, 8, 8, 8, 8, 2]


def test_messages_leave_no_faster_than_the_broker_takes_them() -> None:
    slow = replace(MOSQUITTO, messages_per_s=10)

    async def program() -> list[float]:
        throttle, left = Throttle(slow, 64), []
        for _ in range(30):
            assert await throttle.enter(10)
            throttle.leave(10)
            left.append(asyncio.get_running_loop().time())
        return left

    left = clock.run(program())
    assert max(sum(at <= one < at + 1 for one in left) for at in left) <= 10
    assert left[-1] < 4


def test_messages_that_would_end_the_connection_are_kept_back_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program() -> list[bool]:
        throttle = Throttle(AWS, 64)
        found = [throttle.keeps_back("t", 200_000, False) for _ in range(3)]
        return [
            *found,
            throttle.keeps_back("1/2/3/4/5/6/7/8/9", 1, False),
            throttle.keeps_back("t", 1, True),
        ]

    assert clock.run(program()) == [True, True, True, True, False]
    assert len(caplog.records) == 2


PARTS = tuple(f"p/{number}" for number in range(10))


def test_a_window_slides_over_the_parts_that_have_not_come() -> None:
    window = PartWindow[Action](Subscribe, Unsubscribe)
    window.most = 4
    assert window.need(PARTS) == [Subscribe(PARTS[:4])]
    window.came("p/0")
    assert window.need(PARTS) == []
    window.came("p/2")
    assert window.need(PARTS) == [Unsubscribe(("p/0", "p/2")), Subscribe(("p/4", "p/5"))]
    assert window.again(PARTS) == [Subscribe(("p/1", "p/3", "p/4", "p/5"))]
    for topic in PARTS:
        window.came(topic)
        window.need(PARTS)
    assert window.again(PARTS) == [Subscribe(window.subscribed)]  # all came, and yet it is awaited
    assert window.need(()) == [Unsubscribe(PARTS[:4])]


def test_a_window_that_holds_all_parts_does_not_slide() -> None:
    window = PartWindow[Action](Subscribe, Unsubscribe)
    assert window.need(PARTS) == [Subscribe(PARTS)]
    window.came("p/0")
    assert window.need(PARTS) == []
    assert window.need(PARTS[5:]) == [Unsubscribe(PARTS[:5])]
