"""Small whole runs on a virtual clock, for tests of buffered rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.coordinator.engine.rules import Rules
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.simulation import InProcess, Work
from covey.coordinator.simulate.virtual_clock import TimedDriver
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage
from tests import small_run

AGENTS = 8
DURATIONS = {"median_s": 1.0, "sigma": 1.0}


class TimedInProcess(TimedDriver, InProcess):
    """Numpy clients that take their time."""

    def prepare(self, work: Work) -> None:
        """They compute at once."""

    def deliver(self, client: ClientId, order: OrderMessage) -> Sequence[Effect]:
        return self._answer(client, order)


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


def driver(folder: Path, scene: Scenario, **changes: Any) -> TimedInProcess:
    """A new run, and what drives it."""
    rules: Rules = replace(rules_of(scene), **changes)
    local_for = small_run.local_for(small_run.clients(AGENTS, scene))
    this = TimedInProcess(folder, scene, small_run.setup(scene), rules, local_for)
    this.start_clock()
    return this


def complete(folder: Path, scene: Scenario, **changes: Any) -> Run:
    """The whole run."""
    return driver(folder, scene, **changes).complete(people())
