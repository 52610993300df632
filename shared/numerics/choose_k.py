"""Choosing the number of clusters K from the data, without training anything.

`shared.clustering.largest_gap` reads the merge heights of a tree. `best_silhouette` compares the cuts of a tree with each other. `by_rotations` and
`by_silhouette` compare them with the cuts of clouds that have no clusters; only these two can
answer 1 where agents differ at all. scipy is imported inside of functions: agents do not have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from covey.shared.numerics.clustering import Labels, Linkage, Matrix, agglomerative
from covey.shared.seeds import generator

CLOUDS = 19  # a cloud without clusters scores best of 20 with a chance of 5 %
ROTATIONS = 99
BETTER = 5  # a cloud of one noise level scores among the best 5 of 100 with a chance of 5 %
MAX_CLUSTERS = 64
MAX_ROWS = 256  # rotating n rows costs n^3, so of more rows a sample is tested
FLOOR = 1e-12  # smaller shares of the whole are rounding errors


@dataclass(frozen=True)
class ChosenK:
    """The chosen number of clusters and why."""

    clusters: int  # K
    score: float  # of the best cut in two or more clusters
    chance: float  # the score that has to be exceeded for K > 1


def by_rotations(
    matrix: Matrix, linkage: Linkage = "ward", *, most: int = MAX_CLUSTERS, least: int = 1
) -> ChosenK:
    """K by the gap statistic of a tree, against random rotations of the same cloud.

    W_K is the sum of squares within the clusters of the cut into K, as a share of the whole.
    Gap(K) is the mean of W_K over clouds without clusters minus W_K of the data; s(K) is the
    standard deviation over these clouds times sqrt(1 + 1/99) (Tibshirani, Walther, Hastie 2001,
    section 3; without the logarithm: Mohajer, Englmeier, Schmitz 2010). The clouds are those of
    Perry and Owen 2010: random ones replace the left singular vectors of the points. If the points
    come from one Gaussian distribution, of whatever shape and dimension, such a cloud is just
    another draw from it. If some points are noisier than others, as signatures of agents with fewer
    samples are, they do not, and fleets without groups are split: see benchmarks/results/choosing_k.md.

    K is 1 unless the largest Gap(K) / s(K) is among the best 5 of 100. Otherwise it is the least K
    of 2 or more with Gap(K) >= Gap(K+1) - s(K+1). A cluster has three rows or more on average: six
    rows are needed for three clusters, four for two. Distances that are not Euclidean are replaced
    by the nearest that are. Of more than 256 rows a sample of 256 is used. The draws have a fixed
    seed: the answer depends on the matrix alone.

    Args:
        matrix: symmetric distances (n, n).
        linkage: how the tree is built.
        most: the largest K.
        least: rows of a cluster, which bound K; W_K is that of cuts into clusters of any size.
    """
    matrix, least = _sample(matrix, least)
    count = len(matrix)
    most = min(most, max(count // 3, 2), count // least)
    if count < 4 or most < 2 or not matrix.any():
        return ChosenK(1, 0.0, 0.0)
    points = _points(matrix)
    own = _within(points, linkage, most + 1)  # W_K of the data
    of_clouds = [
        _within(_rotated(points, number), linkage, most + 1) for number in range(ROTATIONS)
    ]
    turned = np.stack(of_clouds)  # W_K of each cloud (99, most + 1)
    mean = turned.mean(axis=0)
    s = np.maximum(turned.std(axis=0) * np.sqrt(1 + 1 / ROTATIONS), FLOOR)
    gaps = mean - own  # Gap(1), ..., Gap(most + 1)

    candidates = slice(1, most)  # K = 2, ..., most
    scores_of_clouds = ((mean - turned) / s)[:, candidates].max(axis=1)
    chance = float(np.sort(scores_of_clouds)[-BETTER])
    score = float((gaps / s)[candidates].max())
    if score <= chance:
        return ChosenK(1, score, chance)
    for k in range(2, most):
        if gaps[k - 1] >= gaps[k] - s[k]:
            return ChosenK(k, score, chance)
    return ChosenK(most, score, chance)


def _sample(matrix: Matrix, least: int) -> tuple[Matrix, int]:
    """The distances of at most `MAX_ROWS` rows, drawn on a fixed seed, and the least size of a cluster in the same share."""
    count = len(matrix)
    if count <= MAX_ROWS:
        return matrix, least
    picked = np.sort(generator(0, "rows").permutation(count)[:MAX_ROWS])
    return matrix[np.ix_(picked, picked)], math.ceil(least * MAX_ROWS / count)


def _points(matrix: Matrix) -> Matrix:
    """Points (n, r) around zero with these distances, along the cloud's principal axes.

    This is classical scaling: the eigenvectors of the matrix of inner products.
    """
    squares = matrix**2
    rows = squares.mean(axis=0)
    values, vectors = np.linalg.eigh((rows[:, None] + rows - squares - rows.mean()) / 2)
    real = values > values[-1] * FLOOR
    points: Matrix = vectors[:, real] * np.sqrt(values[real])
    return points


def _rotated(points: Matrix, number: int) -> Matrix:
    """The cloud with its own axes and singular values, but random left singular vectors."""
    draw = generator(0, "rotation", number).standard_normal(points.shape)
    directions, _ = np.linalg.qr(draw - draw.mean(axis=0))
    singular_values = np.linalg.norm(points, axis=0)
    turned: Matrix = directions * singular_values
    return turned


def _within(points: Matrix, linkage: Linkage, most: int) -> Matrix:
    """W_K for K = 1, 2, ..., `most`: the share (most,) of the sum of squares within clusters."""
    from scipy.cluster import hierarchy

    count = len(points)
    # of each node of the tree: the sum of its points (r,) and their number
    sums = dict(enumerate(points))
    sizes = dict.fromkeys(range(count), 1)
    within = np.zeros(count)  # the sum of squares after each merge
    for step, (a, b) in enumerate(hierarchy.linkage(points, linkage)[:, :2].astype(int).tolist()):
        size_a = sizes.pop(a)
        size_b = sizes.pop(b)
        apart = sums[a] / size_a - sums[b] / size_b
        growth = size_a * size_b / (size_a + size_b) * float(apart @ apart)
        within[step + 1] = within[step] + growth
        merged = count + step
        sums[merged] = sums.pop(a) + sums.pop(b)
        sizes[merged] = size_a + size_b
    from_one_cluster = within[::-1]
    shares: Matrix = from_one_cluster[:most] / within[-1]
    return shares


def by_silhouette(
    matrix: Matrix, linkage: Linkage = "average", *, most: int = MAX_CLUSTERS, least: int = 1
) -> ChosenK:
    """The cut of the merge tree with the largest mean silhouette if it exceeds chance; else 1.

    Of more than 256 rows a sample of 256 is used.

    Chance is the best cut of 19 round Gaussian clouds of n points in as many dimensions as the
    rows seem to have, into clusters of any size. They are drawn on a fixed seed, so the answer
    depends on the matrix alone. With `least: 1` an outlier is a cluster of its own.

    Args:
        matrix: symmetric distances (n, n).
        linkage: how the tree is built.
        most: the largest K; n / 2 at most, so fewer than four rows are one cluster. Ties go to
            fewer clusters.
        least: rows of a cluster; smaller ones join the nearest.
    """
    matrix, least = _sample(matrix, least)
    count = len(matrix)
    most = min(most, count // 2)
    if most < 2 or not matrix.any():
        return ChosenK(1, 0.0, 0.0)
    scores = _scores(matrix, linkage, most, least)
    size = dimensions(matrix)
    best_of_clouds = []
    for number in range(CLOUDS):
        cloud = _cloud(size, count, number)
        best_of_clouds.append(float(_scores(cloud, linkage, most, 1).max()))
    chance = max(best_of_clouds)
    best = max(float(scores.max()), 0.0)
    if best <= chance:
        return ChosenK(1, best, chance)
    return ChosenK(int(scores.argmax()) + 2, best, chance)


def best_silhouette(
    matrix: Matrix, linkage: Linkage = "complete", *, most: int | None = None, least: int = 1
) -> ChosenK:
    """The cut of the merge tree into two or more clusters with the largest mean silhouette.

    For rows that are known to differ: equal rows, fewer than three, and those that no cut with a
    silhouette above 0 divides into two clusters of `least` rows are one cluster. If the best cut into clusters of any size has
    one of `least` rows and small ones, what is known to differ may be a few outliers alone. Then the
    rest decides, and its silhouette must be better than chance (`by_silhouette`). Of more than 256
    rows a sample of 256 is used.

    Args:
        matrix: symmetric distances (n, n).
        linkage: how the tree is built.
        most: the largest K, below the number of rows in any case; None: a cluster has three rows or
            more on average. Ties go to fewer clusters.
        least: rows of a cluster; smaller ones join the nearest.
    """
    matrix, least = _sample(matrix, least)
    count = len(matrix)
    if count < 3 or not matrix.any():
        return ChosenK(1, 0.0, 0.0)
    if most is None:
        most = max(min(MAX_CLUSTERS, count // 3), 2)
    most = min(most, count - 1)
    rest = matrix if least == 1 else _without_outliers(matrix, linkage, most, least)
    if len(rest) < count:
        return by_silhouette(rest, linkage, most=most, least=least)
    scores = _scores(matrix, linkage, most, least)
    best = float(scores.max())
    return ChosenK(int(scores.argmax()) + 2, best, 0.0) if best > 0 else ChosenK(1, 0.0, 0.0)


def _without_outliers(matrix: Matrix, linkage: Linkage, most: int, least: int) -> Matrix:
    """The distances of the rows that are left once small clusters are taken away from around a single large one, again and
    again."""
    while len(matrix) >= 2 * least:
        clusters = int(_scores(matrix, linkage, min(most, len(matrix) - 1), 1).argmax()) + 2
        labels = agglomerative(matrix, linkage, n_clusters=clusters).labels
        is_large = np.bincount(labels) >= least
        if is_large.sum() != 1:
            break
        kept = is_large[labels]
        matrix = matrix[np.ix_(kept, kept)]
    return matrix


def dimensions(matrix: Matrix) -> int:
    """The dimensions, 1 to 2048, of a round Gaussian cloud whose squared distances vary as much.

    They are 2 / (coefficient of variation)^2. For a longish cloud this is the participation ratio
    of its variances, (sum v)^2 / sum v^2. Clusters make it smaller, and so chance stronger: the
    error is on the side of one cluster.
    """
    squares = matrix[np.triu_indices(len(matrix), 1)] ** 2
    estimate = 2 / max(float((squares / squares.mean()).var()), 1e-9)
    return round(min(max(estimate, 1), 2048))


def _scores(matrix: Matrix, linkage: Linkage, most: int, least: int) -> Matrix:
    """Mean silhouettes (most - 1,) of the tree cut into 2, 3, ..., `most` clusters; 0 where no cut leaves as many."""
    scores = np.zeros(most - 1)
    if least > 1:
        for clusters in range(2, min(most, len(matrix) // least) + 1):
            labels = agglomerative(matrix, linkage, n_clusters=clusters, least=least).labels
            if labels.max() + 1 == clusters:
                scores[clusters - 2] = silhouette(matrix, labels)
        return scores
    for own, sums, sizes in _cuts(matrix, linkage):
        clusters = len(sizes)
        if 2 <= clusters <= most:
            scores[clusters - 2] = _mean_silhouette(own, sums, sizes)
    return scores


def silhouette(matrix: Matrix, labels: Labels) -> float:
    """The mean silhouette of clusters (n,)."""
    members = np.eye(int(labels.max()) + 1)[labels]
    return _mean_silhouette(labels, matrix @ members, members.sum(axis=0))


def _cloud(dimensions: int, count: int, number: int) -> Matrix:
    """Distances (count, count) in a round Gaussian cloud."""
    points = generator(0, "cloud", number).standard_normal((count, dimensions))
    products = points @ points.T
    squares = np.diagonal(products)
    squared_distances = np.maximum(squares[:, None] + squares - 2 * products, 0.0)
    matrix: Matrix = np.sqrt(squared_distances)
    matrix = np.maximum(matrix, matrix.T)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def _cuts(matrix: Matrix, linkage: Linkage) -> Iterator[tuple[Labels, Matrix, Matrix]]:
    """Each cut of the tree, from n - 1 clusters to one.

    Yields:
        The cluster of each row (n,), the sums (n, K) of its distances to the rows of each cluster,
        and the sizes (K,) of the clusters. The arrays change with the next cut.
    """
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    count = len(matrix)
    nodes = np.arange(count)  # the node of the tree that each cluster is
    own = np.arange(count)
    sums = np.array(matrix, np.float64, order="F")
    sizes = np.ones(count)
    tree = hierarchy.linkage(squareform(matrix, checks=False), linkage)
    for step, (a, b) in enumerate(tree[:, :2].astype(int).tolist()):
        last = count - step - 1
        current = nodes[: last + 1]
        keep, gone = np.flatnonzero((current == a) | (current == b)).tolist()
        sums[:, keep] += sums[:, gone]
        sizes[keep] += sizes[gone]
        nodes[keep] = count + step
        own[own == gone] = keep
        # the last cluster takes the free place
        own[own == last] = gone
        sums[:, gone] = sums[:, last]
        sizes[gone] = sizes[last]
        nodes[gone] = nodes[last]
        yield own, sums[:, :last], sizes[:last]


def _mean_silhouette(own: Labels, sums: Matrix, sizes: Matrix) -> float:
    """The mean of (b - a) / max(a, b), Rousseeuw 1987, with all single rows as one alternative.

    The nearest of many single rows is near by luck, and would speak for taking outliers into
    clusters.
    """
    rows = np.arange(len(own))
    alone = sizes == 1
    size = sizes[own]
    a = sums[rows, own] / np.maximum(size - 1, 1)  # mean distance within the own cluster
    means = np.where(alone, np.inf, sums / sizes)
    means[rows, own] = np.inf
    b = means.min(axis=1)  # mean distance to the nearest other cluster
    if alone.any():
        to_single_rows = sums[:, alone].sum(axis=1) / alone.sum()
        b = np.minimum(b, to_single_rows)
    larger = np.maximum(a, b)
    counted = (size > 1) & (larger > 0)
    return float(np.divide(b - a, larger, out=np.zeros(len(own)), where=counted).mean())
