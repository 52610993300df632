"""What `coordinator lab plan` predicts, against the bytes that a run over a broker counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from covey.coordinator.plan.plan import plan
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.run import Run
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Setup
from tests import clock
from tests.bowl import Trainer, softmax_client
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet
from tests.kit.small_run import AGENTS, GROUPS, rules, scenario

FEATURES = 5000  # a model of 80 kB: orders, statuses and acknowledgements, which no plan counts, are little
FACTOR = 1.05


@pytest.mark.parametrize("method", ["fedavg", "fedclust", "ifca", "scaffold", "fedem"])
def test_the_predicted_bytes_are_those_of_a_run_within_a_factor(
    method: str, tmp_path: Path
) -> None:
    scene = scenario(method, task={"features": [FEATURES]})
    people = {
        f"agent-{i}": softmax_client(GROUPS[i % 2], seed=i, features=FEATURES)
        for i in range(AGENTS)
    }
    layout = people["agent-0"].layout
    starts = [np.full(layout.size, j, np.float32) for j in range(scene.strategy.starts)]
    setup = setup_of(scene, starts, layout)
    run = over_a_broker(tmp_path, scene, setup, people)
    planned = plan(scene, setup, AGENTS)
    counted = run.traffic["wire_down"] + run.traffic["down_models"]
    assert planned.down_bytes == pytest.approx(counted, rel=FACTOR - 1)
    assert planned.up_bytes == pytest.approx(run.traffic["wire_up"], rel=FACTOR - 1)


def over_a_broker(
    folder: Path, scene: Scenario, setup: Setup, people: Mapping[ClientId, Trainer]
) -> Run:
    async def whole() -> Run:
        patient = rules(scene, **PATIENT)
        this = Run.start(folder / "run", scene, setup, patient, "r1", 0.0)
        async with Fleet(folder, scene, patient, MemoryBroker(seed=5), people) as fleet:
            return await fleet.serve(this)

    return clock.run(whole())
