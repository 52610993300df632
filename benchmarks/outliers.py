"""A few agents that are unlike all others, and the cuts with groups of any size and of three or more. Prints a table, writes JSON.

    python -m benchmarks.outliers

A fleet is 20 agents in 8 dimensions or 40 in 64, as one loose group or as two or four groups whose centres are six deviations of
the noise from their mean (times the root of an eighth of the dimensions); of each, some agents lie six times as far out as usual.
The gate is open, as outliers open it: the best silhouette decides, with the linkage of FedClust (complete) and of cards (average).
One group is a false cut if it is divided. Groups are found if the agents that are no outliers are where they belong: adjusted Rand
index 0.9.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import record_options, resumed, show_tables
from covey.shared.numerics.clustering import Linkage, Matrix, euclidean
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.seeds import generator
from covey.shared.strategies.bases.cut import Cut

SIZES = {20: 8, 40: 64}  # agents and dimensions
GROUPS = (1, 2, 4)
OUTLIERS = (0, 1, 2, 4)
LINKAGES: tuple[Linkage, ...] = ("complete", "average")
APART = 6.0  # deviations
MOST = 8  # groups
RAND = 0.9
SHIFT = (0.5, 0.001, 0.5)  # chances of the tests: one has fired
RULES: dict[str, int | None] = {"any size": 1, "three or more": None}  # min_group
SEEDS = range(1, 21)
OUT = Path(__file__).parent / "results" / "outliers.json"


def fleet(agents: int, groups: int, outliers: int, seed: int) -> tuple[Matrix, list[int]]:
    """Distances (n, n), and the group of each agent; the first agents are outliers."""
    draw = generator(seed, "outliers", agents, groups, outliers)
    dimensions = SIZES[agents]
    truth = np.arange(agents) % groups
    points = draw.standard_normal((agents, dimensions))
    centres = draw.standard_normal((groups, dimensions))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    if groups > 1:
        points += APART * np.sqrt(dimensions / 8) * centres[truth]
    points[:outliers] += APART * draw.standard_normal((outliers, dimensions))
    return euclidean([*points]), truth.tolist()


def measured(agents: int, groups: int, outliers: int, seeds: Sequence[int]) -> dict[str, int]:
    """By linkage and rule, of how many seeds one group was divided, or several were found."""
    counts = {f"{linkage}, {rule}": 0 for linkage in LINKAGES for rule in RULES}
    for seed in seeds:
        matrix, truth = fleet(agents, groups, outliers, seed)
        for linkage, (rule, least) in itertools.product(LINKAGES, RULES.items()):
            tree, _ = Cut(linkage, most=MOST, min_group=least).tree(matrix, SHIFT)
            labels = tree.labels.tolist()
            hit = max(labels) > 0
            if groups > 1:
                hit = adjusted_rand(labels[outliers:], truth[outliers:]) >= RAND
            counts[f"{linkage}, {rule}"] += hit
    return counts


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a row for each number of groups and of outliers, over both sizes of the fleet."""
    columns = [f"{linkage}, {rule}" for linkage in LINKAGES for rule in RULES]
    lines = [
        f"| groups, outliers | | {' | '.join(columns)} |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for groups, outliers in itertools.product(GROUPS, OUTLIERS):
        cells = [found[key_of(agents, groups, outliers)] for agents in SIZES]
        row = [
            f"{sum(cell[one] for cell in cells)} of {len(SEEDS) * len(SIZES)}" for one in columns
        ]
        what = "divided" if groups == 1 else "found"
        lines.append(f"| {groups}, {outliers or 'none'} | {what} | {' | '.join(row)} |")
    return "\n".join(lines)


def key_of(agents: int, groups: int, outliers: int) -> str:
    return f"{agents}/{groups}/{outliers}"


def main() -> None:
    options = record_options(__doc__, OUT, SEEDS).parse_args()
    cells = itertools.product(SIZES, GROUPS, OUTLIERS)
    planned = {key_of(*cell): partial(measured, *cell, options.seeds) for cell in cells}
    found = resumed(options, planned, {"seeds": len(options.seeds)})
    show_tables(options, {"groups, outliers": table(found)})


if __name__ == "__main__":
    main()
