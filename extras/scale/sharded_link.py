"""One link to several independent brokers (shards) of a federation: a `Link` that knows where each agent lives.

Each shard has a link of its own, which reconnects by itself. Everything that arrives is merged into one stream, with the
number of the shard. A shard that is down takes nothing; its owner publishes the retained state again after the shard's next `Up`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from covey.coordinator.serve.placement import Placement
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.link import UNANSWERED, Down, Incoming, Link, Received, Subscribed, Up
from covey.shared.wire.topics import AgentTopic, Topics

MAX_MERGED = 64  # items that wait in the merged stream; beyond this each link's own bounds count
CONNECT_WITHIN_S = 10.0


class ShardedLink:
    """Several links as one, for `async with`; the links are open already, and their owner closes them.

    A message on an agent's own topic goes to the shard where `placement` has the agent; while that is unknown, and if
    the payload is empty, which clears the topic, it goes to every shard. All other messages go to every shard, once.

    Args:
        links: one for each shard, in the order of their numbers.
        topics: of the federation.
    """

    def __init__(self, links: Sequence[Link], topics: Topics) -> None:
        self.links = tuple(links)
        self.placement = Placement(len(links))
        self._topics = topics
        self._merged: asyncio.Queue[Incoming | None] = asyncio.Queue(MAX_MERGED)
        self._pumps: list[asyncio.Task[None]] = []
        self._open = len(links)  # links that may still bring something
        self._changed = asyncio.Event()  # set when a shard comes up

    def __repr__(self) -> str:
        up = len(self.placement.up)
        return f"ShardedLink({up} of {len(self.links)} shards up, {len(self)} messages)"

    async def __aenter__(self) -> Self:
        for shard, link in enumerate(self.links):
            self._pumps.append(asyncio.create_task(self._pump(shard, link)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _pump(self, shard: int, link: Link) -> None:
        """Copy everything that happens on one link to the merged stream; a full stream makes it wait."""
        async for item in link.incoming():
            await self._merged.put(self._numbered(item, shard))
        await self._merged.put(None)

    def _numbered(self, item: Incoming, shard: int) -> Incoming:
        match item:
            case Received(topic, payload, retained):
                return Received(topic, payload, retained, shard)
            case Up():
                self.placement.connected(shard)
                self._changed.set()
            case Down():
                self.placement.disconnected(shard)
        return replace(item, shard=shard)

    async def all_up(self, within_s: float = CONNECT_WITHIN_S) -> None:
        """Wait until every shard is connected. Raises UserError with the numbers of those that are not in time."""
        try:
            async with asyncio.timeout(within_s):
                while len(self.placement.up) < len(self.links):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            numbers = range(len(self.links))
            missing = [number for number in numbers if number not in self.placement.up]
            raise UserError(
                f"brokers {missing} (counted from 0) cannot be reached; nothing was published. Check them with "
                "`broker doctor`"
            ) from None

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """As in `Link`; True if a shard has acknowledged the message, and the others are down."""
        targets = self._targets(topic, payload)
        if len(targets) == 1:
            return await targets[0].publish(topic, payload, retain=retain)
        sent = [link.publish(topic, payload, retain=retain) for link in targets]
        return any(await asyncio.gather(*sent))

    def _targets(self, topic: str, payload: bytes) -> Sequence[Link]:
        if not payload:
            return self.links
        try:
            place = self._topics.parse(topic)
        except DecodeError:
            return self.links
        if not isinstance(place, AgentTopic):
            return self.links
        shard = self.placement.where(place.agent)
        if shard is None:
            return self.links
        return (self.links[shard],)

    async def subscribe(self, topics: Sequence[str]) -> Subscribed:
        """Subscribe on every shard. The answer is the best one: granted, else refused, else `UNANSWERED`."""
        answers = await asyncio.gather(*[link.subscribe(topics) for link in self.links])
        best = UNANSWERED
        for answer in answers:
            if answer:
                return answer
            if answer.answered:
                best = answer
        return best

    async def unsubscribe(self, topics: Sequence[str]) -> bool:
        """End subscriptions on every shard. False if all are down."""
        done = await asyncio.gather(*[link.unsubscribe(topics) for link in self.links])
        return any(done)

    def incoming(self) -> AsyncIterator[Incoming]:
        return self

    def __aiter__(self) -> AsyncIterator[Incoming]:
        return self

    async def __anext__(self) -> Incoming:
        while True:
            item = await self._merged.get()
            if item is not None:
                return item
            self._open -= 1
            if self._open == 0:
                raise StopAsyncIteration

    async def abort(self) -> None:
        """Cut all connections without a goodbye."""
        await asyncio.gather(*[link.abort() for link in self.links])

    def __len__(self) -> int:
        waiting = self._merged.qsize()
        for link in self.links:
            waiting += len(link)
        return waiting
