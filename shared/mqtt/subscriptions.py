"""Subscriptions that survive a refusal: the broker is asked again, and the owner is notified.

A broker that does not answer has refused nothing: it is asked again, too, but the owner is not notified.

A client that is connected but not subscribed misses everything, so a refusal must not go unnoticed. The access rules of
a broker may be corrected at any time; therefore it is asked again, with growing pauses, as long as the connection lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from covey.shared.mqtt.backoff import Pauses
from covey.shared.mqtt.link import Link

MAX_ASKED_SINGLY = 16  # missing topics that are asked for one by one: one packet each

Topics = tuple[str, ...]
NotifyRefused = Callable[[Topics], None]


class SubscriptionKeeper:
    """Subscribes over a link, and asks again for what the broker refuses.

    `notify` gets the topics that the broker refuses, and () once it refuses none. It is called only after a second
    attempt on the same connection was refused: access rules may change while agents connect. An attempt without an
    answer (the link is down, or a busy broker is late) is repeated and does not count. The owner calls `connected` after each `Up`, when nothing is subscribed any more, and `close` at the end.
    """

    def __init__(self, link: Link, notify: NotifyRefused, pauses: Pauses | None = None) -> None:
        self._link = link
        self._notify = notify
        self._pauses = pauses or Pauses()
        # topics to ask for again, in the order in which they were asked for, and whether
        # the broker answered with a refusal when it was asked again
        self._missing: dict[str, bool] = {}
        self._notified: Topics = ()  # what `notify` got last
        self._retrying: asyncio.Task[None] | None = None  # runs as long as a topic is missing

    def __repr__(self) -> str:
        return f"SubscriptionKeeper({len(self._missing)} topics missing)"

    def connected(self) -> None:
        """A new connection begins: refusals on the old one no longer matter."""
        self._stop()
        self._missing.clear()
        self._pauses.reset()

    async def add(self, topics: Sequence[str]) -> bool:
        """Subscribe to these topics. False if that failed; then it is tried again later."""
        if await self._link.subscribe(topics):
            self._granted(topics)
            return True
        for topic in topics:
            self._missing.setdefault(topic, False)
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
        while self._missing:
            await asyncio.sleep(self._pauses.next())
            for batch in self._batches():
                answer = await self._link.subscribe(batch)
                if answer.answered:
                    self._settle(batch, answer.refused)
            self._notify_changes()

    def _batches(self) -> list[list[str]]:
        """The missing topics, one by one if they are few, so that a refused one does not hold up the others."""
        missing = list(self._missing)
        if len(missing) > MAX_ASKED_SINGLY:
            return [missing]
        return [[topic] for topic in missing]

    def _settle(self, asked: Sequence[str], refused: Sequence[str]) -> None:
        """The broker answered a repeated request: some of these topics may be refused."""
        granted = [topic for topic in asked if topic not in refused]
        for topic in refused:
            if topic in self._missing:  # the owner may have removed it meanwhile
                self._missing[topic] = True
        self._granted(granted)

    def _granted(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._missing.pop(topic, None)
        if not self._missing:
            self._notify_changes()

    def _notify_changes(self) -> None:
        refused = tuple([topic for topic, is_refused in self._missing.items() if is_refused])
        if refused != self._notified:
            self._notified = refused
            self._notify(refused)

    def _stop(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None
