"""What `coordinator lab forget` leaves: what needs `runs`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from covey.coordinator.serve.service import Service
from covey.extras.runs.tests.test_control import operator
from tests import clock
from tests.coordinator.test_forget import GONE, KEPT
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet
from tests.kit.small_run import clients, rules, scenario
from tests.kit.traces import fill, traces


def test_nothing_in_the_memory_of_a_service_names_an_agent_that_was_forgotten(
    tmp_path: Path,
) -> None:
    scene, broker = scenario("fedclust", rounds={"count": 4, "participation": 1.0}), MemoryBroker()

    async def program() -> tuple[set[str], set[str]]:
        fleet = Fleet(tmp_path, scene, rules(scene, **PATIENT), broker, clients())
        async with fleet, asyncio.TaskGroup() as group:
            serving = group.create_task(fleet.serve())
            await asyncio.sleep(1.7)  # clusters exist, and the first round is open
            await fleet.vanish(GONE)
            assert isinstance(fleet.service, Service)
            filled = fill(fleet.service, GONE)
            await operator(broker, "forget", GONE)
            await asyncio.sleep(2.0)  # what was decided with it is published
            left = traces(fleet.service, GONE)
            await serving
            return filled, left | traces(fleet.service, GONE)

    filled, left = clock.run(program())
    assert {"Members.listed", "Intake._refused", "Placement._homes"} <= filled
    assert left - KEPT.keys() == set()
