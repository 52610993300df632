"""Aggregators near the brokers of a run: the bytes are those of a run without them, whatever happens to them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.aggregate.service import AggregatorService
from covey.coordinator.aggregate.service import last_will as aggregator_will
from covey.coordinator.run.run import Run
from covey.coordinator.serve.service import Service, last_will
from covey.coordinator.serve.sharded_link import ShardedLink
from covey.shared.mqtt.link import Link
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.topics import Topics
from tests.coordinator.test_shards import ShardedFleet, played
from tests.small_run import fingerprint, in_process, scenario, setup

TOPICS = Topics("default")
EVERYBODY = {"count": 3, "participation": 1.0}


class AggregatedFleet(ShardedFleet):
    """A fleet on several brokers, each with an aggregator."""

    def __init__(self, folder: Path, scene: Scenario, shards: int = 2, **changes: Any) -> None:
        super().__init__(folder, scene, shards, **changes)
        self.aggregating: dict[int, asyncio.Task[None]] = {}
        self.links: dict[int, Link] = {}
        self.said: list[str] = []
        self.without: set[int] = set()  # shards that start without an aggregator

    async def __aenter__(self) -> AggregatedFleet:
        for shard in range(len(self.brokers)):
            if shard not in self.without:
                self.aggregate(shard)
        await super().__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await super().__aexit__(*raised)
        for task in self.aggregating.values():
            task.cancel()
        await asyncio.gather(*self.aggregating.values(), return_exceptions=True)

    def aggregate(self, shard: int, session: str = "") -> None:
        """Start the aggregator of a shard."""
        self.aggregating[shard] = asyncio.create_task(
            self._aggregate(shard, session or f"s{shard}")
        )

    async def _aggregate(self, shard: int, session: str) -> None:
        will = aggregator_will(TOPICS, session)
        async with self.brokers[shard].link(f"aggregator-{session}", will) as link:
            self.links[shard] = link
            await AggregatorService(link, TOPICS, session, say=self.said.append).run()

    async def kill_aggregator(self, shard: int) -> None:
        await self.links[shard].abort()
        self.aggregating[shard].cancel()

    async def serve(self, run: Run | None = None, observer: Any = None) -> Run:
        now = asyncio.get_running_loop().time()
        this = run or Run.start(
            self.folder / "run", self.scene, setup(self.scene), self.rules, "r1", now
        )
        async with AsyncExitStack() as stack:
            links = []
            for broker in self.brokers:
                link = broker.link("coordinator", last_will(TOPICS))
                links.append(await stack.enter_async_context(link))
            merged = await stack.enter_async_context(ShardedLink(links, TOPICS))
            self.service = Service(this, merged, observer=observer or self._keep, aggregators=True)
            why = await self.service.serve()
        assert not why, why
        return this

    @property
    def sums(self) -> list[str]:
        """Lines of the aggregators about sums that they sent."""
        return [line for line in self.said if "the sum of" in line]


@pytest.mark.parametrize("method", ["fedavg", "fedclust", "ifca", "lg"])
def test_a_run_with_aggregators_has_the_bytes_of_one_without(method: str, tmp_path: Path) -> None:
    scene = scenario(method, rounds=EVERYBODY)
    fleets: list[AggregatedFleet] = []

    def fleet() -> AggregatedFleet:
        fleets.append(AggregatedFleet(tmp_path / "summed", scene))
        return fleets[0]

    summed = played(fleet)
    direct = in_process(tmp_path / "direct", scene)
    assert fingerprint(summed) == fingerprint(direct)
    assert fleets[0].sums
