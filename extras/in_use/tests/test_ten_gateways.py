"""Three months of ten gateways in virtual time: which version each of them uses, at every moment.

The agents, the broker and the publications are those of the product; a worker only answers how good a model is on a gateway.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.device.identity import Identity
from covey.agent.device.service import Agent
from covey.coordinator.disk.versions import ModelVersion
from covey.extras.in_use.keeper import KeepOptions
from covey.extras.in_use.kept_versions import Version, judge
from covey.extras.in_use.model_dir import read_index
from covey.extras.in_use.publish import publish
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.jobs import Adopted, AdoptModel, DeviceData, ModelJudgement
from covey.shared.wire.topics import Topics
from tests import clock
from tests.agent.orders import TASK
from tests.agent.test_service import FakePool
from tests.kit.memory_broker import MemoryBroker

NAMES = tuple(f"gw-{number}" for number in range(10))
CAREFUL = "gw-9"  # its owner does not let an operator override the check
LAYOUT = Layout((Tensor("w", (600,)),), 1)
CLUSTERS = {name: number % 2 for number, name in enumerate(NAMES)}
GOOD, BAD = {"n": 200, "accuracy": 0.9}, {"n": 200, "accuracy": 0.6}
SPOILT = {("may", name) for name in ("gw-7", "gw-8", CAREFUL)}  # worse than the month before
SETTLES_S = 30.0


class Worker(FakePool):
    """Judges the models of one gateway."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def figures(self, run: str) -> dict[str, Any]:
        return BAD if (run, self.name) in SPOILT else GOOD

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if not isinstance(job, AdoptModel):
            return await super().call(job, weight=weight)
        await asyncio.sleep(self.takes_s)
        deployment = Deployment.from_bytes(job.deployment)
        version = Version(deployment.run, deployment.round, job.clusters[0], deployment.origin)
        before = job.keep.current.partition("-")[0]
        verdict = judge(self.figures(version.run), self.figures(before) if before else None, 0.05)
        accepted = verdict.accepted or (deployment.force and self.name != CAREFUL)
        if accepted:
            (job.keep.folder / version.file).write_bytes(b"a model")
        kept = ModelJudgement(
            version=version.to_json(),
            accepted=accepted,
            why=verdict.why,
            figure=("accuracy", self.figures(version.run)["accuracy"]),
            is_first=not before,
        )
        return Adopted(kept=kept)


class Site:
    """The gateways, their broker, and an operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = MemoryBroker()
        self.agents: dict[str, tuple[Agent, asyncio.Task[None]]] = {}

    async def _lives(self, agent: Agent) -> None:
        async with self.broker.link(agent.client_id, agent.will) as link:
            await agent.run(link)

    def start(self, name: str) -> None:
        identity = Identity(
            name, "default", DeviceData(data="x"), self.folder / name, durable=False
        )
        keep = KeepOptions(self.folder / f"models-{name}")
        agent = Agent(identity, Worker(name), keep=keep)
        self.agents[name] = agent, asyncio.create_task(self._lives(agent))

    async def stop(self, name: str) -> None:
        agent, life = self.agents.pop(name)
        agent.stop()
        await life

    async def publish(self, run: str, *devices: str, force: bool = False) -> None:
        """A version of a month goes out."""
        models = tuple(np.full(600, cluster, np.float32) for cluster in (0, 1))
        version = ModelVersion(run, 3, TASK.for_agents(), LAYOUT, models, CLUSTERS, {})
        async with self.broker.link("operator") as link:
            await publish(
                link,
                Topics("default"),
                version,
                origin="operator",
                part_bytes=1024,
                force=force,
                devices=devices,
            )
        await asyncio.sleep(SETTLES_S)

    def expects(self, run: str, **others: str) -> None:
        """All gateways use the version of a month, but for the others, each the model of its cluster."""
        found = {}
        for name in NAMES:
            kept = read_index(self.folder / f"models-{name}").in_use
            assert kept is not None
            assert kept.version.cluster == CLUSTERS[name]
            found[name] = kept.version.run
        named = {name.replace("_", "-"): other for name, other in others.items()}
        assert found == dict.fromkeys(NAMES, run) | named


@clock.virtual(within_s=3600)
async def test_at_every_moment_it_is_known_which_version_each_of_ten_gateways_uses(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    for name in NAMES:
        site.start(name)
    await site.publish("march")
    site.expects("march")

    # a month later: a canary on two gateways, then all
    await site.publish("april", "gw-0", "gw-1")
    site.expects("march", gw_0="april", gw_1="april")
    await site.publish("april")
    site.expects("april")

    # a bad month on three gateways: they keep what they have, one also against the operator's will
    await site.publish("may")
    site.expects("may", gw_7="april", gw_8="april", gw_9="april")
    await site.publish("may", force=True)
    site.expects("may", gw_9="april")

    # back across runs, also on the gateways that were forced
    await site.publish("april", force=True)
    site.expects("april")

    # new data, trained again; a gateway that is away follows when it is back
    await site.stop("gw-5")
    await site.publish("june")
    site.expects("june", gw_5="april")
    site.start("gw-5")
    await asyncio.sleep(SETTLES_S)
    site.expects("june")
    for name in NAMES:
        await site.stop(name)
