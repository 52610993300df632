"""Several federations at once on one fleet: a device belongs to each, and works on one order at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

from covey.coordinator.run.run import Run
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.wire.jobs import Perform
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, Numpy, client_of
from tests.kit.small_run import clients, fingerprint, in_process, rules, scenario, setup

AGENTS = 20
RUNS = {"north": "fedavg", "south": "ifca", "east": "ditto"}


class Device:
    """The turns of one device: it does one job at a time, whichever federation asks."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.busy = 0
        self.most = 0
        self.waited = 0


class OneAtATime(Numpy):
    """The pool of the devices of one federation, which they share with other federations."""

    def __init__(self, people: dict[ClientId, object], devices: dict[str, Device]) -> None:
        super().__init__(people)  # type: ignore[arg-type]
        self.devices = devices

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        device = self.devices[job.client if isinstance(job, Perform) else client_of(job.source)]
        device.waited += device.turn.locked()
        async with device.turn:
            device.busy += 1
            device.most = max(device.most, device.busy)
            try:
                return await super().call(job, weight=weight)
            finally:
                device.busy -= 1


def scene(federation: str) -> Scenario:
    return scenario(
        RUNS[federation],
        federation=federation,
        rounds={"count": 2, "participation": 0.25, "start_agents": AGENTS},
        training={"epochs": 1},
    )


def test_three_federations_on_one_fleet_take_turns_and_end_with_the_bytes_of_each_alone(
    tmp_path: Path,
) -> None:
    devices: dict[str, Device] = defaultdict(Device)

    async def one(broker: MemoryBroker, federation: str) -> Run:
        this = scene(federation)
        patient = rules(this, **PATIENT)
        people = clients(AGENTS, this)
        fleet = Fleet(tmp_path / federation, this, patient, broker, people)
        fleet.prefix = f"{federation}-"
        fleet.pool = OneAtATime(dict(people), devices)
        async with fleet:
            serving = asyncio.create_task(fleet.serve())
            if federation != "south":
                return await serving
            await asyncio.sleep(2.2)  # in its first round
            serving.cancel()
            await asyncio.wait({serving})
            now = asyncio.get_running_loop().time()
            again, _ = Run.resume(fleet.folder / "run", this, setup(this), rules=patient, now=now)
            assert again.engine.round < 2
            return await fleet.serve(again)

    async def all_of_them() -> list[Run]:
        broker = MemoryBroker()
        return await asyncio.gather(*[one(broker, federation) for federation in RUNS])

    runs = clock.run(all_of_them())
    assert all(device.most == 1 for device in devices.values())
    assert sum(device.waited for device in devices.values()) > AGENTS
    for run in runs:
        this = run.scenario
        alone = in_process(tmp_path / f"{this.federation}-alone", this, clients(AGENTS, this))
        assert fingerprint(run) == fingerprint(alone)
