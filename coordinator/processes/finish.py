"""Finish a run: write its models, its table of agents and its result."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from covey.coordinator.odd import Odd, read_odd
from covey.coordinator.record.records import finished
from covey.coordinator.run.result import write_all, write_models
from covey.coordinator.run.run import Run
from covey.shared.errors import UserError
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name

# -- facts about a simulated fleet: who held which samples, and the true clusters --------------------------------------
#
# The fleet writes `partition.npz` into the run's folder before its agents join. Runs without a simulated fleet have none.


FILE = "partition.npz"


def partition_digest(folder: Path) -> str | None:
    """Names who held which samples in a simulated run; equal where runs had the same split."""
    path = folder / FILE
    if not path.exists():
        return None
    content = hashlib.blake2b(digest_size=8)
    with np.load(path, allow_pickle=False) as file:
        for name in sorted(file.files):
            content.update(file[name].tobytes())
    return content.hexdigest()


def truth_of(scenario: Scenario, folder: Path) -> dict[str, int] | None:
    """The planted or natural cluster of each simulated agent, where the partition knows it."""
    fleet = scenario.fleet
    path = folder / FILE
    if fleet is None or not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        clusters = file["truth"].tolist() if "truth" in file.files else []
    return {agent_name(i, fleet.agents): int(cluster) for i, cluster in enumerate(clusters)} or None


def finish(this: Run, odd: Sequence[Odd] | None = None) -> dict[str, Any]:
    """Write models, the table of agents and the result of a completed run to its folder.

    Args:
        this: the run.
        odd: what is odd about its devices; None: what its reports show.

    Returns the result, as `result.json` holds it.
    """
    write_models(this)
    with suppress(UserError):  # it was finished before: no agent has reported since
        odd = read_odd(finished(this.folder).get("odd"))
    truth = truth_of(this.scenario, this.folder)
    return write_all(this, truth, partition_digest(this.folder), odd)
