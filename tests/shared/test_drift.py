"""Drift of a simulated fleet: who has whose data, and from which round on."""

from __future__ import annotations

import numpy as np
import pytest

from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import drift_round, holders_of
from tests.kit import small_run


def drifting(agents: int = 30, share: float = 1 / 3, at: float = 0.5, seed: int = 1) -> Scenario:
    fleet = {"agents": agents, "drift": {"at": at, "share": share}}
    base = small_run.buffered("fedavg", fleet=fleet, rounds={"count": 9, "start_agents": 8})
    return base.model_copy(update={"seed": seed})


@pytest.mark.parametrize("seed", range(5))
def test_a_share_of_the_agents_gets_data_of_other_groups(seed: int) -> None:
    groups = np.arange(30) % 4
    holders = holders_of(drifting(seed=seed), groups)
    assert len(holders.drifts) == 10
    assert sorted(holders.drifts) == sorted(holders.drifts.values())  # an exchange: nothing is lost
    for agent, giver in holders.drifts.items():
        assert groups[agent] != groups[giver]


def test_the_data_changes_after_the_share_of_the_rounds() -> None:
    scene = drifting(at=0.5)
    assert drift_round(scene) == 5
    holders = holders_of(scene, None)
    [agent, *_] = holders.drifts
    assert holders.index_in(4, agent) == agent
    assert holders.index_in(5, agent) == holders.drifts[agent]


def test_a_fleet_without_drift_keeps_its_data() -> None:
    scene = small_run.buffered("fedavg")
    holders = holders_of(scene, None)
    assert drift_round(scene) is None
    assert holders.index_in(100, 3) == 3
