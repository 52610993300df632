"""Reads partition.npz in the folder of a simulated run: which samples each agent held, and its true cluster or mixture.

The fleet writes the file before its agents join. Runs without a simulated fleet have none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name

FILE = "partition.npz"

Truth = npt.NDArray[Any]  # of one agent: its cluster (), or its mixture (K,)
Entries = dict[str, Truth]  # by agent
Mixture = tuple[float, ...]  # the share of each super-class


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
    entries = _entries(scenario, folder)
    return {client: int(truth) for client, truth in entries.items() if truth.ndim == 0} or None


def mixtures_of(scenario: Scenario, folder: Path) -> dict[str, Mixture]:
    """The true mixture of each simulated agent; empty where the partition knows none."""
    entries = _entries(scenario, folder)
    mixtures: dict[str, Mixture] = {}
    for client, truth in entries.items():
        if truth.ndim == 1:
            weights: list[float] = truth.tolist()
            mixtures[client] = tuple(weights)
    return mixtures


def _entries(scenario: Scenario, folder: Path) -> Entries:
    """The entry of each agent in the file: a cluster (), or a mixture (K,)."""
    fleet = scenario.fleet
    if fleet is None:
        return {}
    found: Entries = {}
    for i, of_agent in enumerate(_table(folder / FILE)):
        name = agent_name(i, fleet.agents)
        found[name] = np.asarray(of_agent)
    return found


def _table(path: Path) -> Iterable[Any]:
    """The entries in the order of the agents; empty where the file or its table is missing."""
    if not path.exists():
        return ()
    with np.load(path, allow_pickle=False) as file:
        if "truth" not in file.files:
            return ()
        table: Truth = file["truth"]
    return table
