"""Agents on several Mosquittos, in the process of a test."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from covey.agent.device.service import Agent
from covey.broker.testing.memory_broker import MemoryBroker
from covey.coordinator.engine.rules import Rules
from covey.coordinator.run.run import Run
from covey.coordinator.serve.connect import connected
from covey.coordinator.serve.service import Service
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.shards import shard_of
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.topics import Topics
from tests.small_fleet import Fleet
from tests.small_run import clients, setup


class MosquittoFleet(Fleet):
    """Agents and a coordinator over real brokers, divided by the rule of `broker enroll`.

    Args:
        folder: of the fleet.
        scene: what to run.
        rules: of its rounds.
        urls: of the brokers, which run.
        aggregators: whether the coordinator gives aggregators work.
    """

    def __init__(
        self,
        folder: Path,
        scene: Scenario,
        rules: Rules,
        urls: list[str],
        *,
        aggregators: bool = False,
    ) -> None:
        super().__init__(folder, scene, rules, MemoryBroker(), clients())
        self.urls = urls
        self.with_aggregators = aggregators

    async def _live(self, client: str, agent: Agent) -> None:
        shard = shard_of(client, len(self.urls))
        url = self.urls[shard]
        async with MqttLink(url, client_id=agent.client_id, will=agent.will) as link:
            await agent.run(link)

    async def coordinate(self) -> Run:
        """A whole run."""
        now = asyncio.get_running_loop().time()
        run = Run.start(self.folder / "run", self.scene, setup(self.scene), self.rules, "r1", now)
        urls = [BrokerUrl.parse(url) for url in self.urls]
        async with AsyncExitStack() as stack:
            link = await connected(stack, urls, Topics("default"), "coordinator", will=True)
            service = Service(run, link, observer=self._keep, aggregators=self.with_aggregators)
            assert await service.serve() == ""
        return run
