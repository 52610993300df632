"""SubscriptionKeeper that a broker refuses are asked for again, and somebody hears of it.

A refusal must not pass unnoticed: whoever is connected and not subscribed is deaf. The access rules may be put right at
any time, so the broker is asked again with growing pauses, for as long as the connection lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from covey.shared.mqtt.backoff import Pauses
from covey.shared.mqtt.link import Link

ONE_BY_ONE = 16  # up to so many refused topics are asked for in packets of their own, to learn which is refused

Tell = Callable[[tuple[str, ...]], None]


class SubscriptionKeeper:
    """Subscribes over a link. `tell` gets the topics that the broker refuses, and () once it refuses none.

    A link that is down also subscribes nothing; so `tell` is called only after a second attempt failed on the same
    connection. The owner calls `connected` after each `Up`, where nothing is subscribed any more, and `close` at the end.
    """

    def __init__(self, link: Link, tell: Tell, pauses: Pauses | None = None) -> None:
        self._link = link
        self._tell = tell
        self._pauses = pauses or Pauses()
        self._refused: dict[str, None] = {}  # in the order in which they were asked for
        self._told: tuple[str, ...] = ()
        self._retrying: asyncio.Task[None] | None = None

    def connected(self) -> None:
        """A new connection: what was refused on the old one no longer matters."""
        self._stop()
        self._refused.clear()
        self._pauses.reset()

    async def add(self, topics: Sequence[str]) -> bool:
        """Subscribe to these topics; where that fails, it is tried again later."""
        if await self._link.subscribe(topics):
            self._granted(topics)
            return True
        self._refused |= dict.fromkeys(topics)
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.create_task(self._retry())
        return False

    async def remove(self, topics: Sequence[str]) -> None:
        """End these subscriptions, and ask for them no more."""
        await self._link.unsubscribe(topics)
        self._granted(topics)

    def close(self) -> None:
        """Ask no more."""
        self._stop()

    async def _retry(self) -> None:
        while self._refused:
            await asyncio.sleep(self._pauses.next())
            wanted = list(self._refused)
            batches = [[topic] for topic in wanted] if len(wanted) <= ONE_BY_ONE else [wanted]
            for batch in batches:
                if await self._link.subscribe(batch):
                    self._granted(batch)
            self._say()

    def _granted(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._refused.pop(topic, None)
        if not self._refused:
            self._say()

    def _say(self) -> None:
        refused = tuple(self._refused)
        if refused != self._told:
            self._told = refused
            self._tell(refused)

    def _stop(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None
