"""The one shell of agent, coordinator and aggregator: it moves messages between a link and a machine, which decides.

The machine never waits. It gets what came in and the time, and returns effects. The shell carries them out, and only then
hands over what came meanwhile, so a slow broker slows a machine down instead of filling the memory. A machine that publishes
little is handed the next item at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from covey.shared.mqtt.link import Incoming, Link, Up
from covey.shared.mqtt.subscriptions import SubscriptionKeeper

AT_ONCE = 32  # lanes that publish at once; more wait their turn
TOGETHER = 64  # items of one kind that a machine gets together
MAX_WAITING = 10_000  # items; beyond this the link's own bounds count

Item = Any  # what a machine handles: each has kinds of its own
Messages = Iterable[tuple[str, bytes]]  # topics and payloads
SlowMessages = Callable[
    [], AsyncGenerator[tuple[str, bytes], None]
]  # those that have to wait for a file


@dataclass(frozen=True)
class Publish:
    """Publish messages one after another, until one of them is not taken.

    Effects are carried out in their order. Those with lanes of one kind, if they follow each other, are published side by
    side, and in order within each lane.
    """

    messages: Messages | SlowMessages
    retain: bool = True
    lane: tuple[str, Hashable] | None = None  # its kind and its name
    shard: int | None = None  # the only broker that gets them; None: the link decides
    # the item that follows, by whether the broker took all of them; None: none follows
    then: Callable[[bool], Item] | None = None


@dataclass(frozen=True)
class Subscribe:
    """Subscribe to topics; the broker sends again what it retains there.

    A broker that refuses is asked again; `Refused` follows if it refuses again.
    """

    topics: Sequence[str]
    shard: int = 0


@dataclass(frozen=True)
class Unsubscribe:
    """End the subscriptions to topics."""

    topics: Sequence[str]
    shard: int = 0


@dataclass(frozen=True)
class Look:
    """Subscribe on every broker to what a broker may refuse without any harm, or end that."""

    topics: Sequence[str]
    ends: bool = False


@dataclass(frozen=True)
class Start:
    """Begin some work; its result is an item, unless it is None. The same name takes the place of what runs under it."""

    name: str
    work: Publish | Callable[[], Coroutine[Any, Any, Item]]


@dataclass(frozen=True)
class Cancel:
    """Give up the work of this name, if it runs. No item follows."""

    name: str


@dataclass(frozen=True)
class Show:
    """Show a notice to people."""

    notice: Any


@dataclass(frozen=True)
class End:
    """The program ends with this result."""

    result: Any = None


Outgoing = Publish | Subscribe | Unsubscribe | Look
Effect = Publish | Subscribe | Unsubscribe | Look | Start | Cancel | Show | End


class Machine(Protocol):
    """Decides, without waiting for anything but files."""

    @property
    def wake_at(self) -> float | None:
        """When to call `handle` without items, if nothing comes before; None: not at all."""

    def read(self, incoming: Incoming, now: float) -> Iterable[Item | Effect]:
        """What follows from something that happened on the link.

        It is called in the event loop at once, even while `handle` works; effects are carried out at once, too.
        """

    def handle(self, items: Sequence[Item], now: float) -> Sequence[Effect]:
        """What follows from an item, or from several of one kind; no items: the time has come."""


class Items:
    """What waits for a machine, in order.

    Args:
        most: how many items `put` lets wait.
        together: kinds of items that a machine gets many of at once, if they follow each other.
    """

    def __init__(self, most: int = MAX_WAITING, together: Sequence[type] = ()) -> None:
        self._most = most
        self._together = together
        self._items: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Items: {len(self)} wait>"

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        """Append an item at once."""
        self._items.append(item)
        self._arrived.set()

    async def put(self, item: Item) -> None:
        """Append an item, once there is room for it."""
        while len(self) >= self._most:
            self._room.clear()
            await self._room.wait()
        self.add(item)

    async def take(self, at: float | None) -> list[Item]:
        """The next item, or several of one kind; none if nothing comes until `at` (time of the loop; None: wait)."""
        if self._items:
            await asyncio.sleep(0)  # others have their turn
        else:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await self._arrived.wait()
        self._room.set()
        if not self._items:
            return []
        taken = [self._items.popleft()]
        kind = type(taken[0])
        if kind in self._together:
            while self._items and type(self._items[0]) is kind and len(taken) < TOGETHER:
                taken.append(self._items.popleft())
        return taken


async def program(
    machine: Machine,
    link: Link,
    *,
    items: Items | None = None,
    shards: Sequence[Link] = (),
    show: Callable[[Any], object] = lambda notice: None,
    off_loop: bool = False,
    ahead: bool = False,
) -> Any:
    """Run a machine over a link, until it ends or the link is closed. Returns the result of its `End`.

    The first error of anything that runs here ends the program, bare.

    Args:
        machine: decides.
        link: open.
        items: where the owner of the machine puts items of its own.
        shards: the links to the single brokers, if `link` leads to several.
        show: gets the notices.
        off_loop: `handle` takes long, and is called in a thread. The machine guards what `read` shares with it.
        ahead: do not wait until the broker has taken what `handle` returns. The order stays.
    """
    shell = _Shell(machine, link, items or Items(), shards or (link,), show)
    return await shell.run(off_loop=off_loop, ahead=ahead)


class _Closed:
    """The link brings nothing any more."""


@dataclass(frozen=True)
class _Result:
    """Some work has ended."""

    name: str
    task: asyncio.Task[Any] | None  # counts as long as the name means this task
    item: Item


class _Shell:
    """The state of one program."""

    def __init__(
        self,
        machine: Machine,
        link: Link,
        items: Items,
        shards: Sequence[Link],
        show: Callable[[Any], object],
    ) -> None:
        self._machine = machine
        self._link = link
        self._items = items
        self._shards = shards
        self._show = show
        self._keepers = [SubscriptionKeeper(shard, self._items.add) for shard in shards]
        self._works: dict[str, asyncio.Task[Any]] = {}  # until their results are handled
        self._outgoing: list[Effect] = []  # what goes to the broker in a task of its own
        self._has_outgoing = asyncio.Event()
        self._main: asyncio.Task[Any] | None = None
        self._error: BaseException | None = None  # the first of a task

    async def run(self, *, off_loop: bool, ahead: bool) -> Any:
        self._main = asyncio.current_task()
        aside = [self._spawn(self._read())]
        if ahead:
            aside.append(self._spawn(self._send()))
        try:
            return await self._live(off_loop=off_loop, ahead=ahead)
        except asyncio.CancelledError:
            if self._error is None or self._main is None or self._main.uncancel():
                raise
            raise self._error from None
        finally:
            self._main = None
            for keeper in self._keepers:
                keeper.close()
            tasks = [*aside, *self._works.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, *, off_loop: bool, ahead: bool) -> Any:
        machine, loop = self._machine, asyncio.get_running_loop()
        while True:
            wake_at = machine.wake_at
            items = await self._items.take(wake_at)
            now = loop.time()
            if not items and wake_at is not None:
                now = max(now, wake_at)  # timers of the loop may run out a nanosecond early
            match items:
                case [_Closed()]:
                    return None
                case [_Result() as result]:
                    if self._works.get(result.name) is not result.task:
                        continue  # it was given up after it had ended
                    del self._works[result.name]
                    if result.item is None:
                        continue
                    items = [result.item]
            if off_loop:
                effects = await asyncio.to_thread(machine.handle, items, now)
            else:
                effects = machine.handle(items, now)
            if ahead and any(isinstance(effect, Outgoing) for effect in effects):
                self._outgoing += [effect for effect in effects if isinstance(effect, Outgoing)]
                self._has_outgoing.set()
                effects = [effect for effect in effects if not isinstance(effect, Outgoing)]
            end = await self._carry_out(effects)
            if end is not None:
                return end.result

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        async for incoming in self._link.incoming():
            if isinstance(incoming, Up):
                self._keepers[incoming.shard].connected()
            found = list(self._machine.read(incoming, loop.time()))
            await self._carry_out([one for one in found if isinstance(one, Effect)])
            for one in found:
                if not isinstance(one, Effect):
                    await self._items.put(one)
        await self._items.put(_Closed())

    async def _send(self) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            outgoing, self._outgoing = self._outgoing, []
            await self._carry_out(outgoing)

    async def _carry_out(self, effects: Sequence[Effect]) -> End | None:
        lanes: dict[Hashable, list[Publish]] = {}
        kind = ""
        for effect in effects:
            if isinstance(effect, Publish) and effect.lane is not None:
                if effect.lane[0] != kind:
                    await self._publish_lanes(lanes)
                kind, name = effect.lane
                lanes.setdefault(name, []).append(effect)
                continue
            await self._publish_lanes(lanes)
            match effect:
                case Publish():
                    self._add(await self._publish(effect))
                case Subscribe(topics, shard):
                    await self._keepers[shard].add(topics)
                case Unsubscribe(topics, shard):
                    await self._keepers[shard].remove(topics)
                case Look(topics, ends):
                    await (self._link.unsubscribe if ends else self._link.subscribe)(topics)
                case Start(name, work):
                    self._cancel(name)
                    self._works[name] = self._spawn(self._perform(name, work))
                case Cancel(name):
                    self._cancel(name)
                case Show(notice):
                    self._show(notice)
                case End():
                    return effect
        await self._publish_lanes(lanes)
        return None

    async def _publish_lanes(self, lanes: dict[Hashable, list[Publish]]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def publish(lane: list[Publish]) -> None:
            async with gate:
                for one in lane:
                    self._add(await self._publish(one))

        await asyncio.gather(*map(publish, lanes.values()))
        lanes.clear()

    async def _publish(self, effect: Publish) -> Item:
        """Publish messages. Returns the item that follows."""
        link = self._link if effect.shard is None else self._shards[effect.shard]
        taken = True
        if callable(effect.messages):
            async with contextlib.aclosing(effect.messages()) as messages:
                async for topic, payload in messages:
                    taken = await link.publish(topic, payload, retain=effect.retain)
                    if not taken:
                        break
        else:
            for topic, payload in effect.messages:
                taken = await link.publish(topic, payload, retain=effect.retain)
                if not taken:
                    break
        return None if effect.then is None else effect.then(taken)

    async def _perform(
        self, name: str, work: Publish | Callable[[], Coroutine[Any, Any, Item]]
    ) -> None:
        item = await (self._publish(work) if isinstance(work, Publish) else work())
        self._items.add(_Result(name, asyncio.current_task(), item))

    def _add(self, item: Item) -> None:
        if item is not None:
            self._items.add(item)

    def _cancel(self, name: str) -> None:
        task = self._works.pop(name, None)
        if task is not None:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task whose error ends the program: one without the task would look alive to others."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None and self._main is not None:
            self._error = error
            self._main.cancel()
