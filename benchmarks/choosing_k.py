"""How often rules that choose the number of clusters find it, on planted signatures. Prints tables, writes JSON.

    python benchmarks/choosing_k.py --out runs/choosing-k.json

A signature is a cluster's centre (standard deviation 1 per coordinate, 850 coordinates: a final layer of LeNet-5) plus
noise. Outliers are agents with a centre of their own. A rule has found K if K of its clusters have three or more members
that are no outliers (these may be alone, together, or with others), and if agents that are no outliers are where they
belong: adjusted Rand index 0.9. Every rule sees the same vectors.
"""

from __future__ import annotations

import argparse
import itertools
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

AGENTS = 100
DIMENSIONS = 850
GRID = range(1, 10)  # of the second difference, which can answer all but the first and the last
MIN_MEMBERS = 3  # a smaller group is no cluster
MIN_RAND = 0.9  # a rule that leaves nearly every agent alone may have K groups of three by luck

Rule = Callable[[Sequence[Vector]], tuple[int, Labels]]  # signatures -> (K, cluster of each)


@dataclass(frozen=True)
class Case:
    """The planted clusters."""

    clusters: int  # K
    balanced: bool  # else cluster k has a share of agents proportional to 1 / (k + 1)
    outliers: int  # agents
    noise: float  # standard deviation per coordinate
    seed: int


@dataclass(frozen=True)
class Answer:
    """What a rule makes of a case."""

    rule: str
    wanted: int  # the number of clusters that the rule names
    found: int  # clusters with three or more members that are no outliers
    rand: float  # adjusted Rand index of agents that are no outliers
    seconds: float  # of CPU


Result = tuple[Case, Answer]


def planted(case: Case) -> tuple[list[Vector], Labels]:
    """Signatures (100, 850) and the truth; outliers have labels of their own, from K on."""
    draw = generator(case.seed, "planted", case.clusters, str(case))
    groups = case.clusters + case.outliers
    sizes = shares(case) + [1] * case.outliers
    truth = np.repeat(np.arange(groups), sizes)
    centres = draw.standard_normal((groups, DIMENSIONS))
    noise = draw.standard_normal((AGENTS, DIMENSIONS))
    points = centres[truth] + case.noise * noise
    return list(points.astype(np.float32)), truth


def shares(case: Case) -> list[int]:
    """Sizes of the clusters, which add up to all agents but the outliers."""
    weights = np.ones(case.clusters)
    if not case.balanced:
        weights = 1.0 / (1 + np.arange(case.clusters))
    members = AGENTS - case.outliers
    exact_ends = np.cumsum(weights) / weights.sum() * members
    ends = np.rint(exact_ends).astype(int)
    sizes: list[int] = np.diff(ends, prepend=0).tolist()
    return sizes


def by_gap(points: Sequence[Vector]) -> tuple[int, Labels]:
    """The largest relative gap of the merge heights."""
    tree = agglomerative(euclidean(points))
    return tree.clusters, tree.labels


def by_second_difference(points: Sequence[Vector]) -> tuple[int, Labels]:
    """FeSEM's protocol without its training: K-means for each K of a grid, and the sharpest bend of J."""
    labels: dict[int, Labels] = {}
    mean_inertia: dict[int, float] = {}
    for k in GRID:
        run = kmeans(points, k, n_init=3, seed=0)
        labels[k] = run.labels
        mean_inertia[k] = run.inertia / len(points)
    best = elbow(mean_inertia)
    return best, labels[best]


def by_best_silhouette(points: Sequence[Vector]) -> tuple[int, Labels]:
    """The best silhouette, if chance stays below."""
    matrix = euclidean(points)
    k = by_silhouette(matrix).clusters
    tree = agglomerative(matrix, n_clusters=k)
    return k, tree.labels


def by_turned_clouds(points: Sequence[Vector]) -> tuple[int, Labels]:
    """FedClust's rule if no cut is given."""
    matrix = euclidean(points)
    k = by_rotations(matrix).clusters
    tree = agglomerative(matrix, "ward", n_clusters=k)
    return k, tree.labels


RULES: dict[str, Rule] = {
    "gap": by_gap,
    "second difference": by_second_difference,
    "silhouette": by_best_silhouette,
    "rotations": by_turned_clouds,
}


def answers(case: Case) -> list[Answer]:
    """Every rule's answer to the same signatures."""
    points, truth = planted(case)
    return [answer(rule, points, truth, case) for rule in RULES]


def answer(rule: str, points: Sequence[Vector], truth: Labels, case: Case) -> Answer:
    """One rule's answer, with what it is worth."""
    start = time.process_time()
    wanted, labels = RULES[rule](points)
    seconds = time.process_time() - start
    is_member = truth < case.clusters  # no outlier
    found_labels = labels[is_member]
    true_labels = truth[is_member]
    sizes = np.bincount(found_labels)
    found = int((sizes >= MIN_MEMBERS).sum())
    rand = adjusted_rand(found_labels.tolist(), true_labels.tolist())
    return Answer(rule, wanted, found, round(rand, 4), round(seconds, 4))


def is_right(case: Case, one: Answer) -> bool:
    """Whether the rule has found K, and not by luck."""
    return one.found == case.clusters and one.rand >= MIN_RAND


def table(title: str, results: Sequence[Result], key: Callable[[Case], str]) -> Table:
    """Share of the cases in which each rule found K, one line for each key."""
    lines: dict[str, list[Result]] = {}
    for case, one in results:
        lines.setdefault(key(case), []).append((case, one))
    table = Table("", "cases", *RULES, title=title)
    for name, own in lines.items():
        cases = len(own) // len(RULES)
        shares = [share_found(rule, own) for rule in RULES]
        table.add_row(name, str(cases), *shares)
    return table


def share_found(rule: str, results: Sequence[Result]) -> str:
    """In how many of the cases a rule has found K, in percent."""
    hits = [is_right(case, one) for case, one in results if one.rule == rule]
    percent = 100 * np.mean(hits)
    return f"{percent:.0f} %"


def planned_cases(noises: Sequence[float], seeds: Sequence[int]) -> list[Case]:
    """All combinations, those of little noise first."""
    outliers = (0, AGENTS // 10)
    combinations = itertools.product(noises, outliers, (True, False), range(1, 9), seeds)
    cases: list[Case] = []
    for noise, count, balanced, clusters, seed in combinations:
        cases.append(Case(clusters, balanced, count, noise, seed))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--noise", nargs="+", type=float, default=[0.5, 1.0, 2.0, 2.5, 3.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results: list[Result] = []
    for case in planned_cases(options.noise, options.seeds):
        for one in answers(case):
            results.append((case, one))
    keys: dict[str, Callable[[Case], str]] = {
        "by noise": lambda case: f"noise {case.noise:g}, {case.outliers} outliers",
        "by K": lambda case: f"K = {case.clusters}, {case.outliers} outliers",
        "by balance": lambda case: "balanced" if case.balanced else "unbalanced",
    }
    console = Console()
    for title, key in keys.items():
        console.print(table(title, results, key))
    for rule in RULES:
        seconds = [one.seconds for _, one in results if one.rule == rule]
        milliseconds = 1000 * np.mean(seconds)
        console.print(f"{rule}: {milliseconds:.0f} ms of CPU each")
    records = [asdict(case) | asdict(one) for case, one in results]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(records, indent=0))


if __name__ == "__main__":
    main()
