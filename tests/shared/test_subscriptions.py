"""A refused subscription is asked for again until it is granted, and it is told."""

from __future__ import annotations

import asyncio

from broker.memory import MemoryBroker
from shared.link import Message
from shared.subscriptions import Pauses, Subscriptions
from tests import clock


def test_pauses_double_up_to_a_minute_and_begin_again() -> None:
    pauses = Pauses()
    assert [pauses.next() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    pauses.reset()
    assert pauses.next() == 1


def test_a_refused_topic_is_named_asked_for_again_and_heard_once_it_is_allowed() -> None:
    async def program() -> tuple[list[tuple[str, ...]], bytes]:
        broker, told = MemoryBroker(), list[tuple[str, ...]]()
        broker.denied = {"a/order"}
        async with broker.link("agent") as link, broker.link("other") as other:
            await other.publish("a/order", b"work", retain=True)
            subscriptions = Subscriptions(link, told.append)
            await subscriptions.add(["a/order", "a/status"])
            await asyncio.sleep(100.0)
            broker.denied = set()
            await asyncio.sleep(61.0)
            subscriptions.close()
            await anext(link.incoming())  # Up
            heard = await anext(link.incoming())
        assert isinstance(heard, Message)
        return told, heard.payload

    assert clock.run(program()) == ([("a/order",), ()], b"work")


def test_a_link_that_goes_down_and_comes_back_is_no_refusal() -> None:
    async def program() -> list[tuple[str, ...]]:
        broker, told = MemoryBroker(), list[tuple[str, ...]]()
        async with broker.link("agent") as link:
            subscriptions = Subscriptions(link, told.append)
            broker.restart(away_s=0.5)
            assert not await subscriptions.add(["a/order"])
            await asyncio.sleep(0.9)
            subscriptions.connected()
            assert await subscriptions.add(["a/order"])
            await asyncio.sleep(100.0)
            subscriptions.close()
        return told

    assert clock.run(program()) == []
