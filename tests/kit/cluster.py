"""A cluster of brokers in memory: its nodes pass messages on to each other."""

from __future__ import annotations

import asyncio

from tests.kit.memory_broker import MemoryBroker


class Node(MemoryBroker):
    """One node. Make all of them with `cluster`.

    Args:
        shares_retained: whether the other nodes get what is retained here. RabbitMQ's do not: what they get is live only.
        late_s: how much later (s) than what is live, as NATS' may.
    """

    def __init__(self, *, shares_retained: bool = True, late_s: float = 0.0) -> None:
        super().__init__()
        self.shares_retained = shares_retained
        self.late_s = late_s
        self.others: list[Node] = []

    def route(self, topic: str, payload: bytes, retain: bool) -> None:
        super().route(topic, payload, retain)
        for node in self.others:
            MemoryBroker.route(node, topic, payload, retain=False)
            if retain and self.shares_retained:
                keep = node.retained.keep
                asyncio.get_running_loop().call_later(self.late_s, keep, topic, payload)


def cluster(count: int, *, shares_retained: bool = True, late_s: float = 0.0) -> list[Node]:
    """As many nodes."""
    nodes = [Node(shares_retained=shares_retained, late_s=late_s) for _ in range(count)]
    for node in nodes:
        node.others = [other for other in nodes if other is not node]
    return nodes
