"""An accepted report that the coordinator's disk has damaged is taken when it comes again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from covey.coordinator.run.run import Run
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, Numpy
from tests.kit.small_run import clients, fingerprint, in_process, rules, scenario


class SlowLast(Numpy):
    """The last agent takes five seconds for its work."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        self.takes_s = 5.0 if getattr(job, "client", "") == "agent-3" else 0.5
        return await super().call(job, weight=weight)


def damage_reports(folder: Path) -> None:
    """Change a bit of the newest report in the spool of a run."""
    (reports,) = folder.glob("spool/*/reports")
    content = bytearray(reports.read_bytes())
    content[-1] ^= 1
    reports.write_bytes(content)


def test_a_damaged_report_is_taken_when_it_comes_again_to_the_coordinator_that_has_seen_it(
    tmp_path: Path,
) -> None:
    scene = scenario("fesem", rounds={"count": 1, "participation": 1.0, "start_agents": 4})

    async def story() -> Run:
        people = clients(4, scene)
        fleet = Fleet(tmp_path, scene, rules(scene, **PATIENT), MemoryBroker(), people)
        fleet.pool = SlowLast(people)
        async with fleet:
            serving = asyncio.create_task(fleet.serve())
            await asyncio.sleep(3.0)  # three reports are accepted
            damage_reports(tmp_path / "run")
            return await serving

    ended = clock.run(story(), within_s=1_000)
    calm = in_process(tmp_path / "calm", scene, clients(4))
    assert fingerprint(ended) == fingerprint(calm)
