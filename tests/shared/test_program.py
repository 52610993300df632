"""The shell around a machine: what comes in reaches it in order, and its effects are carried out in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

import pytest

from covey.shared.mqtt.link import Incoming, Received, Subscribed, Up
from covey.shared.mqtt.program import (
    TOGETHER,
    Cancel,
    Effect,
    End,
    Items,
    Publish,
    Show,
    Start,
    Subscribe,
    program,
)
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.programs.timers import Timers, earliest
from tests import clock
from tests.clock import virtual


class Scripted:
    """A machine whose effects are written down: those of its n-th call. Then it ends.

    `wakes` are the times at which it asks to be woken, one after another.
    """

    def __init__(self, *script: Sequence[Effect], wakes: Sequence[float] = ()) -> None:
        self.script = list(script)
        self.wakes = list(wakes)
        self.wake_at: float | None = self.wakes.pop(0) if wakes else None
        self.handled: list[tuple[float, list[Any]]] = []
        self.at_once: dict[type[object], Effect] = {}  # effects of reading, by what is read

    def read(self, incoming: Incoming, now: float) -> Iterable[Any]:
        effect = self.at_once.get(type(incoming))
        return [incoming] if effect is None else [effect, incoming]

    def handle(self, items: Sequence[Any], now: float) -> Sequence[Effect]:
        self.handled.append((now, list(items)))
        self.wake_at = self.wakes.pop(0) if self.wakes else None
        return self.script.pop(0) if self.script else [End("over")]


class Slow:
    """A link whose publications take a second each. It keeps them with the time of their acknowledgement."""

    def __init__(self, *, refuses: bytes = b"-") -> None:
        self.taken: list[tuple[float, str, bytes]] = []
        self._refuses = refuses
        self.under_way = 0
        self.most_under_way = 0

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(1.0)
        self.under_way -= 1
        self.taken.append((asyncio.get_running_loop().time(), topic, payload))
        return payload != self._refuses

    async def incoming(self) -> AsyncGenerator[Incoming, None]:
        yield Up()
        await asyncio.Event().wait()


def played(machine: Scripted, link: Any, **options: Any) -> Any:
    return clock.run(program(machine, link, **options), within_s=1000)


def one(payload: bytes, lane: str = "", kind: str = "order") -> Publish:
    return Publish([("t", payload)], lane=(kind, lane) if lane else None)


def test_effects_are_carried_out_in_their_order_and_lanes_that_follow_each_other_side_by_side() -> (
    None
):
    link = Slow()
    first, second = one(b"s1", "1", "status"), one(b"s2", "2", "status")
    effects = [one(b"model"), one(b"a1", "a"), one(b"b", "b"), one(b"a2", "a"), first, second]
    machine = Scripted(effects, wakes=[0.0, 0.0])
    assert played(machine, link) == "over"
    assert [(at, payload) for at, _, payload in link.taken] == [
        (1.0, b"model"),
        (2.0, b"a1"),
        (2.0, b"b"),
        (3.0, b"a2"),
        (4.0, b"s1"),
        (4.0, b"s2"),
    ]


def test_no_more_lanes_publish_at_once_than_a_broker_bears() -> None:
    link = Slow()
    orders = [one(b"order", str(agent)) for agent in range(100)]
    played(Scripted(orders, wakes=[0.0, 0.0]), link)
    assert len(link.taken) == 100
    assert link.most_under_way == 32


def test_messages_follow_each_other_until_one_is_not_taken_and_its_item_comes_back() -> None:
    async def parts() -> AsyncGenerator[tuple[str, bytes], None]:
        for payload in (b"1", b"bad", b"3"):
            yield "t", payload

    link = Slow(refuses=b"bad")
    machine = Scripted([Publish(parts, then=lambda taken: ("sent", taken))])
    played(machine, link)
    assert [payload for _, _, payload in link.taken] == [b"1", b"bad"]
    assert machine.handled[-1] == (2.0, [("sent", False)])


class Silent(Slow):
    """A link on which nothing happens."""

    async def incoming(self) -> AsyncGenerator[Incoming, None]:
        await asyncio.Event().wait()
        yield Up()


def test_a_machine_is_woken_when_its_time_comes_and_nothing_came_before() -> None:
    machine = Scripted([], wakes=[7.0, 9.0])
    played(machine, Silent())
    assert machine.handled == [(7.0, []), (9.0, [])]
    machine = Scripted([], wakes=[7.0, 9.0])
    played(machine, Slow())
    assert machine.handled == [(0.0, [Up()]), (9.0, [])]


def test_a_machine_whose_timer_ran_out_a_nanosecond_early_gets_the_time_that_it_asked_for() -> None:
    """It would find nothing to do, and ask for the same time without end."""
    machine = Scripted(wakes=[7.0])

    async def with_a_neighbour() -> None:
        asyncio.get_running_loop().call_at(7.0 - 5e-10, lambda: None)  # both run out together
        link: Any = Silent()
        await program(machine, link)

    clock.run(with_a_neighbour(), within_s=100)
    assert machine.handled == [(7.0, [])]


@virtual(within_s=100)
async def test_items_of_one_kind_are_taken_together_if_the_machine_asks_for_it() -> None:
    items = Items(together=[int])
    for item in (1, 2, "a", "b", 3, *range(TOGETHER)):
        items.add(item)
    taken = [await items.take(None) for _ in range(5)]
    assert taken == [[1, 2], ["a"], ["b"], [3, *range(TOGETHER - 1)], [TOGETHER - 1]]
    assert await items.take(5.0) == []


@virtual(within_s=100)
async def test_a_reader_waits_while_very_many_items_do() -> None:
    items = Items(2)
    putting = asyncio.create_task(asyncio.wait_for(_put_three(items), 10.0))
    await asyncio.sleep(1.0)
    assert not putting.done()
    await items.take(None)
    await putting


async def _put_three(items: Items) -> None:
    for item in ("a", "b", "c"):
        await items.put(item)


def test_work_comes_back_as_an_item_and_new_work_takes_the_place_of_old_work() -> None:
    begun: list[str] = []

    def work(name: str, takes_s: float) -> Any:
        async def perform() -> str:
            begun.append(name)
            await asyncio.sleep(takes_s)
            return name

        return perform

    machine = Scripted(
        [Start("train", work("first", 1.0)), Start("send", work("sent", 2.0)), Show("began")],
        [Start("train", work("second", 9.0)), Start("other", work("never", 1.0)), Cancel("other")],
    )
    shown: list[str] = []
    items = Items()
    items.add(0)
    items.add("now")
    assert played(machine, Silent(), items=items, show=shown.append) == "over"
    assert begun[0] == "first"
    assert machine.handled[-1] == (2.0, ["sent"])
    assert shown == ["began"]


def test_work_that_ended_before_it_was_given_up_counts_for_nothing() -> None:
    """Its result waits behind an item that leads to the end of the work."""

    async def quick() -> str:
        return "late"

    items = Items()
    for item in ("begin", "cancel"):
        items.add(item)
    machine = Scripted(
        [Start("work", quick), one(b"long")],
        [Cancel("work"), Start("work", quick)],
        [],
        wakes=[9.0] * 4,
    )
    played(machine, Silent(), items=items)
    assert [items for _, items in machine.handled] == [["begin"], ["cancel"], ["late"], []]


def test_a_machine_that_is_ahead_gets_the_next_item_while_its_messages_are_on_their_way() -> None:
    items = Items()
    for item in ("first", "second"):
        items.add(item)
    link = Silent()
    shown: list[str] = []
    machine = Scripted([one(b"1"), Show("at once"), one(b"2")], [one(b"3")], wakes=[9.0, 9.0, 9.0])
    played(machine, link, items=items, show=shown.append, ahead=True)
    assert [at for at, _ in machine.handled] == [0.0, 0.0, 9.0]
    assert shown == ["at once"]
    assert [(at, payload) for at, _, payload in link.taken] == [
        (1.0, b"1"),
        (2.0, b"2"),
        (3.0, b"3"),
    ]


@pytest.mark.parametrize("place", ["read", "handle", "work", "thread"])
def test_the_first_error_ends_the_program_bare(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise KeyError(place)

    def failing(*_: Any) -> Any:
        raise KeyError(place)

    async def hang() -> None:
        await asyncio.Event().wait()

    machine = Scripted([Start("hang", hang), Start("fail", fail)], [], [])
    if place != "work":
        monkeypatch.setattr(machine, "read" if place == "read" else "handle", failing)
    with pytest.raises(KeyError, match=place):
        played(machine, Slow(), off_loop=place == "thread")


def test_an_error_ends_the_program_also_while_it_publishes() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.5)
        raise KeyError("early")

    link = Slow()
    with pytest.raises(KeyError, match="early"):
        played(Scripted([Start("fail", fail), one(b"long"), one(b"longer")]), link)
    assert link.taken == []


@virtual(within_s=100)
async def test_a_program_that_is_cancelled_ends_its_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    link: Any = Slow()
    running = asyncio.create_task(program(Scripted([Start("work", work)], []), link))
    await asyncio.sleep(1.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["work"]


def test_effects_of_reading_are_carried_out_while_the_machine_works() -> None:
    shown: list[tuple[float, str]] = []

    class Busy(Slow):
        async def incoming(self) -> AsyncGenerator[Incoming, None]:
            yield Up()
            await asyncio.sleep(0.5)
            yield Received("t", b"question")
            await asyncio.Event().wait()

    def show(text: str) -> None:
        shown.append((asyncio.get_running_loop().time(), text))

    machine = Scripted([one(b"long")])
    machine.at_once[Received] = Show("answer")
    played(machine, Busy(), show=show)
    assert shown == [(0.5, "answer")]
    assert machine.handled[-1][0] == 1.0


class Refusing(Slow):
    """A link whose broker refuses a topic three times."""

    refusals = 3

    async def subscribe(self, topics: Sequence[str]) -> Subscribed:
        if "secret" in topics and self.refusals:
            self.refusals -= 1
            return Subscribed(refused=("secret",))
        return Subscribed()


def test_a_refused_subscription_comes_back_as_an_item_and_is_asked_for_again() -> None:
    machine = Scripted([Subscribe(["open", "secret"])], [])
    played(machine, Refusing())
    handled = [items for _, items in machine.handled]
    assert handled == [[Up()], [TopicsRefused(("secret",))], [TopicsRefused(())]]


def test_a_timer_runs_out_once_and_the_earliest_one_counts() -> None:
    timers = Timers()
    assert timers.next is None
    timers.set("status", 5.0)
    timers.begin("status", 3.0)
    timers.begin("roster", 4.0)
    assert timers.next == 4.0
    assert not timers.take("status", 4.9)
    assert timers.take("status", 5.0)
    assert not timers.take("status", 9.0)
    timers.stop("roster")
    assert timers.next is None
    assert earliest(None, 2.0, 1.0, None) == 1.0
    assert earliest(None) is None
