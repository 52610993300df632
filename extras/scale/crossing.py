"""What passes from one broker to another: live messages, and retained ones.

Covey keeps its state in retained messages. Brokers that pass on live messages only, as the nodes of some clusters do,
are neither one broker for it nor independent ones.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from enum import Enum

from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Link, Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink

TRIES = 5  # to get what a broker retains
CROSSING_S = 10.0  # for what is retained at a node of a cluster to reach another one
UNSHARED = (
    "the nodes of a cluster that keeps retained messages where they were published (RabbitMQ) are not one broker: an agent "
    "at one of them sees no order from another. Use one node for the coordinator and all agents, or independent brokers"
)


class Crossing(Enum):
    """What passes from one broker to another."""

    NOTHING = "nothing"
    LIVE = "live messages, and no retained ones"
    ALL = "live and retained messages"
    UNKNOWN = "no answer in time"  # of one of them


async def crossing(
    start: BrokerUrl, end: BrokerUrl, topic: str, patience_s: float = 5.0
) -> Crossing:
    """Find out what passes from one broker to another. It leaves nothing behind.

    Args:
        start: where a message is published.
        end: where it should be received.
        topic: of the message, which no other program uses.
        patience_s: a message that has not crossed after this time (s) never does.
    """
    name = topic.replace("/", "-")
    async with (
        MqttLink(start, client_id=f"{name}-from") as sender,
        MqttLink(end, client_id=f"{name}-to") as reader,
    ):
        try:
            return await _crossing(sender, reader, topic, patience_s)
        except TimeoutError:
            return Crossing.UNKNOWN


async def _crossing(sender: Link, reader: Link, topic: str, patience_s: float) -> Crossing:
    for link in (sender, reader):
        async with asyncio.timeout(patience_s):
            while not isinstance(await anext(link.incoming()), Up):
                pass
    if not await reader.subscribe([topic]) or not await sender.publish(
        topic, b"state", retain=True
    ):
        return Crossing.UNKNOWN
    try:
        if not await _hears(reader, patience_s):
            return Crossing.NOTHING
        for _ in range(TRIES):  # what is retained may come later than what is live (NATS)
            # now the reader's broker sends what it retains itself
            if not await reader.subscribe([topic]):
                return Crossing.UNKNOWN
            if await _hears(reader, patience_s / TRIES):
                return Crossing.ALL
        return Crossing.LIVE
    finally:
        await sender.publish(topic, b"", retain=True)


async def _hears(link: Link, patience_s: float) -> bool:
    """Whether a message comes in time."""
    try:
        async with asyncio.timeout(patience_s):
            while not isinstance(await anext(link.incoming()), Received):
                pass
    except TimeoutError:
        return False
    return True


async def ensure_one_cluster(urls: Sequence[BrokerUrl], federation: str) -> None:
    """Raise UserError if a node of a cluster does not get what is retained at another. One that does not answer is left out."""
    topic = f"covey/{federation}/doctor-{uuid.uuid4().hex[:8]}"
    ways = [way for other in urls[1:] for way in ((urls[0], other), (other, urls[0]))]
    seen = await asyncio.gather(
        *[crossing(*way, f"{topic}/{number}", CROSSING_S) for number, way in enumerate(ways)]
    )
    for other, there, back in zip(urls[1:], seen[::2], seen[1::2], strict=True):
        if there is back is Crossing.LIVE:
            raise UserError(
                f"--cluster: between {urls[0]} and {other} cross {there.value}; {UNSHARED}"
            )
