"""How many clusters? Three rules that let the data say; nothing is trained for them.

`shared.clustering.largest_gap` reads the merge heights of a tree, `elbow` the fall of J over a grid of K, and
`by_silhouette`, which is ours, compares every cut of a tree with the cuts of clouds that have no clusters. Where agents
differ at all, only the last can answer 1. scipy is imported only where it is used: agents do not have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shared.clustering import Labels, Linkage, Matrix
from shared.seeds import generator

CLOUDS = 19  # the chance that the data, were they a cloud too, scored best of 20 is 5 %
MOST = 64


def elbow(spreads: Mapping[int, float]) -> int:
    """The K at the largest second difference J(K-1) - 2 J(K) + J(K+1) of mean distances J, ties to the lowest.

    Only a K with both neighbours in `spreads` can be chosen, so never the least, never the largest.
    Raises ValueError where no K has both.
    """
    inner = sorted(k for k in spreads if {k - 1, k + 1} <= set(spreads))
    if not inner:
        raise ValueError(f"J at {sorted(spreads)} has no second difference: three numbers in a row are wanted")
    return max(inner, key=lambda k: spreads[k - 1] - 2 * spreads[k] + spreads[k + 1])


@dataclass(frozen=True)
class Choice:
    """K, the mean silhouette of the best cut in two or more, and the best that a cloud without clusters reached."""

    clusters: int
    silhouette: float
    chance: float


def by_silhouette(matrix: Matrix, linkage: Linkage = "average", *, most: int = MOST) -> Choice:
    """The cut of the merge tree of distances (n, n) with the largest mean silhouette, if chance stays below; else 1.

    Chance: the best cuts of 19 round Gaussian clouds of n points in as many dimensions as the rows seem to
    have. They are drawn on a fixed seed, so the answer depends on the matrix alone. An outlier is a cluster of its
    own. At most `most` clusters and n / 2, so fewer than four rows are one cluster; ties go to fewer.
    """
    count = len(matrix)
    most = min(most, count // 2)
    if most < 2 or not matrix.any():
        return Choice(1, 0.0, 0.0)
    scores = _scores(matrix, linkage, most)
    size = dimensions(matrix)
    chance = max(float(_scores(_cloud(size, count, i), linkage, most).max()) for i in range(CLOUDS))
    best = float(scores.max())
    return Choice(int(scores.argmax()) + 2 if best > chance else 1, best, chance)


def dimensions(matrix: Matrix) -> int:
    """How many dimensions a round Gaussian cloud has whose squared distances vary as much for their size: 1 to 2048.

    That is 2 / (coefficient of variation)^2. For a longish cloud it is the participation ratio of its variances,
    (sum v)^2 / sum v^2. Clusters make it fewer, and so chance stronger: the error is on the side of one cluster.
    """
    squares = matrix[np.triu_indices(len(matrix), 1)] ** 2
    variation = float((squares / squares.mean()).var())
    return round(min(max(2 / max(variation, 1e-9), 1), 2048))


def _scores(matrix: Matrix, linkage: Linkage, most: int) -> Matrix:
    """Mean silhouettes (most - 1,) of the tree cut into 2, 3, ..., `most` clusters."""
    scores = np.zeros(most - 1)
    for own, sums, sizes in _cuts(matrix, linkage):
        if 2 <= len(sizes) <= most:
            scores[len(sizes) - 2] = _mean_silhouette(own, sums, sizes)
    return scores


def _cloud(dimensions: int, count: int, number: int) -> Matrix:
    """Distances (count, count) in a round Gaussian cloud."""
    points = generator(0, "cloud", number).standard_normal((count, dimensions))
    products = points @ points.T
    squares = np.diagonal(products)
    matrix: Matrix = np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0.0))
    matrix = np.maximum(matrix, matrix.T)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def _cuts(matrix: Matrix, linkage: Linkage) -> Iterator[tuple[Labels, Matrix, Matrix]]:
    """Each cut, from n - 1 clusters to one: cluster of each row, sums (n, K) of its distances to each, sizes (K,)."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    count = len(matrix)
    names = np.arange(count)  # which node of the tree each cluster is
    own, sums, sizes = np.arange(count), np.array(matrix, np.float64, order="F"), np.ones(count)
    tree = hierarchy.linkage(squareform(matrix, checks=False), linkage)
    for step, (a, b) in enumerate(tree[:, :2].astype(int).tolist()):
        last = count - step - 1
        keep, gone = np.flatnonzero((names[: last + 1] == a) | (names[: last + 1] == b)).tolist()
        sums[:, keep] += sums[:, gone]
        sizes[keep] += sizes[gone]
        names[keep] = count + step
        own[own == gone] = keep
        own[own == last] = gone  # the last cluster takes the free place
        sums[:, gone], sizes[gone], names[gone] = sums[:, last], sizes[last], names[last]
        yield own, sums[:, :last], sizes[:last]


def _mean_silhouette(own: Labels, sums: Matrix, sizes: Matrix) -> float:
    """Rousseeuw 1987, but rows that stand alone are one alternative together, not as many as there are.

    The nearest of many single rows is near by luck, and would speak for taking outliers into clusters.
    """
    rows, alone = np.arange(len(own)), sizes == 1
    size = sizes[own]
    inside = sums[rows, own] / np.maximum(size - 1, 1)
    means = np.where(alone, np.inf, sums / sizes)
    means[rows, own] = np.inf
    outside = means.min(axis=1)
    if alone.any():
        outside = np.minimum(outside, sums[:, alone].sum(axis=1) / alone.sum())
    larger = np.maximum(inside, outside)
    gains = np.divide(outside - inside, larger, out=np.zeros(len(own)), where=(size > 1) & (larger > 0))
    return float(gains.mean())
