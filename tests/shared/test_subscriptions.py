"""A refused subscription is requested again until it is granted, and its owner is notified."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from covey.shared.mqtt.backoff import Pauses
from covey.shared.mqtt.link import Received, Subscribed
from covey.shared.mqtt.subscriptions import NODES_S, SubscriptionKeeper, TopicsRefused
from tests import clock
from tests.kit.memory_broker import MemoryBroker


def test_pauses_double_up_to_a_minute_and_begin_again() -> None:
    pauses = Pauses()
    assert [pauses.next() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    pauses.reset()
    assert pauses.next() == 1


def test_a_refused_topic_is_named_asked_for_again_and_heard_once_it_is_allowed() -> None:
    async def program() -> tuple[list[TopicsRefused], bytes]:
        broker, told = MemoryBroker(), list[TopicsRefused]()
        broker.denied = {"a/order"}
        async with broker.link("agent") as link, broker.link("other") as other:
            await other.publish("a/order", b"work", retain=True)
            subscriptions = SubscriptionKeeper(link, told.append)
            await subscriptions.add(["a/order", "a/status"])
            await asyncio.sleep(100.0)
            broker.denied = set()
            await asyncio.sleep(61.0)
            subscriptions.close()
            await anext(link.incoming())  # Up
            heard = await anext(link.incoming())
        assert isinstance(heard, Received)
        return told, heard.payload

    assert clock.run(program()) == ([TopicsRefused(("a/order",)), TopicsRefused(())], b"work")


def test_a_topic_that_was_accepted_before_is_asked_for_every_other_second_and_access_rules_are_not_to_blame() -> (
    None
):
    async def program() -> tuple[list[TopicsRefused], float]:
        broker, told = MemoryBroker(), asyncio.Queue[TopicsRefused]()
        async with broker.link("agent") as link:
            subscriptions = SubscriptionKeeper(link, told.put_nowait)
            await subscriptions.add(["a/order"])
            subscriptions.connected()  # at another node of a cluster
            broker.denied = {"a/order"}
            await subscriptions.add(["a/order"])
            await asyncio.sleep(100.0)
            broker.denied = set()
            shown = [await told.get(), await told.get()]
            subscriptions.close()
            return shown, asyncio.get_running_loop().time()

    shown, ended = clock.run(program())
    assert shown == [TopicsRefused(("a/order",), accepted_before=True), TopicsRefused(())]
    assert ended <= 100.0 + NODES_S
    assert "access rules" not in shown[0].why
    assert "access rules" in TopicsRefused(("a/order",)).why


@clock.virtual(within_s=300)
async def test_pauses_begin_again_once_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, asked = MemoryBroker(), list[float]()
    loop = asyncio.get_running_loop()
    async with broker.link("agent") as link:
        subscriptions = SubscriptionKeeper(link, lambda refused: None)
        broker.denied = {"a/order"}
        await subscriptions.add(["a/order"])
        await asyncio.sleep(100.0)
        broker.denied = set()
        await asyncio.sleep(60.0)

        async def refused(topics: Sequence[str]) -> Subscribed:
            asked.append(loop.time())
            return Subscribed(refused=tuple(topics))

        monkeypatch.setattr(link, "subscribe", refused)
        await subscriptions.add(["a/status"])
        await asyncio.sleep(10.0)
        subscriptions.close()
    assert [at - asked[0] for at in asked] == [0.0, 1.0, 3.0, 7.0]


def test_a_link_that_goes_down_and_comes_back_is_no_refusal() -> None:
    async def program() -> list[TopicsRefused]:
        broker, told = MemoryBroker(), list[TopicsRefused]()
        async with broker.link("agent") as link:
            subscriptions = SubscriptionKeeper(link, told.append)
            broker.restart(away_s=0.5)
            assert not await subscriptions.add(["a/order"])
            await asyncio.sleep(0.9)
            subscriptions.connected()
            assert await subscriptions.add(["a/order"])
            await asyncio.sleep(100.0)
            subscriptions.close()
        return told

    assert clock.run(program()) == []


def test_a_broker_that_does_not_answer_for_a_minute_has_refused_nothing() -> None:
    async def program() -> list[TopicsRefused]:
        broker, told = MemoryBroker(), list[TopicsRefused]()
        async with broker.link("agent") as link:
            subscriptions = SubscriptionKeeper(link, told.append)
            broker.restart(away_s=60.0)
            await subscriptions.add(["a/order", "a/status"])
            await asyncio.sleep(100.0)  # the owner is slow: it has not seen the new connection yet
            subscriptions.close()
        return told

    assert clock.run(program()) == []
