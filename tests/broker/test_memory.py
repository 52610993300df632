import asyncio

from covey.shared.mqtt.link import Down, Incoming, Received, Up, Will
from tests.clock import run
from tests.kit.memory_broker import MemoryBroker


async def taken(link: object) -> list[Incoming]:
    """Everything that is in the inbox once the virtual second is over."""
    await asyncio.sleep(1)
    items: list[Incoming] = []
    incoming = link.incoming()  # type: ignore[attr-defined]
    try:
        while True:
            async with asyncio.timeout(0.001):
                items.append(await anext(incoming))
    except (TimeoutError, StopAsyncIteration):
        return items


async def numbers_through(broker: MemoryBroker, count: int = 200) -> list[int]:
    async with broker.link("a") as a, broker.link("b") as b:
        await b.subscribe(["t"])
        for number in range(count):
            await a.publish("t", str(number).encode())
        return [int(item.payload) for item in await taken(b) if isinstance(item, Received)]


def test_without_faults_every_message_arrives_once_and_in_order() -> None:
    assert run(numbers_through(MemoryBroker())) == list(range(200))


def test_a_duplicating_broker_loses_nothing_and_doubles_some() -> None:
    got = run(numbers_through(MemoryBroker(duplicate=0.3)))
    assert set(got) == set(range(200))
    assert 220 < len(got) < 300


def test_a_reordering_broker_delivers_each_once_but_not_in_order() -> None:
    got = run(numbers_through(MemoryBroker(reorder=0.3)))
    assert sorted(got) == list(range(200))
    assert got != sorted(got)


def test_the_same_seed_gives_the_same_history_and_another_seed_another() -> None:
    def history(seed: int) -> list[int]:
        return run(
            numbers_through(MemoryBroker(seed, duplicate=0.2, reorder=0.2, drop_session=0.02))
        )

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_a_lost_session_publishes_the_will_loses_its_subscriptions_and_reconnects_by_itself() -> (
    None
):
    async def program() -> None:
        broker = MemoryBroker()
        async with broker.link("a") as a, broker.link("b", Will("w", b"gone")) as b:
            await a.subscribe(["w"])
            await b.subscribe(["t"])
            broker.disconnect("b")
            assert not await b.publish("t", b"while down")
            assert [type(item) for item in await taken(b)] == [Up, Down, Up]
            assert Received("w", b"gone") in await taken(a)
            await a.publish("t", b"unheard")
            assert await taken(b) == []

    run(program())


def test_what_was_held_back_for_a_lost_session_never_arrives() -> None:
    async def program() -> None:
        broker = MemoryBroker(reorder=1.0)
        async with broker.link("a") as a:
            await a.subscribe(["t"])
            await a.publish("t", b"held back")
            broker.disconnect("a")
            assert not any(isinstance(item, Received) for item in await taken(a))

    run(program())


def test_sessions_get_lost_by_chance_and_every_link_comes_back() -> None:
    async def program() -> None:
        broker = MemoryBroker(drop_session=0.2)
        async with broker.link("a") as a:
            sent = []
            for _ in range(50):
                sent.append(await a.publish("t", b"x"))
                await asyncio.sleep(60)
            assert True in sent
            assert False in sent
            items = await taken(a)
            assert [type(item) for item in items] == [Up, *[Down, Up] * (len(items) // 2)]
            assert broker.clients == ["a"]

    run(program())


def test_a_restart_publishes_no_wills_and_keeps_retained_messages_only_if_asked_to() -> None:
    async def program(keep: bool) -> list[Incoming]:
        broker = MemoryBroker()
        async with broker.link("a", Will("w", b"gone")) as a:
            await a.publish("t", b"kept?", retain=True)
            broker.restart(keep_retained=keep, away_s=5)
            await asyncio.sleep(60)
            await a.subscribe(["t", "w"])
            return [item for item in await taken(a) if isinstance(item, Received)]

    assert run(program(True)) == [Received("t", b"kept?", retained=True)]
    assert run(program(False)) == []


def test_while_the_broker_is_away_a_link_reports_down_once() -> None:
    async def program() -> None:
        broker = MemoryBroker()
        async with broker.link("a") as a:
            broker.restart(away_s=300)
            await asyncio.sleep(1000)
            assert [type(item) for item in await taken(a)] == [Up, Down, Up]

    run(program())


def test_two_links_that_fight_for_a_client_id_slow_each_other_down() -> None:
    async def program() -> int:
        broker = MemoryBroker()
        async with broker.link("a") as one, broker.link("a"):
            await asyncio.sleep(600)
            return sum(isinstance(item, Up) for item in await taken(one))

    assert run(program()) < 40
