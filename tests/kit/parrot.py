"""Agents without data over a real broker: each answers every order, and trains nothing."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from io import BytesIO
from typing import Any

import numpy as np

from covey.shared.mqtt.link import Received, Up, Will
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.numerics.vectors import Layout
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.messages import Encoded, OrderMessage, ReportContent, digest
from covey.shared.wire.parts import split
from covey.shared.wire.topics import Topics

TOPICS = Topics("default")


class Parrot:
    """An agent that sends random weights.

    Args:
        name: of the agent.
        url: of the broker.
        pause_s: between an order and its report (s).
    """

    def __init__(self, name: str, url: str, pause_s: float = 0.0) -> None:
        self.name = name
        self.url = url
        self._pause_s = pause_s
        self._answered: set[tuple[str, int, int]] = set()  # run, step and `again` of orders

    async def live(self, gate: AbstractAsyncContextManager[Any] = nullcontext()) -> None:  # noqa: B008 - it has no state
        """Answer until it is cancelled; `gate` bounds how many parrots report at the same time."""
        online = AgentStatus(agent=self.name, session="s", online=True, samples=10, test_samples=0)
        gone = online.model_copy(update={"online": False})
        will = Will(TOPICS.status(self.name), gone.to_bytes())
        async with MqttLink(self.url, client_id=self.name, will=will) as link:
            async for incoming in link.incoming():
                if isinstance(incoming, Up):
                    await link.subscribe([TOPICS.coordinator_status, TOPICS.order(self.name)])
                elif isinstance(incoming, Received) and incoming.topic == TOPICS.coordinator_status:
                    seen = CoordinatorStatus.from_bytes(incoming.payload)
                    answer = online.model_copy(
                        update={"epoch": seen.epoch, "task": seen.task_digest}
                    )
                    await link.publish(TOPICS.status(self.name), answer.to_bytes(), retain=True)
                elif isinstance(incoming, Received):
                    order = OrderMessage.from_bytes(incoming.payload)
                    if order.work is not None:
                        async with gate:
                            await self._answer(link, order)

    async def _answer(self, link: MqttLink, order: OrderMessage) -> None:
        """Publish the report for an order, in parts."""
        assert order.work is not None
        known = (order.run, order.step, order.again)
        if known in self._answered:
            return
        self._answered.add(known)
        await asyncio.sleep(self._pause_s)
        content = self.content(order)
        parts = split(
            BytesIO(content),
            digest=digest(content),
            size=len(content),
            part_bytes=order.work.part_bytes,
            about=order.step,
        )
        for part in parts:
            payload = part.to_bytes()
            await link.publish(TOPICS.report(self.name, part.index), payload)

    def content(self, order: OrderMessage) -> bytes:
        """The report as it travels."""
        return self.report(order).to_bytes()

    def report(self, order: OrderMessage) -> ReportContent:
        """A report with random weights, or with figures that it made up."""
        assert order.work is not None
        vectors = {}
        numbers: dict[str, Any] = {}
        if order.work.phase == "train":
            vectors["model"] = self.weights(Layout.from_wire(order.work.layout).size)
        if order.work.phase == "evaluate":
            numbers["server"] = {"n": 4, "correct": 3, "accuracy": 0.75, "f1": 0.7, "loss": 0.6}
        return ReportContent(
            run=order.run,
            step=order.step,
            work=order.work.digest,
            client=self.name,
            examples=10,
            steps=1,
            loss=1.0,
            numbers=numbers,
            seconds=0.0,
            vectors=vectors,
        )

    def weights(self, size: int) -> Encoded:
        """The encoded model of a report: random values, as many as asked for."""
        rng = np.random.default_rng(abs(hash(self.name)))
        values = rng.standard_normal(size, np.float32)
        encoded, _ = encode(values, Codec(), base=None, base_digest=b"", error=None, rng=rng)
        return encoded
