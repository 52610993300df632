"""The inbox of a link: everything that happened on it, in order, until its owner reads it."""

from __future__ import annotations

import asyncio
from collections import deque

from covey.shared.mqtt.link import Incoming, Received

ITEM_BYTES = 512  # memory of a message besides its payload: many empty ones fill an inbox too
ITEMS_PER_TURN = 64  # handed out before other tasks run: a long inbox must not delay the keep-alive


class Inbox:
    """What happened on a link and was not taken yet, in order: an async iterator for one reader.

    A reader may be cancelled while it waits (a timeout around `anext`) and loses nothing. After `close` the reader
    still receives what had arrived before.
    """

    def __init__(self) -> None:
        self._items: deque[Incoming] = deque()
        self._changed = asyncio.Event()  # set when an item arrives or the inbox closes
        self._closed = False  # nothing arrives any more
        self._taken = 0  # items handed out so far
        self._messages = 0  # messages among the waiting items
        self.size_bytes = 0  # memory of the waiting messages, ITEM_BYTES for each included

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"Inbox({state}, {self._messages} messages, {self.size_bytes} bytes)"

    def put(self, item: Incoming) -> None:
        """Append an item. After `close` it is dropped."""
        if self._closed:
            return
        if isinstance(item, Received):
            self._messages += 1
            self.size_bytes += len(item.payload) + ITEM_BYTES
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        """Accept no more items. The reader ends after the last one."""
        self._closed = True
        self._changed.set()

    def __len__(self) -> int:
        """The number of waiting messages; `Up` and `Down` do not count."""
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
        if isinstance(item, Received):
            self._messages -= 1
            self.size_bytes -= len(item.payload) + ITEM_BYTES
        return item
