"""One suite for every link and every broker: what Covey relies on, and nothing else."""

from __future__ import annotations

import asyncio
import math
import os
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from covey.shared.mqtt.backoff import Backoff
from covey.shared.mqtt.link import Down, Link, Received, Up, Will
from tests.brokers import NAMES, open_link
from tests.kit.memory_broker import MemoryBroker

PATIENCE_S = 20.0
REAL = [
    pytest.param(name, marks=pytest.mark.broker)
    for name in NAMES
    if name not in ("memory", "embedded")
]
Connect = Callable[..., Any]


@pytest.fixture(params=["memory", "embedded", *REAL])
def connect(request: pytest.FixtureRequest, broker_url: Callable[[str], str]) -> Connect:
    """connect(client_id, will=None) opens a link to the broker under test."""
    broker = MemoryBroker() if request.param == "memory" else broker_url(request.param)
    return lambda client_id, will=None: open_link(broker, client_id, will)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"covey/test-{uuid.uuid4().hex[:8]}/agents/a/order"


@pytest.fixture
def name() -> str:
    """A client id that no other test uses."""
    return f"c{uuid.uuid4().hex[:8]}"


async def up(*links: Link) -> None:
    """Wait until every one of the links is up."""
    async with asyncio.timeout(PATIENCE_S):
        for link in links:
            while not isinstance(await anext(link.incoming()), Up):
                pass


async def down(link: Link) -> None:
    """Wait until the link is lost."""
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(await anext(link.incoming()), Down):
            pass


async def message(link: Link) -> Received:
    """The next message."""
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(item := await anext(link.incoming()), Received):
            pass
        return item


async def test_a_subscriber_gets_what_is_published(connect: Connect, topic: str, name: str) -> None:
    async with connect(name + "-a") as a, connect(name + "-b") as b:
        await up(a, b)
        assert await b.subscribe([topic, topic + "/more"])
        assert await a.publish(topic, b"one")
        assert await a.publish(topic, b"two")
        assert await a.publish(topic + "/more", b"three")
        seen = [await message(b) for _ in range(3)]
    # MQTT keeps the order of the messages of one topic alone, and NATS has a consumer for each subscription
    assert [one for one in seen if one.topic == topic] == [
        Received(topic, b"one"),
        Received(topic, b"two"),
    ]
    assert [one for one in seen if one.topic != topic] == [Received(topic + "/more", b"three")]


async def test_a_wildcard_subscription_gets_new_messages(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name) as link:
        await up(link)
        assert await link.subscribe([topic.replace("/a/", "/+/")])
        assert await link.publish(topic.replace("/a/", "/b/"), b"x")
        assert (await message(link)).topic == topic.replace("/a/", "/b/")


async def test_after_unsubscribing_nothing_more_comes(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name) as link:
        await up(link)
        assert await link.subscribe([topic, topic + "/end"])
        assert await link.unsubscribe([topic])
        assert await link.publish(topic, b"unheard")
        assert await link.publish(topic + "/end", b"heard")
        assert (await message(link)).payload == b"heard"


async def test_a_late_subscriber_gets_the_last_retained_message(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name + "-a") as a, connect(name + "-b") as b:
        await up(a, b)
        assert await a.publish(topic, b"old", retain=True)
        assert await a.publish(topic, b"new", retain=True)
        assert await b.subscribe([topic])
        assert await message(b) == Received(topic, b"new", retained=True)


async def test_a_standing_subscriber_gets_retained_messages_as_new_ones(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name) as link:
        await up(link)
        assert await link.subscribe([topic])
        assert await link.publish(topic, b"now", retain=True)
        assert await message(link) == Received(topic, b"now", retained=False)


async def test_an_empty_payload_clears_a_retained_message(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name + "-a") as a, connect(name + "-b") as b:
        await up(a, b)
        assert await a.publish(topic, b"state", retain=True)
        assert await a.publish(topic, b"", retain=True)
        assert await b.subscribe([topic])
        assert await b.publish(topic, b"sentinel")
        assert await message(b) == Received(topic, b"sentinel")


async def test_subscribing_again_sends_the_retained_message_again(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name) as link:
        await up(link)
        assert await link.publish(topic, b"state", retain=True)
        for _ in range(3):
            assert await link.subscribe([topic])
            assert await message(link) == Received(topic, b"state", retained=True)


async def test_the_will_of_an_aborted_link_is_published_and_retained(
    connect: Connect, topic: str, name: str
) -> None:
    async with (
        connect(name + "-a") as a,
        connect(name + "-b", Will(topic, b"gone")) as b,
        connect(name + "-c") as c,
    ):
        await up(a, b, c)
        assert await a.subscribe([topic])
        await b.abort()
        assert (await message(a)).payload == b"gone"
        assert await c.subscribe([topic])
        assert await message(c) == Received(topic, b"gone", retained=True)


async def test_an_aborted_link_is_closed_for_good(connect: Connect, topic: str, name: str) -> None:
    async with connect(name) as link:
        await up(link)
        await link.abort()
        assert not await link.publish(topic, b"x")
        assert not await link.subscribe([topic])
        assert [item async for item in link.incoming()] == []


async def test_a_link_that_disconnects_properly_leaves_no_will(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name + "-a") as a:
        await up(a)
        assert await a.subscribe([topic])
        async with connect(name + "-b", Will(topic, b"gone")) as b:
            await up(b)
        assert await a.publish(topic, b"sentinel")
        assert (await message(a)).payload == b"sentinel"


async def test_a_second_link_takes_the_client_id_over(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name) as older:
        await up(older)
        async with connect(name) as newer:
            await up(newer)
            await down(older)


async def test_a_thousand_messages_arrive_in_order(connect: Connect, topic: str, name: str) -> None:
    async with connect(name + "-a") as a, connect(name + "-b") as b:
        await up(a, b)
        assert await b.subscribe([topic])
        got: list[int] = []
        for first in range(
            0, 1000, 500
        ):  # bursts that fit into the queue of a broker in its default settings
            burst = range(first, first + 500)
            assert all(
                await asyncio.gather(*(a.publish(topic, str(number).encode()) for number in burst))
            )
            got += [int((await message(b)).payload) for _ in burst]
        assert got == list(range(1000))


async def test_a_payload_of_four_mebibytes_arrives_whole(
    connect: Connect, topic: str, name: str
) -> None:
    payload = os.urandom(4 << 20)
    async with connect(name + "-a") as a, connect(name + "-b") as b:
        await up(a, b)
        assert await a.publish(topic, payload, retain=True)
        assert await b.subscribe([topic])
        assert (await message(b)).payload == payload
        assert await a.publish(topic, b"", retain=True)


async def test_twenty_publishers_at_once_are_all_heard(
    connect: Connect, topic: str, name: str
) -> None:
    async def publisher(number: int) -> bool:
        async with connect(f"{name}-{number}") as link:
            await up(link)
            sent = [
                await link.publish(f"{topic}/{number}", str(count).encode()) for count in range(10)
            ]
            return all(sent)

    async with connect(name) as reader:
        await up(reader)
        assert await reader.subscribe([topic + "/+"])
        assert all(await asyncio.gather(*(publisher(number) for number in range(20))))
        got = [await message(reader) for _ in range(200)]
        for number in range(20):
            assert [int(m.payload) for m in got if m.topic == f"{topic}/{number}"] == list(
                range(10)
            )


async def test_messages_wait_in_the_inbox_and_are_counted(
    connect: Connect, topic: str, name: str
) -> None:
    async with connect(name) as link:
        await up(link)
        assert await link.subscribe([topic])
        for number in range(3):
            assert await link.publish(topic, bytes([number]))
        await message(link)
        async with asyncio.timeout(PATIENCE_S):
            while len(link) < 2:  # noqa: ASYNC110  only the count shows that they have arrived
                await asyncio.sleep(0.01)
        await message(link)
        assert len(link) == 1


async def works_again_after(
    end: Callable[[], Any], begin: Callable[[], Any], broker: MemoryBroker | str, topic: str
) -> None:
    async with open_link(broker, "restarted", backoff=Backoff(max_s=0.2)) as link:
        await up(link)
        assert await link.subscribe([topic])
        await end()
        await down(link)
        assert not await link.publish(topic, b"lost")
        await begin()
        await up(link)
        assert await link.publish(topic, b"before")  # nobody is subscribed any more
        assert await link.subscribe([topic])
        assert await link.publish(topic, b"after")
        assert (await message(link)).payload == b"after"


async def test_a_link_comes_back_after_a_restart_of_the_memory_broker(topic: str) -> None:
    broker = MemoryBroker()

    async def end() -> None:
        broker.restart(away_s=math.inf)

    async def begin() -> None:
        broker.back_at = 0.0

    await works_again_after(end, begin, broker, topic)
