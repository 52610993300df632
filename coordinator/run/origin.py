"""The finished run that a new run continues (`coordinator run --from`): its models and clusters, checked against the scenario.

The new run has a name, rounds and an audit log of its own. It takes over the state of the method, and the statistics that
the fleet found. Devices begin with empty memories: a method that keeps a part of its models there cannot be continued.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.versions import START
from covey.shared.errors import UserError
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Setup, Strategy


@dataclass(frozen=True)
class Origin:
    """A finished run."""

    folder: Path
    run: str
    round: int  # complete rounds
    scaling: dict[str, Any] | None  # what the fleet found before round 0

    def to_json(self) -> dict[str, Any]:
        """The run and its rounds, for the result of the new run."""
        return {"run": self.run, "round": self.round}

    def state(self, scenario: Scenario, setup: Setup) -> Any:
        """The method's state at the start of the new run.

        Raises:
            UserError: the method cannot be continued.
        """
        strategy: Strategy[Any] = scenario.method
        if setup.split is not None and setup.split.keeps:
            raise UserError(
                f"--from {self.folder}: {scenario.strategy.name} keeps a part of its models on the devices, where a new run "
                "starts from nothing; begin without --from"
            )
        fresh = strategy.init(setup)
        state = Checkpoint(self.folder / "checkpoint").state(fresh)
        try:
            return strategy.continued(state, fresh)
        except ValueError as error:
            raise UserError(f"--from {self.folder}: {error}") from None


def origin_of(folder: Path, scenario: Scenario) -> Origin:
    """The finished run in a folder, if a run of this scenario can continue it.

    Raises:
        UserError: the run is not finished, or has another task, model or method; the message names the keys.
    """
    if not (folder / "result.json").is_file():
        raise UserError(
            f"--from {folder}: expected the folder of a finished run; finish that run with --resume first"
        )
    _check(folder, load(folder / "scenario.yaml"), scenario)
    saved = Checkpoint(folder / "checkpoint").facts()
    facts = saved["run"]
    return Origin(folder, facts["run"], saved["engine"]["round"], facts["scaling"])


def copy_start(origin: Origin, folder: Path) -> None:
    """Give the new run the initial models of the old one: their layout is that of its models."""
    shutil.copyfile(origin.folder / START, folder / START)


def _check(folder: Path, before: Scenario, now: Scenario) -> None:
    keys = _differences(before.task.for_agents(), now.task.for_agents(), "task")
    if before.strategy.name != now.strategy.name:
        keys.append("strategy.name")
    if getattr(before.strategy, "n_clusters", None) != getattr(now.strategy, "n_clusters", None):
        keys.append("strategy.n_clusters")
    if keys:
        names = ", ".join(keys)
        raise UserError(
            f"--from {folder}: that run has other values of {names}, and its models do not fit; use its values, or start "
            f"from single models with task.init, such as {folder / 'models' / 'cluster-0.safetensors'}"
        )
    if before.privacy is not None or now.privacy is not None:
        raise UserError(
            f"--from {folder}: with a section privacy each run has an account of its own, and the two together would spend "
            "more than either shows; give one run more rounds instead"
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], section: str) -> list[str]:
    different: list[str] = []
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            different.append(f"{section}.{name}")
    return different
