"""A strategy of each kind while agents lose power, come late, leave for good and return: the run ends, the quorum holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from covey.coordinator.run.run import Run
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import clients, rules, scenario
from tests.methods import METHODS, of_each_kind

ROUNDS, QUORUM = 5, 2


async def weather(fleet: Fleet) -> None:
    """Virtual seconds; a job takes half of one, so all of this happens during the run."""
    await asyncio.sleep(1.3)
    await fleet.vanish("agent-1")
    await asyncio.sleep(0.4)
    await fleet.vanish("agent-2")  # for good
    fleet.join("agent-7")  # late
    await asyncio.sleep(1.1)
    fleet.join("agent-1")  # back, with what it has on disk
    await asyncio.sleep(0.6)
    fleet.broker.restart(keep_retained=False, away_s=0.5)


# Local is over before anybody is late
@pytest.mark.parametrize("method", of_each_kind("weather", sorted(METHODS.keys() - {"local"})))
def test_a_method_survives_power_cuts_latecomers_leavers_and_a_broker_that_forgets(
    tmp_path: Path, method: str
) -> None:
    scene = scenario(method, rounds={"count": ROUNDS, "participation": 0.75})
    laws = rules(scene, start_agents=7, quorum=QUORUM, absence_s=0.5, deadline_s=60.0)

    async def whole() -> tuple[Run, Fleet]:
        fleet = Fleet(tmp_path, scene, laws, MemoryBroker(seed=2), clients(scene=scene))
        fleet.late = {"agent-7"}
        async with fleet:
            drill = asyncio.create_task(weather(fleet))
            run = await fleet.serve()
            await drill
            return run, fleet

    run, fleet = clock.run(whole())
    phases = [row for row in fleet.rows if row["event"] == "phase" and row["ends_round"]]
    assert run.engine.round == ROUNDS == len(phases)
    assert "agent-7" in run.engine.known
    assert any(row["missing"] for row in fleet.rows if row["event"] == "phase"), (
        "no fault hit the run"
    )
    assert "agent-2" not in run.members.present
    for row in phases:
        assert len(row["reported"]) >= min(QUORUM, len(row["invited"])), row
    for model in run.strategy.clusters(run.state):
        assert bool(np.isfinite(model).all())
