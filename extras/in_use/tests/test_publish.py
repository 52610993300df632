"""Models for use over a broker in memory: what is retained, in which order, and what is taken back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.disk.versions import BEST, ModelVersion, save_version
from covey.coordinator.record.notices import ModelsNotPublished, ModelsPublished, Notice
from covey.extras.audit.check import check
from covey.extras.in_use.finished import publish_finished
from covey.extras.in_use.publish import publish
from covey.extras.in_use.registry import publications
from covey.extras.scale.sharded_link import ShardedLink
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.strategies.base import ClientId
from covey.shared.wire.codec import decode_model
from covey.shared.wire.deployments import Deployment, DeploymentShare
from covey.shared.wire.jobs import Perform
from covey.shared.wire.messages import OrderMessage, Part
from covey.shared.wire.topics import Topics, deployed_key
from tests import clock
from tests.bowl import Trainer
from tests.kit import small_run
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, Numpy

TOPICS = Topics("default")
LAYOUT = Layout((Tensor("w", (600,)),), 1)
PART_BYTES = 1024  # so that a model has three parts


def version(clusters: int, number: int = 3) -> ModelVersion:
    models = tuple(np.full(600, k + number, np.float32) for k in range(clusters))
    assignment = {f"pi-{k}": k for k in range(clusters)} if clusters > 1 else {}
    return ModelVersion("run-1", number, {"features": [1]}, LAYOUT, models, assignment, {})


async def retained(broker: MemoryBroker) -> Mapping[str, bytes]:
    """Everything that the broker retains for this federation."""
    found: dict[str, bytes] = {}
    async with broker.link("reader") as link:
        async with asyncio.timeout(5):
            async for incoming in link.incoming():
                if isinstance(incoming, Up):
                    await link.subscribe(["covey/#", "end"])
                    await link.publish("end", b"x")
                elif isinstance(incoming, Received) and incoming.topic == "end":
                    break
                elif isinstance(incoming, Received):
                    found[incoming.topic] = incoming.payload
    return found


@clock.virtual(within_s=3600)
async def test_a_deployment_is_whole_and_leftovers_of_the_one_before_are_taken_back() -> None:
    broker = MemoryBroker()
    async with broker.link("operator") as link:
        first = await publish(link, TOPICS, version(2), origin="run", part_bytes=PART_BYTES)
        assert first.before.newest is None
        shown = await retained(broker)
        deployment = Deployment.from_bytes(shown[TOPICS.deployment])
        assert (deployment.serial, deployment.round, len(deployment.models)) == (first.serial, 3, 2)
        share = DeploymentShare.from_bytes(shown[TOPICS.deployment_share("pi-1")])
        assert (share.serial, share.cluster) == (first.serial, 1)
        parts = [
            Part.from_bytes(shown[f"{TOPICS.model(deployed_key(1))}/{index}"])
            for index in range(deployment.models[1].parts)
        ]
        content = b"".join(part.data for part in parts)
        assert np.array_equal(decode_model(content, LAYOUT), version(2).models[1])

        second = await publish(link, TOPICS, version(1, 4), origin="operator", part_bytes=1 << 16)
        assert second.serial > first.serial
        assert second.before.all_devices == deployment
        shown = await retained(broker)
        models = [topic for topic in shown if "/model/" in topic]
        assert models == [f"{TOPICS.model(deployed_key(0))}/0"]


@clock.virtual(within_s=3600)
async def test_a_serial_grows_even_if_another_clock_was_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = MemoryBroker()
    async with broker.link("operator") as link:
        first = await publish(link, TOPICS, version(1), origin="run", part_bytes=PART_BYTES)
        an_hour_ago = time.time() - 3600
        monkeypatch.setattr("covey.extras.in_use.publish.time.time", lambda: an_hour_ago)
        again = await publish(link, TOPICS, version(1), origin="run", part_bytes=PART_BYTES)
    assert again.serial == first.serial + 1


@clock.virtual(within_s=3600)
async def test_a_broker_that_does_not_answer_is_an_error() -> None:
    broker = MemoryBroker()
    async with broker.link("operator") as link:
        broker.restart(away_s=1000)
        with pytest.raises(UserError, match="cannot be reached"):
            await publish(link, TOPICS, version(1), origin="run", part_bytes=PART_BYTES)


async def test_a_broker_that_cannot_be_reached_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("covey.extras.in_use.uptake.PAUSE_S", 0.05)
    url = BrokerUrl.parse("mqtt://127.0.0.1:1")
    async with MqttLink(url, client_id="operator") as link:
        with pytest.raises(UserError, match=r"cannot be reached \((?!mqtt).*refused\)"):
            await publish(link, TOPICS, version(1), origin="run", part_bytes=PART_BYTES)


@pytest.mark.parametrize(
    ("wish", "published"), [("end", 2), ("best", 1), ("never", None), ("away", None)]
)
def test_a_finished_run_publishes_the_version_that_the_scenario_names(
    tmp_path: Path, wish: str, published: int | None
) -> None:
    wished = "end" if wish == "away" else wish
    scene = small_run.scenario("fedavg", rounds={"count": 2, "publish": wished})
    (tmp_path / "start.npz").touch()
    run = small_run.in_process(tmp_path, scene)
    np.savez(
        tmp_path / "start.npz",
        starts=np.stack(run.setup.starts),
        layout=np.array(small_run.layout_text(scene)),
    )
    save_version(tmp_path, BEST, replace(run.version({}), round=1))
    seen: list[Notice] = []

    async def whole() -> None:
        broker = MemoryBroker()
        async with broker.link("coordinator") as link:
            if wish == "away":
                broker.restart(away_s=1000)
            await publish_finished(run, link, seen.append)
            if published is not None:  # a resume after the end: an operator may have rolled back
                await publish_finished(run, link, seen.append)

    clock.run(whole())
    rounds = [one.round for one in publications(tmp_path)]
    assert rounds == ([] if published is None else [published])
    audited = check(tmp_path).verdict
    assert [line["fields"]["round"] for line in audited.kept] == rounds
    match seen:
        case [ModelsPublished(round=number, models=1)]:
            assert number == published
        case [ModelsNotPublished(why)]:
            assert wish == "away"
            assert "cannot be reached" in why
        case _:
            assert wish == "never"


class Noting(Numpy):
    """Notes the phase and the round of each order whose model the device may use."""

    def __init__(self, people: Mapping[ClientId, Trainer]) -> None:
        super().__init__(people)
        self.for_use: set[tuple[str, int]] = set()

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, Perform):
            order = OrderMessage.from_bytes(job.order)
            if order.use and order.work is not None:
                self.for_use.add((order.work.phase, order.work.round))
        return await super().call(job, weight=weight)


@pytest.mark.parametrize(
    ("wish", "for_use"),
    [
        ("end", {("evaluate", 2)}),
        ("rounds", {("train", 0), ("evaluate", 1), ("train", 1), ("evaluate", 2)}),
        ("best", set()),
        ("never", set()),
    ],
)
def test_a_model_that_is_still_in_training_is_for_use_only_with_publish_rounds(
    tmp_path: Path, wish: str, for_use: set[tuple[str, int]]
) -> None:
    scene = small_run.scenario(
        "fedavg", rounds={"count": 2, "publish": wish}, evaluation={"every": 1}
    )
    people = small_run.clients(3, scene)
    pool = Noting(people)

    async def whole() -> None:
        rules = small_run.rules(scene, start_agents=3, **PATIENT)
        fleet = Fleet(tmp_path, scene, rules, MemoryBroker(), people)
        fleet.pool = pool
        async with fleet:
            await fleet.serve()

    clock.run(whole())
    assert pool.for_use == for_use


@clock.virtual(within_s=3600)
async def test_every_one_of_several_brokers_gets_the_whole_deployment() -> None:
    """An operator's command does not know where agents live, so each broker has the shares of all."""
    brokers = [MemoryBroker(0), MemoryBroker(1)]
    async with (
        brokers[0].link("operator") as first,
        brokers[1].link("operator") as second,
        ShardedLink([first, second], TOPICS) as link,
    ):
        await link.all_up()
        published = await publish(link, TOPICS, version(2), origin="run", part_bytes=PART_BYTES)
    shown = [await retained(broker) for broker in brokers]
    assert shown[0] == shown[1]
    assert Deployment.from_bytes(shown[0][TOPICS.deployment]).serial == published.serial
    assert TOPICS.deployment_share("pi-1") in shown[0]
