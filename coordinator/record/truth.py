"""Facts about a simulated fleet: who held which samples, true clusters and mixtures; and how well a run found them.

The fleet writes `partition.npz` into the run's folder before its agents join. Runs without a simulated fleet have none.

`membership` (how far the estimates of the agents' mixtures are from the truth) and `cluster_accuracy` (what each
super-class's own cluster scores on all test data of that super-class) are entries of `result.json`, and null where nothing
is known (Tang et al. 2024, table 1). Each matches cluster ids to super-classes by itself, so their permutations need not
agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics import metrics
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.base import ClientId

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


Entry = dict[str, Any]  # of result.json
Accuracies = Sequence[Sequence[float]]  # (clusters, super-classes)
Weights = Sequence[float]  # of one agent, or of all agents for one cluster
MixtureWeights = Mapping[ClientId, Weights]


def figures(estimated: MixtureWeights, truth: MixtureWeights, tested: Accuracies) -> Entry:
    """Both entries, from memberships by agent and accuracies (clusters, super-classes)."""
    return {
        "membership": membership(estimated, truth),
        "cluster_accuracy": cluster_accuracy(tested),
    }


def membership(estimated: MixtureWeights, truth: MixtureWeights) -> Entry | None:
    """The error over the agents that both know; `permutation[k]` is the cluster that stands for super-class k.

    `separation[k]` is how much more often a sample of super-class k falls into its own cluster than one of the others does:
    1 for a perfect sorter, 0 for one that sees no difference, None where all agents have the same share of k.
    None where there are no agents, or where there are not as many clusters as super-classes.
    """
    in_both = estimated.keys() & truth.keys()
    if not in_both:
        return None
    found: list[Weights] = []
    true: list[Weights] = []
    for client in sorted(in_both):
        estimate = estimated[client]
        true_weights = truth[client]
        if len(estimate) != len(true_weights):
            return None
        found.append(estimate)
        true.append(true_weights)
    error = metrics.membership_mse(found, true)
    separation: list[float | None] = []
    for superclass, cluster in enumerate(error.permutation):
        held = [weights[superclass] for weights in true]
        separation.append(_slope(held, [weights[cluster] for weights in found]))
    return {
        "mse_sum": error.total,
        "mse_mean": error.mean,
        "permutation": list(error.permutation),
        "separation": separation,
    }


def _slope(shares: Weights, counted: Weights) -> float | None:
    """Least squares over agents, from what each holds of a super-class to what each counts in its cluster c.

    An agent with the share p of super-class V, and of A else, counts p P(c|V) + (1 - p) P(c|A) of its samples in c, if a
    sample's kind decides where it falls. The slope is P(c|V) - P(c|A). None where all shares are the same.
    """
    centred = np.asarray(shares, np.float64) - np.mean(shares)
    spread = float(centred @ centred)
    if spread <= 0:
        return None
    return float(centred @ np.asarray(counted, np.float64)) / spread


def cluster_accuracy(table: Accuracies) -> Entry | None:
    """From accuracies (clusters, super-classes): each super-class by its own cluster, matched for the highest sum.

    A single model stands for all of them. None for no models, or for fewer than there are super-classes.
    """
    accuracies = np.asarray(table, np.float64)
    is_table = accuracies.ndim == 2
    if is_table and len(accuracies) == 1:
        of_single_model = accuracies[0].tolist()
        superclasses = len(of_single_model)
        always_it = [0] * superclasses
        return {"by_superclass": of_single_model, "permutation": always_it}
    if accuracies.size == 0:
        return None
    clusters, superclasses = accuracies.shape
    if clusters < superclasses:
        return None
    order = metrics.matching(-accuracies)
    matched = [float(accuracies[cluster, superclass]) for superclass, cluster in enumerate(order)]
    return {"by_superclass": matched, "permutation": list(order)}
