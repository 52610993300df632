"""Subscriptions that survive a refusal: the broker is asked again, and the owner is notified.

A broker that does not answer has refused nothing: it is asked again, too, but the owner is not notified.

A client that is connected but not subscribed misses everything, so a refusal must not go unnoticed. The access rules of
a broker may be corrected at any time; therefore it is asked again, with growing pauses, as long as the connection lasts.
A cluster that refuses what it accepted before has lost a node (NATS), and is asked again soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from covey.shared.mqtt.backoff import Pauses
from covey.shared.mqtt.link import Link

MAX_ASKED_SINGLY = 16  # missing topics that are asked for one by one: one packet each
NODES_S = 2.0  # the longest pause (s) before a cluster is asked again for what it accepted before


@dataclass(frozen=True)
class TopicsRefused:
    """A broker refuses the subscriptions to these topics. No topics: it accepts all of them again."""

    topics: tuple[str, ...]
    accepted_before: bool = False  # all of them, on this connection or an earlier one

    @property
    def why(self) -> str:
        """What a person reads; empty if nothing is refused."""
        if not self.topics:
            return ""
        refused = f"the broker refuses the subscription to {', '.join(self.topics)}"
        if self.accepted_before:
            return f"{refused}, which it accepted before; it is asked again. Check that all of its nodes are up"
        return (
            f"{refused}; it is asked again. Check its access rules for this user, and that all of its "
            "nodes are up"
        )


class SubscriptionKeeper:
    """Subscribes over a link, and asks again for what the broker refuses.

    `notify` gets the topics that the broker refuses, and none once it refuses none. It is called only after a second
    attempt on the same connection was refused: access rules may change while agents connect. An attempt without an
    answer (the link is down, or a busy broker is late) is repeated and does not count. The owner calls `connected` after each `Up`, when nothing is subscribed any more, and `close` at the end.
    """

    def __init__(
        self, link: Link, notify: Callable[[TopicsRefused], None], pauses: Pauses | None = None
    ) -> None:
        self._link = link
        self._notify = notify
        self._pauses = pauses or Pauses()
        # topics to ask for again, in the order in which they were asked for, and whether
        # the broker answered with a refusal when it was asked again
        self._missing: dict[str, bool] = {}
        self._accepted: set[str] = set()  # topics that the broker accepted, on any connection
        self._notified: tuple[str, ...] = ()  # what `notify` got last
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
        answer = await self._link.subscribe(topics)
        missing = answer.refused if answer.answered else topics
        for topic in missing:
            self._missing.setdefault(topic, False)
        if answer.answered:
            self._granted([topic for topic in topics if topic not in missing])
        if answer:
            return True
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.create_task(self._retry())
        return False

    async def remove(self, topics: Sequence[str]) -> None:
        """End these subscriptions, and do not ask for them again."""
        await self._link.unsubscribe(topics)
        self._settled(topics)

    def close(self) -> None:
        """Stop asking."""
        self._stop()

    async def _retry(self) -> None:
        while self._missing:
            pause_s = self._pauses.next()
            if not self._accepted.isdisjoint(self._missing):
                pause_s = min(pause_s, NODES_S)
            await asyncio.sleep(pause_s)
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
        self._accepted.update(topics)
        self._settled(topics)

    def _settled(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._missing.pop(topic, None)
        if not self._missing:
            self._pauses.reset()
            self._notify_changes()

    def _notify_changes(self) -> None:
        refused = tuple([topic for topic, is_refused in self._missing.items() if is_refused])
        if refused != self._notified:
            self._notified = refused
            before = bool(refused) and self._accepted.issuperset(refused)
            self._notify(TopicsRefused(refused, before))

    def _stop(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None
