"""Every scenario is an example that runs, and leaves the result that it promises: what needs `compare`."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.superclasses import mixtures
from covey.shared.scenario.load import load
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.fuzzy import Fuzzy
from tests.processes import ROOT


@pytest.mark.parametrize("name", ["fuzzy_cifar10_73", "fuzzy_cifar10_91"])
def test_the_known_memberships_of_a_scenario_are_the_mixtures_of_its_agents(name: str) -> None:
    scene = load(ROOT / "scenarios" / f"{name}.yaml")
    assert scene.fleet is not None
    assert scene.compare is not None
    [known] = [
        one.strategy.known
        for one in scene.compare.methods
        if isinstance(one.strategy, Fuzzy) and one.strategy.known
    ]
    agents = scene.fleet.agents
    truth = mixtures(0.7 if name.endswith("73") else 0.9, agents)
    assert np.allclose([known[agent_name(i, agents)] for i in range(agents)], truth)
    assert len(known) == agents
