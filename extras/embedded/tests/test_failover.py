"""Several brokers for one link: what needs `embedded`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from covey.coordinator.serve.connect import connected
from covey.coordinator.serve.service import last_will
from covey.extras.embedded.program import EmbeddedBroker
from covey.shared.mqtt.backoff import Backoff
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Down, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.topics import Topics
from tests.processes import free_ports


async def test_a_link_goes_to_the_second_broker_when_the_first_is_killed() -> None:
    dead, *_ = free_ports(1)
    async with EmbeddedBroker() as first, EmbeddedBroker() as second, asyncio.timeout(60):
        brokers = [BrokerUrl("127.0.0.1", dead), first.url, second.url]
        link = MqttLink(brokers, client_id="a", backoff=Backoff(max_s=0.1))
        async with link:
            events = link.incoming()
            refused = await anext(events)
            assert isinstance(refused, Down)
            assert str(dead) in refused.why
            up = await anext(events)
            assert isinstance(up, Up)
            assert up.broker == str(first.url)
            await first.kill()
            assert isinstance(await anext(events), Down)
            up = await anext(events)
            assert isinstance(up, Up)
            assert up.broker == str(second.url)
            assert await link.publish("t", b"x")


async def test_a_coordinator_of_a_cluster_goes_to_the_next_of_its_addresses() -> None:
    dead, *_ = free_ports(1)
    async with EmbeddedBroker() as node, AsyncExitStack() as stack, asyncio.timeout(60):
        urls = [BrokerUrl("127.0.0.1", dead), node.url]
        link = await connected(
            stack, urls, Topics("default"), "c", will=last_will(Topics("default")), cluster=True
        )
        assert isinstance(await anext(link.incoming()), Down)
        assert await anext(link.incoming()) == Up()
