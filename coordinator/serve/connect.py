"""Opens the coordinator's link: to one broker, or to several as one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack

from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Link, Will
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.topics import Topics

INBOX_BYTES = 1 << 28  # of messages that wait to be read, all brokers together
# A shard that leaves a message unacknowledged for this long (s) counts as lost. Until then it holds the others up.
SHARD_ACK_S = 15.0
CROSSING_S = 10.0  # for what is retained at a node of a cluster to reach another one


def fitted(scenario: Scenario, urls: Sequence[BrokerUrl]) -> Scenario:
    """The scenario with parts that all of these brokers take, by their profiles."""
    wire = scenario.wire
    most = min([wire.part_bytes, *[url.profile.part_bytes for url in urls]])
    if most == wire.part_bytes:
        return scenario
    return scenario.model_copy(update={"wire": wire.model_copy(update={"part_bytes": most})})


async def ensure_one_cluster(urls: Sequence[BrokerUrl], federation: str) -> None:
    """Raise UserError if a node of a cluster does not get what is retained at another. One that does not answer is left out."""
    from covey.shared.mqtt.crossing import UNSHARED, Crossing, crossing

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


async def connected(
    stack: AsyncExitStack,
    urls: Sequence[BrokerUrl],
    topics: Topics,
    client_id: str,
    *,
    will: Will | None = None,
    cluster: bool = False,
) -> Link:
    """A link that is open for as long as the stack is.

    Args:
        stack: closes the link.
        urls: the brokers, by their numbers.
        topics: of the federation.
        client_id: the MQTT client id; with several brokers, each gets its number after it.
        cluster: the addresses lead to one broker, and are tried in turn.
        will: each broker publishes it if the link dies.

    Raises:
        UserError: an address cannot be used.
    """
    if len(urls) == 1 or cluster:
        return await stack.enter_async_context(MqttLink(urls, client_id=client_id, will=will))
    from covey.coordinator.serve.sharded_link import ShardedLink

    links: list[Link] = []
    for number, url in enumerate(urls):
        # two addresses may lead to one broker by mistake: the connections must not end each other there
        shard = MqttLink(
            url,
            client_id=f"{client_id}-{number}",
            will=will,
            ack_s=SHARD_ACK_S,
            inbox_bytes=INBOX_BYTES // len(urls),
        )
        links.append(await stack.enter_async_context(shard))
    return await stack.enter_async_context(ShardedLink(links, topics))
