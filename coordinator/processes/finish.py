"""Finish a run: write its models, its table of agents and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from covey.coordinator.processes import launch
from covey.coordinator.record import truth
from covey.coordinator.run.result import write_all, write_models
from covey.coordinator.run.run import Run
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.scenario.partition import SuperclassMixture
from covey.shared.scenario.scenario import Scenario


class TestOfSuperclasses(Protocol):
    """Measures each model in `folder`/models (rows) on each super-class of the fleet's test data (columns)."""

    async def __call__(
        self,
        folder: Path,
        data_root: Path | None,
        scaling: Mapping[str, Sequence[float]] | None,
        allowed: AllowedCode,
    ) -> list[list[float]]:
        """See `launch.superclass_accuracies`."""


async def finish(
    this: Run,
    data_root: Path | None,
    allowed: AllowedCode = NO_CODE,
    test: TestOfSuperclasses = launch.superclass_accuracies,
) -> dict[str, Any]:
    """Write models, the table of agents and the result of a completed run to its folder.

    Args:
        this: the run.
        data_root: the folder of named data sets.
        allowed: the code of the user's own that may run.
        test: measures models on super-classes; by default a process that imports torch for this alone.

    Returns the result, as `result.json` holds it. Raises UserError if a process fails.
    """
    scenario = this.scenario
    folder = this.folder
    write_models(this)
    tested: list[list[float]] = []
    if _has_superclasses(scenario) and this.strategy.clusters(this.state):
        tested = await test(folder, data_root, this.facts.scaling, allowed)
    memberships = this.strategy.shown(this.state).memberships
    mixed = truth.figures(memberships, truth.mixtures_of(scenario, folder), tested)
    mixed["partition"] = truth.partition_digest(folder)
    return write_all(this, truth.truth_of(scenario, folder), mixed)


def _has_superclasses(scenario: Scenario) -> bool:
    return scenario.fleet is not None and isinstance(scenario.fleet.partition, SuperclassMixture)
