"""What a broker allows, and links that keep to it: what needs `embedded`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from covey.broker.programs.mosquitto import Mosquitto
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.profiles import profile_named
from tests.brokers import ROOMY
from tests.conformance.test_links import message, up
from tests.processes import needs_mosquitto


@pytest.mark.broker
@pytest.mark.processes
@needs_mosquitto
async def test_mqtt_5_names_the_limits_of_a_broker_and_carries_the_same_messages(
    tmp_path: Path,
) -> None:
    async with Mosquitto(ROOMY) as broker:
        url = replace(broker.url, profile=profile_named("hivemq"))
        async with MqttLink(url, client_id="a") as a, MqttLink(url, client_id="b") as b:
            await up(a, b)
            assert 8 << 20 < a.profile.part_bytes < ROOMY.limits.packet_bytes
            await a.publish("t", b"kept", retain=True)
            assert await b.subscribe(["t"])
            assert await message(b) == Received("t", b"kept", retained=True)
            assert all(await asyncio.gather(*[a.publish("t", b"x") for _ in range(100)]))
