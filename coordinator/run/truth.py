"""What partition.npz in a run's folder says of a simulated fleet: who held which samples, and what the truth of each agent is.

The fleet writes the file before its agents join. Runs without a simulated fleet have none.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name

FILE = "partition.npz"


def partition_digest(folder: Path) -> str | None:
    """Names who held which samples in a simulated run; equal where runs had the same split."""
    path = folder / FILE
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        arrays = b"".join(file[name].tobytes() for name in sorted(file.files))
    return hashlib.blake2b(arrays, digest_size=8).hexdigest()


def truth_of(scenario: Scenario, folder: Path) -> dict[str, int] | None:
    """The planted or natural cluster of each simulated agent, where the partition knows it."""
    return {client: int(k) for client, k in _truth(scenario, folder).items() if k.ndim == 0} or None


def mixtures_of(scenario: Scenario, folder: Path) -> dict[str, tuple[float, ...]]:
    """The true mixture of each simulated agent; empty where the partition knows none."""
    return {
        client: tuple(row.tolist())
        for client, row in _truth(scenario, folder).items()
        if row.ndim == 1
    }


def _truth(scenario: Scenario, folder: Path) -> dict[str, npt.NDArray[Any]]:
    """What the file says of each agent: a cluster (), or a mixture (K,)."""
    path = folder / FILE
    if scenario.fleet is None or not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as file:
        truth = file["truth"] if "truth" in file.files else []
        return {
            agent_name(i, scenario.fleet.agents): np.asarray(of_agent)
            for i, of_agent in enumerate(truth)
        }
