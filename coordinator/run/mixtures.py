"""Figures of runs whose agents hold known mixtures of super-classes (Tang et al. 2024, table 1).

`membership`: how far the strategy's estimates of the agents' mixtures are from the truth. `cluster_accuracy`: what each
super-class's own cluster scores on all test data of that super-class. Both are entries of `result.json`, and null where
nothing is known. Each matches cluster ids to super-classes by itself, so their permutations need not agree. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from covey.shared.numerics import metrics
from covey.shared.strategies.base import ClientId

MixtureWeights = Mapping[ClientId, Sequence[float]]


def figures(
    estimated: MixtureWeights, truth: MixtureWeights, tested: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Both entries, from memberships by agent and accuracies (clusters, super-classes)."""
    return {
        "membership": membership(estimated, truth),
        "cluster_accuracy": cluster_accuracy(tested),
    }


def membership(estimated: MixtureWeights, truth: MixtureWeights) -> dict[str, Any] | None:
    """The error over the agents that both know; `permutation[k]` is the cluster that stands for super-class k.

    `separation[k]` is how much more often a sample of super-class k falls into its own cluster than one of the others does:
    1 for a perfect sorter, 0 for one that sees no difference, None where all agents have the same share of k.
    None where there is nobody, or where there are not as many clusters as super-classes.
    """
    both = sorted(set(estimated) & set(truth))
    if not both or any(len(estimated[client]) != len(truth[client]) for client in both):
        return None
    error = metrics.membership_mse(
        [estimated[client] for client in both], [truth[client] for client in both]
    )
    separation = [
        _slope(
            [truth[client][k] for client in both], [estimated[client][cluster] for client in both]
        )
        for k, cluster in enumerate(error.permutation)
    ]
    return {
        "mse_sum": error.total,
        "mse_mean": error.mean,
        "permutation": list(error.permutation),
        "separation": separation,
    }


def _slope(shares: Sequence[float], counted: Sequence[float]) -> float | None:
    """Least squares over agents, from what each holds of a super-class to what each counts in its cluster c.

    An agent with the share p of super-class V, and of A else, counts p P(c|V) + (1 - p) P(c|A) of its samples in c, if a
    sample's kind decides where it falls. The slope is P(c|V) - P(c|A). None where all shares are the same.
    """
    held = np.asarray(shares, np.float64) - np.mean(shares)
    spread = float(held @ held)
    return float(held @ np.asarray(counted, np.float64)) / spread if spread > 0 else None


def cluster_accuracy(table: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    """From accuracies (clusters, super-classes): each super-class by its own cluster, matched for the highest sum.

    A single model stands for all of them. None for no models, or for fewer than there are super-classes.
    """
    accuracies = np.asarray(table, np.float64)
    if accuracies.ndim == 2 and len(accuracies) == 1:
        return {"by_superclass": accuracies[0].tolist(), "permutation": [0] * accuracies.shape[1]}
    if accuracies.size == 0 or accuracies.shape[0] < accuracies.shape[1]:
        return None
    order = metrics.matching(-accuracies)
    return {
        "by_superclass": [float(accuracies[j, k]) for k, j in enumerate(order)],
        "permutation": list(order),
    }
