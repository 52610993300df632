"""Small whole runs on a virtual clock, for tests of buffered rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.coordinator.engine.rules import Rules
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.in_process import LocalClients, local_driver
from covey.coordinator.simulate.virtual_clock import Driver
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from tests import small_run

AGENTS = 8
DURATIONS = {"median_s": 1.0, "sigma": 1.0}


def scenario(method: str, **sections: Any) -> Scenario:
    """Eight agents with log-normal durations, six buffered rounds of three reports."""
    fleet = {
        "agents": AGENTS,
        "durations": DURATIONS,
        "partition": "iid",
        **sections.pop("fleet", {}),
    }
    rounds = {
        "mode": "buffered",
        "count": 6,
        "buffer": 3,
        "participation": 1.0,
        "start_agents": AGENTS,
        **sections.pop("rounds", {}),
    }
    return small_run.scenario(method, fleet=fleet, rounds=rounds, **sections)


def people() -> dict[ClientId, tuple[int, int]]:
    """Training and test samples of all agents."""
    return {
        client: (local.examples, local.examples) for client, local in small_run.clients().items()
    }


def driver(folder: Path, scene: Scenario, **changes: Any) -> Driver[LocalClients]:
    """A new run, and what drives it."""
    rules: Rules = replace(rules_of(scene), **changes)
    local_for = small_run.local_for(small_run.clients(AGENTS, scene))
    return local_driver(folder, scene, small_run.setup(scene), rules, local_for)


def complete(folder: Path, scene: Scenario, **changes: Any) -> Run:
    """The whole run."""
    return driver(folder, scene, **changes).complete(people())
