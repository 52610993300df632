"""Agents on several Mosquittos, in the process of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from covey.agent.device.service import Agent
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.run.run import Run
from covey.coordinator.serve.connect import connected
from covey.coordinator.serve.service import Service, last_will
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.shards import shard_of
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.wire.jobs import Perform
from covey.shared.wire.messages import OrderMessage
from covey.shared.wire.topics import Topics
from tests.bowl import Trainer
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet, Numpy
from tests.kit.small_run import clients, setup


class Gated(Numpy):
    """Some agents work on some steps only once the gate of the step is open.

    A test that kills a process while agents work opens the gate after the kill: however late the kill comes on a busy
    machine, none of these agents has reported by then.

    Args:
        people: all agents.
        held: the agents that wait at the gates.
        steps: the steps that have a gate.
    """

    def __init__(
        self, people: Mapping[ClientId, Trainer], held: Collection[ClientId], steps: Collection[int]
    ) -> None:
        super().__init__(people, takes_s=0.05)
        self.held = frozenset(held)
        self.gates = {step: asyncio.Event() for step in steps}

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, Perform) and job.client in self.held:
            order = OrderMessage.from_bytes(job.order)
            gate = self.gates.get(order.step)
            if gate is not None:
                await gate.wait()
        return await super().call(job, weight=weight)


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
        rules: RoundRules,
        urls: list[str],
        *,
        aggregators: bool = False,
    ) -> None:
        super().__init__(folder, scene, rules, MemoryBroker(), clients(scene=scene))
        self.urls = urls
        self.with_aggregators = aggregators

    def hold(self, shard: int, *steps: int) -> dict[int, asyncio.Event]:
        """Let the agents of a shard wait before they work on these steps; call it before they join.

        Returns:
            The gate of each step: set it, and they work.
        """
        people = self.people
        held = [client for client in people if shard_of(client, len(self.urls)) == shard]
        gated = Gated(people, held, steps)
        self.pool = gated
        return gated.gates

    async def _live(self, client: str, agent: Agent) -> None:
        shard = shard_of(client, len(self.urls))
        url = self.urls[shard]
        async with MqttLink(url, client_id=agent.client_id, will=agent.will) as link:
            await agent.run(link)

    async def coordinate(self) -> Run:
        """A whole run."""
        now = asyncio.get_running_loop().time()
        run = Run.start(
            self.folder / "run", self.scene, setup(self.scene), rules=self.rules, run="r1", now=now
        )
        urls = [BrokerUrl.parse(url) for url in self.urls]
        async with AsyncExitStack() as stack:
            topics = Topics("default")
            link = await connected(stack, urls, topics, "coordinator", will=last_will(topics, run))
            service = Service(run, link, observer=self._keep, aggregators=self.with_aggregators)
            assert await service.serve() == ""
        return run
