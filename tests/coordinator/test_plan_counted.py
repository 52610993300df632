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
from tests.kit.small_run import AGENTS, GROUPS, in_process, rules, scenario, setup
from tests.methods import METHODS

FEATURES = 5000  # a model of 80 kB: orders, statuses and acknowledgements, which no plan counts, are little
FACTOR = 1.05
SERVED = {
    "deliver": "served"
}  # tests/simulator/test_judge.py counts the orders with the weights of the fleet


@pytest.mark.parametrize("method", ["fedclust", "ifca", "scaffold", "ditto"])
def test_the_predicted_bytes_are_those_of_a_run_within_a_factor(
    method: str, tmp_path: Path
) -> None:
    scene = scenario(method, task={"features": [FEATURES]}, evaluation=SERVED)
    people = {
        f"agent-{i}": softmax_client(GROUPS[i % 2], seed=i, features=FEATURES)
        for i in range(AGENTS)
    }
    layout = people["agent-0"].layout
    starts = [np.full(layout.size, j, np.float32) for j in range(scene.strategy.starts)]
    start = setup_of(scene, starts, layout)
    run = over_a_broker(tmp_path, scene, start, people)
    planned = plan(scene, start, AGENTS)
    counted = run.traffic["wire_down"] + run.traffic["down_models"]
    assert planned.down_bytes == pytest.approx(counted, rel=FACTOR - 1)
    assert planned.up_bytes == pytest.approx(run.traffic["wire_up"], rel=FACTOR - 1)


# What depends on reports: votes, rounds of all members before a split, entries of those whom the first rounds did not draw, and
# vectors for the classes that an agent has.
UNKNOWN = {"kin": 0.4, "cfl": 0.2, "fedgwc": 0.25, "fuzzy": 0.15, "pacfl": 0.3}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_states_what_its_agents_get_and_send(method: str, tmp_path: Path) -> None:
    scene = scenario(method, rounds={"count": 6}, evaluation=SERVED)
    counted = in_process(tmp_path / "run", scene).traffic
    phases = plan(scene, setup(scene), AGENTS).phases
    down = sum(one.times * one.invited * one.down_values for one in phases)
    up = sum(one.times * one.invited * one.up_values for one in phases)
    tolerance = UNKNOWN.get(method, FACTOR - 1)
    assert down == pytest.approx(counted["down_vectors"], rel=tolerance)
    assert up == pytest.approx(counted["up_vectors"], rel=tolerance)


def over_a_broker(
    folder: Path, scene: Scenario, start: Setup, people: Mapping[ClientId, Trainer]
) -> Run:
    async def whole() -> Run:
        patient = rules(scene, **PATIENT)
        this = Run.start(folder / "run", scene, start, rules=patient, run="r1", now=0.0)
        async with Fleet(folder, scene, patient, MemoryBroker(seed=5), people) as fleet:
            return await fleet.serve(this)

    return clock.run(whole())
