"""How many clusters? Four rules that let the data say; nothing is trained for them.

`shared.clustering.largest_gap` reads the merge heights of a tree, `elbow` the fall of J over a grid of K. `by_rotations`
and `by_silhouette` compare the cuts of a tree with the cuts of clouds that have no clusters. Where agents
differ at all, only these two can answer 1. scipy is imported only where it is used: agents do not have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from covey.shared.numerics.clustering import Labels, Linkage, Matrix
from covey.shared.seeds import generator

CLOUDS = 19  # the chance that the data, were they a cloud too, scored best of 20 is 5 %
ROTATIONS = 99
BETTER = 5  # the chance that the data, were they a cloud too, scored among the best 5 of 100 is 5 %
MOST = 64
MOST_ROWS = 256  # rotating n rows costs n^3: of more, a sample is tested
FLOOR = 1e-12  # of the whole: less is rounding


def elbow(spreads: Mapping[int, float]) -> int:
    """The K at the largest second difference J(K-1) - 2 J(K) + J(K+1) of mean distances J, ties to the lowest.

    Only a K with both neighbours in `spreads` can be chosen, so never the least, never the largest.
    Raises ValueError where no K has both.
    """
    inner = sorted(k for k in spreads if {k - 1, k + 1} <= set(spreads))
    if not inner:
        raise ValueError(
            f"J at {sorted(spreads)} has no second difference: three numbers in a row are wanted"
        )
    return max(inner, key=lambda k: spreads[k - 1] - 2 * spreads[k] + spreads[k + 1])


@dataclass(frozen=True)
class Choice:
    """K, what the best cut in two or more clusters scored, and the score that has to be exceeded for K > 1."""

    clusters: int
    score: float
    chance: float


def by_rotations(matrix: Matrix, linkage: Linkage = "ward", *, most: int = MOST) -> Choice:
    """K by the gap statistic of a tree of distances (n, n), against random rotations of the very same cloud.

    W_K is the sum of squares within the clusters of the cut into K, as a share of the whole. Gap(K) is the mean of W_K
    over clouds without clusters minus W_K itself, s(K) the standard deviation over these clouds times
    sqrt(1 + 1/99) (Tibshirani, Walther, Hastie 2001, section 3; without the logarithm: Mohajer, Englmeier, Schmitz 2010).
    Our clouds are those of Perry, Owen 2010: the left singular vectors of the points are replaced by random ones. If the
    points were drawn from one Gaussian distribution, of whatever shape and dimension, this changes nothing but the draw:
    no noise level has to be known.

    K is 1 unless the largest Gap(K) / s(K) is among the best 5 of 100; then it is the least K of 2 or more with
    Gap(K) >= Gap(K+1) - s(K+1). A cluster has three rows or more on average: six rows are needed for three
    clusters, four for two. Distances that are not Euclidean are replaced by the nearest that are.
    Of more than 256 rows a sample of 256 is looked at. The draws have a fixed seed: the answer depends on the matrix alone.
    """
    if len(matrix) > MOST_ROWS:
        picked = np.sort(generator(0, "rows").permutation(len(matrix))[:MOST_ROWS])
        matrix = matrix[np.ix_(picked, picked)]
    count = len(matrix)
    most = min(most, max(count // 3, 2))
    if count < 4 or most < 2 or not matrix.any():
        return Choice(1, 0.0, 0.0)
    points = _points(matrix)
    own = _within(points, linkage, most + 1)
    turned = np.stack(
        [_within(_rotated(points, number), linkage, most + 1) for number in range(ROTATIONS)]
    )
    mean = turned.mean(axis=0)
    spread = np.maximum(turned.std(axis=0) * np.sqrt(1 + 1 / ROTATIONS), FLOOR)
    gaps = mean - own  # of 1, 2, ..., most + 1 clusters
    cuts = slice(1, most)
    by_chance = np.sort(((mean - turned) / spread)[:, cuts].max(axis=1))
    score, chance = float((gaps / spread)[cuts].max()), float(by_chance[-BETTER])
    if score <= chance:
        return Choice(1, score, chance)
    enough = (k for k in range(2, most) if gaps[k - 1] >= gaps[k] - spread[k])
    return Choice(next(enough, most), score, chance)


def _points(matrix: Matrix) -> Matrix:
    """Points (n, r) around zero with these distances, along the cloud's principal axes (classical scaling)."""
    squares = matrix**2
    rows = squares.mean(axis=0)
    values, vectors = np.linalg.eigh((rows[:, None] + rows - squares - rows.mean()) / 2)
    real = values > values[-1] * FLOOR
    points: Matrix = vectors[:, real] * np.sqrt(values[real])
    return points


def _rotated(points: Matrix, number: int) -> Matrix:
    """The cloud with its own axes and singular values, but left singular vectors drawn from all there can be."""
    draw = generator(0, "rotation", number).standard_normal(points.shape)
    directions = np.linalg.qr(draw - draw.mean(axis=0))[0]
    turned: Matrix = directions * np.linalg.norm(points, axis=0)
    return turned


def _within(points: Matrix, linkage: Linkage, most: int) -> Matrix:
    """Share (most,) of the sum of squares that is within the clusters of the cuts into 1, 2, ..., `most`."""
    from scipy.cluster import hierarchy

    count = len(points)
    sums, sizes = dict(enumerate(points)), dict.fromkeys(range(count), 1)
    within = np.zeros(count)  # after each merge
    for step, (a, b) in enumerate(hierarchy.linkage(points, linkage)[:, :2].astype(int).tolist()):
        one, other = sizes.pop(a), sizes.pop(b)
        apart = sums[a] / one - sums[b] / other
        within[step + 1] = within[step] + one * other / (one + other) * float(apart @ apart)
        sums[count + step], sizes[count + step] = sums.pop(a) + sums.pop(b), one + other
    shares: Matrix = within[::-1][:most] / within[-1]
    return shares


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
    gains = np.divide(
        outside - inside, larger, out=np.zeros(len(own)), where=(size > 1) & (larger > 0)
    )
    return float(gains.mean())
