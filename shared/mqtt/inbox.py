"""The inbox of a link: everything that happened on it, in order, until its owner reads it."""

from __future__ import annotations

import asyncio
from collections import deque

from covey.shared.mqtt.link import Incoming, Message

ITEM_BYTES = 512
"""What a message costs in memory besides its payload: many empty ones fill an inbox too."""

ITEMS_PER_TURN = 64
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
        if self._taken % ITEMS_PER_TURN == 0:
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
