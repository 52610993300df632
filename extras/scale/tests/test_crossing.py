"""The coordinator tries what passes between the nodes of a cluster, and refuses those that keep retained messages to themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from covey.extras.scale.crossing import Crossing, crossing, ensure_one_cluster
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from tests import clock
from tests.kit.cluster import cluster
from tests.kit.memory_broker import MemoryBroker, MemoryLink

A, B = BrokerUrl.parse("mqtt://a"), BrokerUrl.parse("mqtt://b")


def serve(monkeypatch: pytest.MonkeyPatch, *brokers: MemoryBroker) -> None:
    """Let A and B lead to these brokers."""

    def link(url: BrokerUrl, *, client_id: str) -> MemoryLink:
        return brokers[(A, B).index(url)].link(client_id)

    monkeypatch.setattr("covey.extras.scale.crossing.MqttLink", link)


def refusing() -> list[Any]:
    """Nodes that refuse every subscription, as some do while another one is down."""
    nodes = cluster(2)
    for node in nodes:
        node.denied = {"t"}
    return list(nodes)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        (lambda: cluster(2), Crossing.ALL),
        (lambda: cluster(2, late_s=2.5), Crossing.ALL),
        (lambda: cluster(2, shares_retained=False), Crossing.LIVE),
        (lambda: [MemoryBroker(), MemoryBroker()], Crossing.NOTHING),
        (refusing, Crossing.UNKNOWN),
    ],
)
@clock.virtual(within_s=60)
async def test_the_trial_finds_what_crosses_and_leaves_nothing_behind(
    nodes: Any, found: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = nodes()
    serve(monkeypatch, *brokers)
    assert await crossing(A, B, "t") is found
    await asyncio.sleep(10.0)
    assert not [one for broker in brokers for one in broker.retained.matching("#")]


@clock.virtual(within_s=60)
async def test_a_coordinator_refuses_nodes_that_keep_what_they_retain_to_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve(monkeypatch, *cluster(2, shares_retained=False))
    with pytest.raises(UserError, match=r"RabbitMQ.*independent brokers"):
        await ensure_one_cluster([A, B], "default")


@clock.virtual(within_s=60)
async def test_a_coordinator_accepts_a_cluster_with_a_node_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = cluster(2)
    nodes[1].restart(away_s=1000.0)
    serve(monkeypatch, *nodes)
    await ensure_one_cluster([A, B], "default")
