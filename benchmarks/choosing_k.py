"""How often rules that choose the number of clusters find it, on planted signatures. Prints tables, writes JSON.

    python -m benchmarks.choosing_k

A signature is a cluster's centre (standard deviation 1 per coordinate, 850 coordinates: a final layer of LeNet-5) plus
noise. Outliers are agents with a centre of their own. A rule has found K if K of its clusters have three or more members
that are no outliers (these may be alone, together, or with others), and if agents that are no outliers are where they
belong: adjusted Rand index 0.9. Every rule sees the same vectors. The best silhouette answers 2 or more: it is asked
behind a gate, so cases with one cluster are not its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covey.shared.numerics.choose_k import best_silhouette, by_rotations, by_silhouette
from covey.shared.numerics.clustering import Labels, agglomerative, euclidean, kmeans
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator
from covey.shared.storage.files import write_atomically

AGENTS = 100
DIMENSIONS = 850
GRID = range(1, 10)  # of the second difference, which can answer all but the first and the last
MIN_MEMBERS = 3  # a smaller group is no cluster
MIN_RAND = 0.9  # a rule that leaves nearly every agent alone may have K groups of three by luck

OUT = Path(__file__).parent / "results" / "choosing_k.json"
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
Counts = dict[str, dict[str, tuple[int, int]]]
KEYS: dict[str, Callable[[Case], str]] = {
    "noise, outliers": lambda case: f"{case.noise:g}, {case.outliers or 'none'}",
    "K, outliers": lambda case: f"{case.clusters}, {case.outliers or 'none'}",
}


def elbow(spreads: Mapping[int, float]) -> int:
    """The K with the largest second difference J(K-1) - 2 J(K) + J(K+1), ties to the lowest.

    Args:
        spreads: the mean distance J for each K. Only a K with both neighbours can be chosen, so
            never the least, never the largest.

    Raises:
        ValueError: no K has both neighbours.
    """
    inner = sorted(k for k in spreads if k - 1 in spreads and k + 1 in spreads)
    if not inner:
        raise ValueError(
            f"J at {sorted(spreads)} has no second difference: give three numbers in a row"
        )

    def second_difference(k: int) -> float:
        return spreads[k - 1] - 2 * spreads[k] + spreads[k + 1]

    return max(inner, key=second_difference)


def planted(case: Case) -> tuple[list[Vector], Labels]:
    """Signatures (100, 850) and the truth; outliers have labels of their own, from K on."""
    draw = generator(case.seed, "planted", case.clusters, str(case))
    groups = case.clusters + case.outliers
    sizes = shares(case) + [1] * case.outliers
    truth = np.repeat(np.arange(groups), sizes)
    centres = draw.standard_normal((groups, DIMENSIONS))
    noise = draw.standard_normal((AGENTS, DIMENSIONS))
    return list((centres[truth] + case.noise * noise).astype(np.float32)), truth


def shares(case: Case) -> list[int]:
    """Sizes of the clusters, which add up to all agents but the outliers."""
    weights = np.ones(case.clusters)
    if not case.balanced:
        weights = 1.0 / (1 + np.arange(case.clusters))
    members = AGENTS - case.outliers
    exact_ends = np.cumsum(weights) / weights.sum() * members
    sizes: list[int] = np.diff(np.rint(exact_ends).astype(int), prepend=0).tolist()
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
    """The default behind an open gate."""
    matrix = euclidean(points)
    k = best_silhouette(matrix).clusters
    return k, agglomerative(matrix, "complete", n_clusters=k).labels


def by_silhouette_and_chance(points: Sequence[Vector]) -> tuple[int, Labels]:
    """The default without a gate: the best silhouette, if chance stays below."""
    matrix = euclidean(points)
    k = by_silhouette(matrix, "complete").clusters
    return k, agglomerative(matrix, "complete", n_clusters=k).labels


def by_turned_clouds(points: Sequence[Vector]) -> tuple[int, Labels]:
    """`choose: rotations`."""
    matrix = euclidean(points)
    k = by_rotations(matrix).clusters
    return k, agglomerative(matrix, "ward", n_clusters=k).labels


RULES: dict[str, Rule] = {
    "best silhouette": by_best_silhouette,
    "silhouette against chance": by_silhouette_and_chance,
    "rotations": by_turned_clouds,
    "largest gap": by_gap,
    "second difference": by_second_difference,
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
    found = int((np.bincount(found_labels) >= MIN_MEMBERS).sum())
    rand = adjusted_rand(found_labels.tolist(), true_labels.tolist())
    return Answer(rule, wanted, found, round(rand, 4), round(seconds, 4))


def is_right(case: Case, one: Answer) -> bool:
    """Whether the rule has found K, and not by luck."""
    return one.found == case.clusters and one.rand >= MIN_RAND


def counted(results: Sequence[Result], key: Callable[[Case], str]) -> Counts:
    """By key and rule: in how many cases the rule found K, and the number of cases."""
    counts: Counts = {}
    for case, one in results:
        if one.rule == "best silhouette" and case.clusters == 1:
            continue
        hits, cases = counts.setdefault(key(case), {}).setdefault(one.rule, (0, 0))
        counts[key(case)][one.rule] = (hits + is_right(case, one), cases + 1)
    return counts


def table(first: str, counts: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """Markdown: a row per key, the share of the cases in which each rule found K."""
    lines = [f"| {first} | {' | '.join(RULES)} |", "|---|" + "---:|" * len(RULES)]
    for name, own in counts.items():
        shares = [share(*own[rule]) if rule in own else "" for rule in RULES]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    return "\n".join(lines)


def share(hits: int, cases: int) -> str:
    """In percent."""
    return f"{100 * hits / cases:.0f} %"


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
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    results: list[Result] = []
    for case in planned_cases(options.noise, options.seeds):
        for one in answers(case):
            results.append((case, one))
    record: dict[str, Counts] = {}
    for title, key in KEYS.items():
        record[title] = counted(results, key)
        print(table(title, record[title]))
    for rule in RULES:
        milliseconds = 1000 * np.mean([one.seconds for _, one in results if one.rule == rule])
        print(f"{rule}: {milliseconds:.0f} ms of CPU each")
    write_atomically(options.out, json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
