"""Which samples each agent of a simulated fleet holds, and how samples are shared out evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covey.agent.data.dataset import Array, Indices


@dataclass(frozen=True)
class AgentSamples:
    """Which samples each agent holds, as indices; agent i is at position i of each list."""

    train: list[Indices]  # into the training part; disjoint
    test: list[Indices]  # into the part that `test_of` names; may overlap
    truth: Array | None = None  # (N,) cluster or (N, populations) mixture, if the rule knows it
    turns: Indices | None = None  # (N,) quarter turns of the agent's images
    test_of: str = "test"  # "test" or "train"
    populations: tuple[str, ...] = ()  # the names that `truth` counts


def shared_out(test_targets: Array, agents: int, rng: np.random.Generator) -> list[Indices]:
    """Equal parts of the test samples; with fewer samples than agents some serve twice."""
    order = rng.permutation(len(test_targets))
    return even_parts(np.resize(order, max(len(order), agents)), agents)


def even_parts(samples: Indices, parts: int) -> list[Indices]:
    """Consecutive parts whose sizes differ by one at most."""
    return list(np.array_split(samples, parts))


def cut(samples: Indices, counts: Indices) -> list[Indices]:
    """Consecutive parts of the given sizes, which sum to the number of samples."""
    return np.split(samples, np.cumsum(counts)[:-1])


def joined(pieces: Sequence[Sequence[Indices]]) -> list[Indices]:
    """All pieces of each agent together. `pieces[j][i]` is what agent i has of label, or pool, j."""
    of_agents = zip(*pieces, strict=True)
    return [np.concatenate(own) for own in of_agents]
