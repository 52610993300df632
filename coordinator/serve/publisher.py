"""What a run sends to its agents, as retained messages on their topics: orders, models, and questions.

The order of the messages is the caller's: a model is published before the orders that name it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from covey.coordinator.run.disk_space import PAUSE_S
from covey.coordinator.run.effects import SendModel, SendOrder
from covey.coordinator.run.run import Run
from covey.coordinator.serve.placement import Placement
from covey.shared.files import obstacle
from covey.shared.mqtt.link import Link
from covey.shared.wire.documents import ASKED, AgentStatus
from covey.shared.wire.packet_size import publish_bytes
from covey.shared.wire.parts import split
from covey.shared.wire.topics import Topics

PUBLISHERS = 32  # orders under way at once


class Publisher:
    """Publishes for one run over one link, which may lead to several brokers."""

    def __init__(self, run: Run, link: Link, topics: Topics, placement: Placement) -> None:
        self._run = run
        self._link = link
        self._topics = topics
        self._placement = placement
        self._shared = b""  # digest of what the published orders share
        self.unpublished: set[str] = set()  # agents whose newest order the broker has not taken

    def __repr__(self) -> str:
        federation = self._topics.federation
        unpublished = len(self.unpublished)
        return f"<Publisher of {federation}: {unpublished} orders were not taken>"

    async def publish(self, topic: str, payload: bytes) -> bool:
        """Publish a retained message; an empty one clears the topic. Returns whether the broker took it."""
        return await self._link.publish(topic, payload, retain=True)

    async def orders(self, orders: Sequence[SendOrder]) -> None:
        """Publish an agent's order each; `unpublished` remembers those that the broker did not take.

        An agent whose broker is unknown gets its order when it is seen; one whose broker is down, when that is up again.
        """
        gate = asyncio.Semaphore(PUBLISHERS)

        async def publish(send: SendOrder) -> None:
            client = send.client
            topic = self._topics.order(client)
            payload = send.order.to_bytes()
            self._run.traffic["wire_down"] += packet_bytes(topic, payload)
            async with gate:
                taken = await self.publish(topic, payload)
            if taken:
                self.unpublished.discard(client)
            else:
                self.unpublished.add(client)

        placed: list[SendOrder] = []
        for send in orders:
            if self._placement.reaches(send.client):
                placed.append(self._current(send))
        await self._shared_by(placed)
        await asyncio.gather(*map(publish, placed))

    def _current(self, send: SendOrder) -> SendOrder:
        """The order, made again if it shares a content that is not the newest: brokers retain that one alone."""
        brief = send.order.brief
        newest = self._run.orders.shared
        if brief is None or newest is None:
            return send
        if brief.shared.digest == newest.ref.digest:
            return send
        return self._run.order_of(send.client)

    async def _shared_by(self, orders: Sequence[SendOrder]) -> None:
        """Publish what these orders share, unless that is retained since the link came up."""
        shared = self._run.orders.shared
        if shared is None:
            return
        digest = shared.ref.digest
        if digest == self._shared:
            return
        if [send for send in orders if send.order.brief is not None]:
            await self.model(shared)
            self._shared = digest

    def retained_is_unknown(self) -> None:
        """The broker may have forgotten what it retained, or another coordinator has overwritten it."""
        self._shared = b""

    async def model(self, send: SendModel, link: Link | None = None) -> None:
        """Publish a model in parts, with one of them in memory at a time.

        Args:
            send: the model.
            link: to the only broker that needs it; None: every broker that has agents of the model gets it.
        """
        link = link or self._link
        ref = send.ref
        base = self._topics.model(ref.key)
        part_bytes = self._run.scenario.wire.part_bytes
        with await self._opened(send.path) as file:
            parts = split(
                file, digest=ref.digest, size=ref.size, part_bytes=part_bytes, about=send.about
            )
            for part in parts:
                await link.publish(f"{base}/{part.index}", part.to_bytes(), retain=True)

    async def _opened(self, path: Path) -> BinaryIO:
        """A file of the run, once nothing stands in its way."""
        waited_for = ""
        while True:
            try:
                return path.open("rb")
            except OSError as error:
                why = obstacle(error, self._run.folder)
                if not why:
                    raise
            if why != waited_for and self._run.room.tell is not None:
                self._run.room.tell(f"{why}: the run waits for it")
            waited_for = why
            await asyncio.sleep(PAUSE_S)

    async def drop_model(self, key: str, parts: int) -> None:
        """Clear a model that no order names any more."""
        base = self._topics.model(key)
        for part in range(parts):
            await self.publish(f"{base}/{part}", b"")

    async def ask(self, agent: str, session: str) -> None:
        """Publish that an agent is offline: if it lives, it answers at once; if not, this stays retained."""
        question = AgentStatus(agent=agent, session=session, online=False, problem=ASKED)
        await self.publish(self._topics.status(agent), question.to_bytes())

    async def take_back_order(self, agent: str, link: Link) -> None:
        """Clear the order of an agent at a broker where it does not live any more."""
        await link.publish(self._topics.order(agent), b"", retain=True)

    async def clear(self, agent: str) -> None:
        """Take back the orders, models and reports that are retained for an agent that is gone for good."""
        topics = [
            self._topics.order(agent),
            self._topics.report(agent),
            self._topics.deployment_share(agent),
        ]
        own_model = self._topics.model(f"@{agent}")
        for part in range(self._run.orders.parts_of_own_model(agent)):
            topics.append(f"{own_model}/{part}")
        for topic in topics:
            await self.publish(topic, b"")

    async def forget(self, agent: str) -> None:
        """Clear everything that is retained for an agent, its own status included."""
        self.unpublished.discard(agent)
        await self.clear(agent)
        await self.publish(self._topics.status(agent), b"")


def packet_bytes(topic: str, payload: bytes) -> int:
    """Bytes of the PUBLISH packet that carries this payload."""
    topic_bytes = len(topic.encode())
    return publish_bytes(topic_bytes, len(payload))
