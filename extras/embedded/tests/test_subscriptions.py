"""A refused subscription is requested again until it is granted, and its owner is notified: what needs `embedded`."""

from __future__ import annotations

import asyncio

import pytest

from covey.extras.embedded.connection import Connection
from covey.extras.embedded.hub import Hub
from covey.shared.mqtt.backoff import Pauses
from covey.shared.mqtt.link import Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.subscriptions import SubscriptionKeeper, TopicsRefused


async def test_a_broker_that_answers_0x80_is_asked_again_until_its_rules_allow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = False
    monkeypatch.setattr(
        Hub, "_allows_subscription", lambda hub, session, pattern: allowed or pattern != "a/order"
    )
    hub, told = Hub(), asyncio.Queue[TopicsRefused]()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(hub), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"mqtt://127.0.0.1:{port}"
    async with MqttLink(url, client_id="agent") as link, asyncio.timeout(60):
        assert isinstance(await anext(link.incoming()), Up)
        subscriptions = SubscriptionKeeper(link, told.put_nowait, Pauses(first_s=0.05, max_s=0.1))
        assert not await subscriptions.add(["a/order", "a/status"])
        assert await told.get() == TopicsRefused(("a/order",))
        allowed = True
        assert await told.get() == TopicsRefused(())
        assert await link.publish("a/order", b"work")
        heard = await anext(link.incoming())
        subscriptions.close()
    server.close()
    assert isinstance(heard, Received)
    assert heard.payload == b"work"
