"""Two real brokers as shards: one of them is killed during a round, and the run ends with the models of those who took part."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from covey.coordinator.run.run import Run
from covey.shared.mqtt.shards import shard_of
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import clients, fingerprint, rules, scenario
from tests.mosquitto_fleet import MosquittoFleet
from tests.processes import Program, free_port, mosquitto, needs_mosquitto

SCENE = scenario("fedavg", rounds={"count": 2, "participation": 1.0, "timing": {"rollcall_s": 1.0}})
RULES = rules(SCENE, absence_s=0.1)
DEAD = 1  # the shard whose broker is killed
FIRST_ROUND = 2  # its step; in the one before, the agents are asked what they have


class FleetOfTwo(MosquittoFleet):
    """Agents on two Mosquittos. The second one dies while its agents work on the first round."""

    def __init__(self, folder: Path, urls: list[str], dead: Program) -> None:
        super().__init__(folder, SCENE, RULES, urls)
        self.dead = dead
        self.gate = self.hold(DEAD, FIRST_ROUND)[FIRST_ROUND]

    async def kill(self) -> None:
        worked = self.pool.worked
        while not any(step == FIRST_ROUND for _, step in worked):  # noqa: ASYNC110 - a few polls
            await asyncio.sleep(0.01)
        self.dead.kill()
        self.gate.set()


@pytest.mark.broker
@needs_mosquitto
def test_the_models_are_those_of_the_agents_that_the_living_broker_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.coordinator.serve.placement.PATIENCE_S", 0.5)
    lost = {client for client in clients() if shard_of(client, 2) == DEAD}
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    ports = [free_port(), free_port()]
    with mosquitto(folders[0], ports[0]), mosquitto(folders[1], ports[1]) as second:
        urls = [f"mqtt://127.0.0.1:{port}" for port in ports]

        async def story() -> Run:
            fleet = FleetOfTwo(tmp_path, urls, second)
            async with fleet, asyncio.TaskGroup() as group:
                killing = group.create_task(fleet.kill())
                run = await fleet.coordinate()
                await killing
            reported = [set(row["reported"]) for row in fleet.rows if row["event"] == "phase"]
            assert reported == [set(clients()), *[set(clients()) - lost] * 2]
            return run

        sharded = asyncio.run(story())

    async def reference() -> Run:
        fleet = Fleet(tmp_path / "one", SCENE, RULES, MemoryBroker(), clients())

        async def power_cut() -> None:
            worked = fleet.pool.worked
            while not any(step == FIRST_ROUND for _, step in worked):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.01)
            await asyncio.gather(*[fleet.vanish(client) for client in sorted(lost)])

        async with fleet, asyncio.TaskGroup() as group:
            group.create_task(power_cut())
            return await fleet.serve()

    assert fingerprint(sharded) == fingerprint(clock.run(reference(), within_s=3600))
