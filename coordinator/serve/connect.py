"""Opens the coordinator's link: to one broker, or to several as one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from covey.shared import extras
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Link, Will
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.topics import Topics

INBOX_BYTES = 1 << 28  # of messages that wait to be read, all brokers together
# A shard that leaves a message unacknowledged for this long (s) counts as lost. Until then it holds the others up.
SHARD_ACK_S = 15.0


def fitted(scenario: Scenario, urls: Sequence[BrokerUrl]) -> Scenario:
    """The scenario with parts that all of these brokers take, by their profiles."""
    wire = scenario.wire
    most = min([wire.part_bytes, *[url.profile.part_bytes for url in urls]])
    if most == wire.part_bytes:
        return scenario
    return scenario.model_copy(update={"wire": wire.model_copy(update={"part_bytes": most})})


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
    ShardedLink = extras.part("scale", "sharded_link", "several brokers").ShardedLink

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
    merged: Link = await stack.enter_async_context(ShardedLink(links, topics))
    return merged
