"""What every link is made of: an inbox that its owner reads, and patience between attempts to connect."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from covey.shared.mqtt.link import Incoming, Message

ITEM_BYTES = 512
"""What a message costs in memory besides its payload: many empty ones fill an inbox too."""

TURN = 64
"""Items handed out in one go before other tasks get a turn: a long inbox must not delay the keep-alive."""


class Inbox:
    """What happened on a link and was not taken yet, in order; an async iterator for one reader.

    A reader may be cancelled while it waits (a timeout around `anext`) and loses nothing.
    After `close` the reader still gets what had arrived before.
    """

    def __init__(self) -> None:
        self._items: deque[Incoming] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._taken = 0
        self._messages = 0
        self.size_bytes = 0

    def put(self, item: Incoming) -> None:
        """Append an item; what comes after `close` is forgotten."""
        if self._closed:
            return
        if isinstance(item, Message):
            self._messages += 1
            self.size_bytes += len(item.payload) + ITEM_BYTES
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def __len__(self) -> int:
        """Messages waiting; `Up` and `Down` do not count."""
        return self._messages

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> Incoming:
        self._taken += 1
        if self._taken % TURN == 0:
            await asyncio.sleep(0)
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        item = self._items.popleft()
        if isinstance(item, Message):
            self._messages -= 1
            self.size_bytes -= len(item.payload) + ITEM_BYTES
        return item


@dataclass
class Backoff:
    """How long to wait before the next attempt: doubling from `first_s` to `most_s`, times 0.5 to 1.5 by chance.

    It starts afresh only after a connection that lasted `calm_s`. That is longer than the longest wait, so
    two clients that fight for one client id slow each other down for good instead of in waves.
    """

    first_s: float = 0.1
    most_s: float = 30.0
    calm_s: float = 60.0
    uniform: Callable[[float, float], float] = random.uniform
    _next_s: float = field(default=0.0, init=False)

    def delay(self, lasted_s: float = 0.0) -> float:
        """Seconds to wait after a connection that lasted `lasted_s` (0: it never came about)."""
        if lasted_s >= self.calm_s or not self._next_s:
            self._next_s = self.first_s
        delay_s = self._next_s * self.uniform(0.5, 1.5)
        self._next_s = min(self.most_s, 2 * self._next_s)
        return delay_s
