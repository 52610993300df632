"""Reads partition.npz in the folder of a simulated run: which samples each agent held, and its true cluster or mixture.

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

Truth = npt.NDArray[Any]


def partition_digest(folder: Path) -> str | None:
    """Names who held which samples in a simulated run; equal where runs had the same split."""
    path = folder / FILE
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        arrays = [file[name].tobytes() for name in sorted(file.files)]
    return hashlib.blake2b(b"".join(arrays), digest_size=8).hexdigest()


def truth_of(scenario: Scenario, folder: Path) -> dict[str, int] | None:
    """The planted or natural cluster of each simulated agent, where the partition knows it."""
    clusters: dict[str, int] = {}
    for client, truth in _truth(scenario, folder).items():
        if truth.ndim == 0:
            clusters[client] = int(truth)
    return clusters or None


def mixtures_of(scenario: Scenario, folder: Path) -> dict[str, tuple[float, ...]]:
    """The true mixture of each simulated agent; empty where the partition knows none."""
    mixtures: dict[str, tuple[float, ...]] = {}
    for client, truth in _truth(scenario, folder).items():
        if truth.ndim == 1:
            mixtures[client] = tuple(truth.tolist())
    return mixtures


def _truth(scenario: Scenario, folder: Path) -> dict[str, Truth]:
    """The entry of each agent in the file: a cluster (), or a mixture (K,)."""
    path = folder / FILE
    fleet = scenario.fleet
    if fleet is None or not path.exists():
        return {}
    found: dict[str, Truth] = {}
    with np.load(path, allow_pickle=False) as file:
        if "truth" not in file.files:
            return {}
        truth = file["truth"]
    for i, of_agent in enumerate(truth):
        name = agent_name(i, fleet.agents)
        found[name] = np.asarray(of_agent)
    return found
