"""Subscriptions that survive a refusal: the broker is asked again, and the owner is notified.

A client that is connected but not subscribed misses everything, so a refusal must not go unnoticed. The access rules of
a broker may be corrected at any time; therefore it is asked again, with growing pauses, as long as the connection lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from covey.shared.mqtt.backoff import Pauses
from covey.shared.mqtt.link import Link

MAX_ASKED_SINGLY = (
    16  # refused topics that are asked for one by one, to learn which of them are refused
)

Topics = tuple[str, ...]
NotifyRefused = Callable[[Topics], None]


class SubscriptionKeeper:
    """Subscribes over a link, and asks again for what the broker refuses.

    `notify` gets the topics that the broker refuses, and () once it refuses none. A link that is down refuses every
    subscription too; therefore `notify` is called only after a second attempt on the same connection has failed. The
    owner calls `connected` after each `Up`, when nothing is subscribed any more, and `close` at the end.
    """

    def __init__(self, link: Link, notify: NotifyRefused, pauses: Pauses | None = None) -> None:
        self._link = link
        self._notify = notify
        self._pauses = pauses or Pauses()
        self._refused: dict[
            str, None
        ] = {}  # a set of topics, in the order in which they were asked for
        self._notified: Topics = ()  # what `notify` got last
        self._retrying: asyncio.Task[None] | None = None  # runs as long as a topic is refused

    def __repr__(self) -> str:
        return f"SubscriptionKeeper({len(self._refused)} topics refused)"

    def connected(self) -> None:
        """A new connection begins: refusals on the old one no longer matter."""
        self._stop()
        self._refused.clear()
        self._pauses.reset()

    async def add(self, topics: Sequence[str]) -> bool:
        """Subscribe to these topics. False if that failed; then it is tried again later."""
        if await self._link.subscribe(topics):
            self._granted(topics)
            return True
        self._refused |= dict.fromkeys(topics)
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.create_task(self._retry())
        return False

    async def remove(self, topics: Sequence[str]) -> None:
        """End these subscriptions, and do not ask for them again."""
        await self._link.unsubscribe(topics)
        self._granted(topics)

    def close(self) -> None:
        """Stop asking."""
        self._stop()

    async def _retry(self) -> None:
        while self._refused:
            await asyncio.sleep(self._pauses.next())
            for batch in self._batches():
                if await self._link.subscribe(batch):
                    self._granted(batch)
            self._notify_changes()

    def _batches(self) -> list[list[str]]:
        """The refused topics, one by one if they are few: a broker answers for a packet as a whole."""
        refused = list(self._refused)
        if len(refused) > MAX_ASKED_SINGLY:
            return [refused]
        return [[topic] for topic in refused]

    def _granted(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._refused.pop(topic, None)
        if not self._refused:
            self._notify_changes()

    def _notify_changes(self) -> None:
        refused = tuple(self._refused)
        if refused != self._notified:
            self._notified = refused
            self._notify(refused)

    def _stop(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None
