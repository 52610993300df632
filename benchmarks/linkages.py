"""The linkages of a merge tree compared on the distances of a finished run: how they cut, and how well that fits the agents' labels.

    python -m benchmarks.linkages runs/fmnist_lambda/q0.02/seed-1 --clusters 4,42

All linkages get the same distances, so that they differ in nothing else. Agents count as alike if they train on the same
set of labels. The program reads the labels of a simulated fleet, as its workers do; a coordinator does not have them.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from covey.agent.data.partition import client_dataset, fleet_data
from covey.coordinator.report.curves import proximity_of
from covey.shared.errors import UserError
from covey.shared.numerics.clustering import Linkage, Matrix, agglomerative
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.scenario.load import load
from covey.shared.scenario.simulated_agents import agent_name

LINKAGES: tuple[Linkage, ...] = get_args(Linkage)
MOST_SIZES = 6  # that are printed of one cut


@dataclass(frozen=True)
class Row:
    """One cut of one tree."""

    linkage: Linkage
    clusters: int
    sizes: tuple[int, ...]  # largest first
    singles: int  # agents that are alone
    ari: float  # against the sets of labels
    gap: float  # height of the next merge over that of the last; 1: the cut is arbitrary


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", type=Path, help="the folder of a finished run of a simulated fleet")
    parser.add_argument("--clusters", default="4", help="numbers of clusters, such as 4,42")
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    options = parser.parse_args(arguments)
    scenario = load(options.run / "scenario.yaml")
    proximity = proximity_of(options.run, scenario)
    if proximity is None:
        raise UserError(f"{options.run}: the method of this run compares no distances")
    data, split = fleet_data(scenario, options.data_root)
    labels: dict[str, Hashable] = {}
    for index in range(split.agents):
        own = client_dataset(data, split, index)
        name = agent_name(index, split.agents)
        labels[name] = tuple(np.unique(own.targets))
    truth = [labels[client] for client in proximity.clients]
    different = len(set(truth))
    print(f"{len(truth)} agents, {different} different sets of labels\n")
    print("| linkage | clusters | sizes | alone | ARI | next merge / last |")
    print("| :-- | --: | :-- | --: | --: | --: |")
    for text in options.clusters.split(","):
        for row in compared(proximity.distances, truth, int(text)):
            print(line(row))


def compared(distances: Matrix, truth: Sequence[Hashable], clusters: int) -> Iterator[Row]:
    """A row for each linkage.

    Args:
        distances: (n, n) between the n agents.
        truth: the kind of each agent.
        clusters: the number of clusters to cut each tree into.
    """
    for linkage in LINKAGES:
        tree = agglomerative(distances, linkage, n_clusters=clusters)
        labels = tree.labels.tolist()
        sizes = np.bincount(tree.labels).tolist()
        sizes.sort(reverse=True)
        gap = 1.0
        if tree.low and tree.high:
            gap = tree.high / tree.low
        ari = adjusted_rand(labels, truth)
        yield Row(linkage, tree.clusters, tuple(sizes), sizes.count(1), ari, gap)


def line(row: Row) -> str:
    """The row as a line of a Markdown table."""
    shown = " + ".join(str(size) for size in row.sizes[:MOST_SIZES])
    if len(row.sizes) > MOST_SIZES:
        shown += " + ..."
    return f"| {row.linkage} | {row.clusters} | {shown} | {row.singles} | {row.ari:.2f} | {row.gap:.2f} |"


if __name__ == "__main__":
    main()
