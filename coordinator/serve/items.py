"""What waits for the service, in order; items of one kind that follow each other are taken together."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TypeVar

from covey.coordinator.serve.aggregators import AggregatorItem
from covey.coordinator.serve.intake import Arrived, Seen
from covey.shared.mqtt.link import Down, Up
from covey.shared.wire.documents import Control

# small items that were read and not yet dealt with; beyond this the link's own bounds count
MAX_WAITING = 10_000
MAX_TOGETHER = 64  # items of one kind that are taken together


@dataclass(frozen=True)
class Stop:
    """End the service; the run can be resumed."""


@dataclass(frozen=True)
class Repeat:
    """Another coordinator published, and may have overwritten retained documents: publish all of them again."""

    shard: int = 0  # where it did


@dataclass(frozen=True)
class Cleared:
    """Somebody cleared the coordinator's status, and perhaps all that a broker retained."""

    shard: int = 0


@dataclass(frozen=True)
class Wake:
    """Look at the timers: one of them has changed."""


Item = Wake | Up | Down | Arrived | Seen | AggregatorItem | Control | Stop | Repeat | Cleared
Kind = TypeVar("Kind", Arrived, Seen)


class Items:
    """A bounded queue of items with one reader."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Item] = asyncio.Queue(MAX_WAITING)
        self._next: Item | None = None  # was taken, and comes before those in the queue

    def __repr__(self) -> str:
        waiting = self._queue.qsize()
        return f"<Items: {waiting} wait>"

    def __len__(self) -> int:
        """Items that wait."""
        return self._queue.qsize()

    async def put(self, item: Item) -> None:
        """Append an item, once there is room for it."""
        await self._queue.put(item)

    def wake(self, item: Stop | Wake) -> None:
        """Append an item that only wakes the reader; if the queue is full, the reader is awake."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(item)

    async def take(self, timeout_s: float | None) -> Item | None:
        """The next item; None if none comes within the time."""
        if self._next is not None:
            item = self._next
            self._next = None
            return item
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self._queue.get()
        return None

    def together(self, first: Kind) -> list[Kind]:
        """This item and those of its kind right behind it."""
        kind = type(first)
        found = [first]
        while len(found) < MAX_TOGETHER and not self._queue.empty():
            item = self._queue.get_nowait()
            if not isinstance(item, kind):
                self._next = item
                break
            found.append(item)
        return found
