"""How often rules that choose the number of clusters find it, on planted signatures; prints a table, writes JSON.

    python benchmarks/choosing_k.py --out runs/choosing-k.json

A signature is a cluster's centre (standard deviation 1 per coordinate, 850 coordinates: a final layer of LeNet-5) plus
noise. Outliers are agents with a centre of their own. A rule has found K if K of its clusters have three members or
more that are no outliers (these may stand alone, together, or with others) and agents that are no outliers are where they
belong: adjusted Rand index 0.9. Every rule sees the same vectors.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from covey.shared.numerics.choose_k import by_rotations, by_silhouette, elbow
from covey.shared.numerics.clustering import Labels, agglomerative, euclidean, kmeans
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator

AGENTS, DIMENSIONS = 100, 850
GRID = range(
    1, 10
)  # of the second difference; it can answer all of them but the first and the last
MEMBERS = 3  # from so many on, a group is a cluster
LEAST_RAND = 0.9  # who lets nearly everybody stand alone may have K groups of three by luck


@dataclass(frozen=True)
class Case:
    """What is planted: in an unbalanced case cluster k has a share of agents proportional to 1 / (k + 1)."""

    clusters: int
    balanced: bool
    outliers: int
    noise: float
    seed: int


@dataclass(frozen=True)
class Answer:
    """`wanted` is the rule's own number; `found` counts clusters with three members or more that are no outliers.

    `rand` is the adjusted Rand index of agents that are no outliers.
    """

    rule: str
    wanted: int
    found: int
    rand: float
    seconds: float


def planted(case: Case) -> tuple[list[Vector], Labels]:
    """Signatures (100, 850) and the truth; outliers have labels of their own, from K on."""
    draw = generator(case.seed, "planted", case.clusters, str(case))
    sizes = shares(case)
    truth = np.repeat(np.arange(case.clusters + case.outliers), [*sizes, *[1] * case.outliers])
    centres = draw.standard_normal((case.clusters + case.outliers, DIMENSIONS))
    points = centres[truth] + case.noise * draw.standard_normal((AGENTS, DIMENSIONS))
    return list(points.astype(np.float32)), truth


def shares(case: Case) -> list[int]:
    """Sizes of the clusters, which add up to all agents but the outliers."""
    weights = np.ones(case.clusters) if case.balanced else 1.0 / (1 + np.arange(case.clusters))
    ends = np.rint(np.cumsum(weights) / weights.sum() * (AGENTS - case.outliers)).astype(int)
    return [int(size) for size in np.diff(ends, prepend=0)]


def by_gap(points: Sequence[Vector]) -> tuple[int, Labels]:
    """The largest relative gap of the merge heights."""
    tree = agglomerative(euclidean(points))
    return tree.clusters, tree.labels


def by_second_difference(points: Sequence[Vector]) -> tuple[int, Labels]:
    """FeSEM's protocol without its training: K-means for each K of a grid, and the sharpest bend of J."""
    runs = {k: kmeans(points, k, n_init=3, seed=0) for k in GRID}
    k = elbow({k: run.inertia / len(points) for k, run in runs.items()})
    return k, runs[k].labels


def by_best_silhouette(points: Sequence[Vector]) -> tuple[int, Labels]:
    """The best silhouette, if chance stays below."""
    matrix = euclidean(points)
    k = by_silhouette(matrix).clusters
    return k, agglomerative(matrix, n_clusters=k).labels


def by_turned_clouds(points: Sequence[Vector]) -> tuple[int, Labels]:
    """What FedClust does where no cut is given."""
    matrix = euclidean(points)
    k = by_rotations(matrix).clusters
    return k, agglomerative(matrix, "ward", n_clusters=k).labels


RULES: dict[str, Callable[[Sequence[Vector]], tuple[int, Labels]]] = {
    "gap": by_gap,
    "second difference": by_second_difference,
    "silhouette": by_best_silhouette,
    "rotations": by_turned_clouds,
}


def answers(case: Case) -> list[Answer]:
    points, truth = planted(case)
    return [answer(rule, points, truth, case) for rule in RULES]


def answer(rule: str, points: Sequence[Vector], truth: Labels, case: Case) -> Answer:
    start = time.process_time()
    wanted, labels = RULES[rule](points)
    seconds = time.process_time() - start
    real = truth < case.clusters
    found = int((np.bincount(labels[real]) >= MEMBERS).sum())
    rand = adjusted_rand(labels[real].tolist(), truth[real].tolist())
    return Answer(rule, wanted, found, round(rand, 4), round(seconds, 4))


def right(case: Case, one: Answer) -> bool:
    return one.found == case.clusters and one.rand >= LEAST_RAND


def table(title: str, rows: dict[str, list[tuple[Case, Answer]]]) -> Table:
    """Share of the cases in which each rule found K, one line for each key."""
    made = Table("", "cases", *RULES, title=title)
    for name, results in rows.items():
        hits = {
            rule: [right(case, one) for case, one in results if one.rule == rule] for rule in RULES
        }
        made.add_row(
            name,
            str(len(results) // len(RULES)),
            *(f"{100 * np.mean(hits[rule]):.0f} %" for rule in RULES),
        )
    return made


def grouped(
    results: Sequence[tuple[Case, Answer]], key: Callable[[Case], str]
) -> dict[str, list[tuple[Case, Answer]]]:
    rows: dict[str, list[tuple[Case, Answer]]] = {}
    for case, one in results:
        rows.setdefault(key(case), []).append((case, one))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--noise", nargs="+", type=float, default=[0.5, 1.0, 2.0, 2.5, 3.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cases = [
        Case(k, balanced, outliers, noise, seed)
        for noise in given.noise
        for outliers in (0, AGENTS // 10)
        for balanced in (True, False)
        for k in range(1, 9)
        for seed in given.seeds
    ]
    results = [(case, one) for case in cases for one in answers(case)]
    console = Console()
    console.print(
        table("by noise", grouped(results, lambda c: f"noise {c.noise:g}, {c.outliers} outliers"))
    )
    console.print(
        table("by K", grouped(results, lambda c: f"K = {c.clusters}, {c.outliers} outliers"))
    )
    console.print(
        table("by balance", grouped(results, lambda c: "balanced" if c.balanced else "unbalanced"))
    )
    for rule in RULES:
        seconds = np.mean([one.seconds for _, one in results if one.rule == rule])
        console.print(f"{rule}: {1000 * seconds:.0f} ms of CPU each")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps([asdict(case) | asdict(one) for case, one in results], indent=0)
    )


if __name__ == "__main__":
    main()
