"""Clustering: K-means on streamed rows, and agglomeration of a distance matrix.

Rows are float32 vectors (d,) that may be memory-mapped: they are read in tiles and never copied
whole. Everything is deterministic for a seed. Ties go to the lower index. Labels count from 0 in
the order of each cluster's first member. scipy is imported inside of functions: agents do not have
it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Vector, mean, release
from covey.shared.seeds import generator

Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Rows = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]  # vectors (d,), or a matrix (n, d)
Distance = Literal["l2sq", "cosine", "l1"]
Linkage = Literal["average", "single", "complete", "weighted", "ward"]

RUNS = (
    20  # of K-means where the papers ask for several: the one with the smallest distances is used
)
TILE = 1 << 20  # elements of a tile: 8 MiB in float64
SKETCH_ROWS = 512  # rows of the random matrix that are in memory at a time


def tiles(count: int, size: int) -> list[slice]:
    """Column slices such that `count` rows of one slice fill about a tile."""
    width = max(TILE // max(count, 1), 1)
    return [slice(start, min(start + width, size)) for start in range(0, size, width)]


def read(rows: Rows, span: slice) -> Matrix:
    """These columns (n, width) of all rows in float64; pages of mapped rows are released."""
    if isinstance(rows, np.ndarray):
        return np.asarray(rows[:, span], np.float64)
    block: Matrix = np.stack([row[span] for row in rows]).astype(np.float64)
    release(*rows)
    return block


def distances(rows: Rows, centres: Rows, distance: Distance = "l2sq") -> Matrix:
    """Distances (n, K) of n rows to K centres, by direct differences in float64.

    "l2sq" is the sum of squared differences, "l1" that of absolute ones, "cosine" is 1 minus the
    cosine similarity.
    """
    if distance == "cosine":
        return _cosines(rows, centres)
    table = np.zeros((len(rows), len(centres)))
    for span in tiles(len(rows), len(rows[0])):
        block = read(rows, span)
        for k, point in enumerate(read(centres, span)):
            gap = block - point
            if distance == "l2sq":
                table[:, k] += _squares(gap)
            else:
                table[:, k] += np.abs(gap).sum(axis=1)
    return table


def _cosines(rows: Rows, centres: Rows) -> Matrix:
    products = np.zeros((len(rows), len(centres)))
    own = np.zeros(len(rows))
    theirs = np.zeros(len(centres))
    for span in tiles(len(rows), len(rows[0])):
        block = read(rows, span)
        centre = read(centres, span)
        products += block @ centre.T
        own += _squares(block)
        theirs += _squares(centre)
    norms = np.sqrt(np.outer(own, theirs))
    similar: Matrix = np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0)
    return 1.0 - similar


def _squares(block: Matrix) -> Matrix:
    squares: Matrix = np.einsum("nd,nd->n", block, block)
    return squares


def nearest(rows: Rows, centres: Rows, distance: Distance = "l2sq") -> tuple[Labels, Matrix]:
    """Index of each row's nearest centre, ties to the lowest, and the distance to it."""
    table = distances(rows, centres, distance)
    labels = table.argmin(axis=1)
    every_row = np.arange(len(labels))
    return labels, table[every_row, labels]


def refill(labels: Labels, apart: Matrix, clusters: int) -> Labels:
    """Labels in which every empty cluster has got the row that is farthest from its centre.

    Args:
        labels: the cluster of each row (n,).
        apart: the distance of each row to its centre (n,).
        clusters: K. A row that is alone in its cluster is not moved, so clusters stay empty where
            there are too few rows.
    """
    labels = labels.copy()
    apart = apart.copy()
    empty_clusters = set(range(clusters)) - set(labels.tolist())
    for empty in sorted(empty_clusters):
        has_company = np.bincount(labels, minlength=clusters)[labels] > 1
        free = np.where(has_company, apart, -math.inf)
        farthest = int(free.argmax())
        if free[farthest] == -math.inf:
            break
        labels[farthest] = empty
        apart[farthest] = 0.0
    return labels


@dataclass(frozen=True)
class KMeans:
    """The result of K-means."""

    labels: Labels  # (n,)
    centres: tuple[Vector, ...]  # K vectors (d,)
    inertia: float  # the sum of the rows' distances to their centres


def kmeans(
    rows: Sequence[Vector],
    clusters: int,
    *,
    n_init: int,
    seed: int,
    distance: Distance = "l2sq",
    most: int = 100,
) -> KMeans:
    """Lloyd's algorithm from distinct random rows: the run with the least inertia.

    A run ends once the labels do not change any more. A centre is the mean of its rows whatever the
    distance. A cluster that became empty starts again at the row farthest from its centre.

    Args:
        rows: n vectors (d,).
        clusters: K.
        n_init: the number of runs.
        seed: of the draws.
        distance: of a row to a centre.
        most: the largest number of iterations of a run.

    Raises:
        ValueError: there are fewer rows than clusters.
    """
    if not 1 <= clusters <= len(rows):
        raise ValueError(f"{len(rows)} rows cannot make {clusters} groups")
    points = coordinates(rows, distance)
    partitions: list[Labels] = []
    inertias: list[float] = []
    for run in range(n_init):
        labels, apart = lloyd(
            points, clusters, generator(seed, "kmeans", run), distance=distance, most=most
        )
        partitions.append(labels)
        inertias.append(math.fsum(apart))
    best = inertias.index(min(inertias))
    labels = by_first_member(partitions[best])
    centres: list[Vector] = []
    for k in range(int(labels.max()) + 1):
        members = [(row, 1.0) for row, label in zip(rows, labels, strict=True) if label == k]
        centres.append(mean(members))
    return KMeans(labels, tuple(centres), inertias[best])


def coordinates(rows: Rows, distance: Distance) -> Rows:
    """Rows in at most n dimensions with the same pairwise distances and cosines.

    Short rows are returned in float64. Long ones (d > n) are replaced by the eigenvectors of their
    Gram matrix; equal rows stay equal to the last bit. Rows stay as they are for "l1", because a
    rotation changes sums of absolute differences, and where one row is so long that products round
    away the differences between the others.
    """
    count = len(rows)
    size = len(rows[0])
    if distance == "l1":
        return rows
    if size <= count:
        return read(rows, slice(0, size))
    products = np.zeros((count, count))
    for span in tiles(count, size):
        block = read(rows, span)
        if distance == "l2sq":
            # a shift changes no distance, and rounding errors are smaller around the mean
            block = block - block.mean(axis=0)
        products += block @ block.T
    if distance == "l2sq" and _rounded_away(products):
        return rows
    values, vectors = np.linalg.eigh(products)
    points: Matrix = vectors * np.sqrt(np.maximum(values, 0.0))
    return points[_first_equal(rows)]


def _rounded_away(gram: Matrix) -> bool:
    """Whether the rounding error of the largest product is large against the usual squared distance."""
    own = gram.diagonal()
    apart = (own[:, None] + own[None, :] - 2 * gram)[np.triu_indices(len(gram), 1)]
    usual = math.inf
    if apart.size:
        usual = max(float(np.median(apart)), 0.0)
    return bool(np.finfo(np.float64).eps * own.max() > 1e-6 * usual)


def _first_equal(rows: Rows) -> list[int]:
    """For each row the first one that is equal to it."""
    first_places: dict[bytes, int] = {}
    places: list[int] = []
    for i, row in enumerate(rows):
        content = np.ascontiguousarray(row).data
        places.append(first_places.setdefault(hashlib.blake2b(content).digest(), i))
    return places


def lloyd(
    points: Rows,
    clusters: int,
    draw: np.random.Generator,
    *,
    distance: Distance,
    most: int,
    centre: Callable[[list[Any]], Matrix] | None = None,
) -> tuple[Labels, Matrix]:
    """One run of Lloyd's algorithm from distinct random rows.

    Args:
        points: n rows (d,).
        clusters: K.
        draw: the generator of the first centres.
        distance: of a row to a centre.
        most: the largest number of iterations.
        centre: makes the centre of a list of rows; None: their mean.

    Returns:
        Labels (n,) and the distances (n,) to the centres.
    """
    centre = centre or _plain
    centres: list[Any] = [points[i] for i in _distinct(points, clusters, draw)]
    labels, apart = nearest(points, centres, distance)
    for _ in range(most):
        labels = refill(labels, apart, clusters)
        for k in range(clusters):
            members = [points[i] for i in np.flatnonzero(labels == k).tolist()]
            if members:
                centres[k] = centre(members)
        moved, apart = nearest(points, centres, distance)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels, apart


def _plain(rows: Sequence[Any]) -> Matrix:
    return _sum(rows) / len(rows)


def _sum(rows: Rows) -> Matrix:
    total = np.zeros(len(rows[0]))
    for row in rows:
        total += row
        release(row)
    return total


def _distinct(points: Rows, clusters: int, draw: np.random.Generator) -> list[int]:
    """Rows drawn at random, no two of them equal if there are enough different ones."""
    order = draw.permutation(len(points)).tolist()
    chosen: list[int] = []
    for i in order:
        if len(chosen) == clusters:
            break
        is_known = any(np.array_equal(points[i], points[j]) for j in chosen)
        if not is_known:
            chosen.append(i)
    return chosen + [i for i in order if i not in chosen][: clusters - len(chosen)]


def sketch(rows: Sequence[Vector], size: int, seed: int) -> Vector:
    """Rows (n, d) in `size` dimensions, by a fixed Gaussian matrix: (n, size).

    Euclidean distances change by about 1 / sqrt(size) of themselves. The matrix depends on the seed
    alone, so rows that were sketched at different times can be compared.
    """
    total = np.zeros((len(rows), size))
    for start in range(0, len(rows[0]), SKETCH_ROWS):
        block = read(rows, slice(start, start + SKETCH_ROWS))
        gauss = generator(seed, "sketch", start).standard_normal((block.shape[1], size), np.float32)
        total += block @ gauss.astype(np.float64)
    return (total / math.sqrt(size)).astype(np.float32)


def euclidean(rows: Sequence[Vector]) -> Matrix:
    """The symmetric matrix (n, n) of Euclidean distances between rows.

    Direct differences keep rows apart that are nearly the same.
    """
    half = np.tril(np.sqrt(distances(rows, rows)))
    matrix: Matrix = half + half.T
    return matrix


@dataclass(frozen=True)
class Agglomeration:
    """A cut of a merge tree of n rows."""

    labels: Labels  # (n,)
    heights: tuple[float, ...]  # of all n - 1 merges, ascending

    # Any threshold in [low, high) gives this cut.
    low: float | None  # None for n clusters of one row
    high: float | None  # None for one cluster

    # The rows' shares (n,) in their cluster under linkage "weighted" (WPGMA): every merge halves the
    # weights of both its sides. They sum to 1 in each cluster; rows that have joined one have none.
    weights: Matrix

    joined: int = 0  # rows of clusters that were too small, which are in the nearest other one

    @property
    def clusters(self) -> int:
        """K."""
        return int(self.labels.max()) + 1


def agglomerative(
    matrix: Matrix,
    linkage: Linkage = "average",
    *,
    threshold: float | None = None,
    n_clusters: int | None = None,
    least: int = 1,
) -> Agglomeration:
    """Clusters of a distance matrix. Without `threshold` and `n_clusters` the largest gap decides.

    Clusters of fewer than `least` rows join the nearest other one, by the mean distance. If fewer than
    two are left, there is one cluster.

    Args:
        matrix: symmetric finite distances (n, n) with a zero diagonal.
        linkage: one of scipy's; "ward" needs Euclidean distances.
        threshold: make the merges up to this height.
        n_clusters: of the cuts that leave this many clusters of `least` rows, the one with the most
            merges; overrides `threshold`. Where no cut leaves as many: that which leaves most.
        least: rows of a cluster.

    Raises:
        ValueError: the matrix is not square, symmetric and finite with a zero diagonal.
    """
    count = len(matrix)
    if matrix.shape != (count, count) or count == 0 or not np.isfinite(matrix).all():
        raise ValueError(
            f"expected a square matrix of finite distances, got one of shape {matrix.shape}"
        )
    if not np.array_equal(matrix, matrix.T) or np.diagonal(matrix).any():
        raise ValueError("expected a symmetric matrix with a zero diagonal")
    tree = _tree(matrix, linkage)
    heights = np.maximum.accumulate(tree[:, 2])
    if n_clusters is not None:
        merges = _merges(tree, n_clusters, least)
    elif threshold is not None:
        merges = int(np.searchsorted(heights, threshold, side="right"))
    else:
        merges = largest_gap(heights)
    all_heights = tuple(heights.tolist())
    low = all_heights[merges - 1] if merges > 0 else None
    high = all_heights[merges] if merges < count - 1 else None
    labels, weights = _after(tree, merges)
    small = np.bincount(labels)[labels] < least
    if small.any():
        labels = without_small(labels, matrix, least)
        weights = np.where(small, 0.0, weights)
    return Agglomeration(labels, all_heights, low, high, weights, int(small.sum()))


def _merges(tree: Matrix, clusters: int, least: int) -> int:
    """The merges that leave this many clusters of `least` rows: as many merges as possible."""
    best = (1, len(tree))  # clusters, and the merges that leave them
    for merges, large in large_clusters(tree, least):
        if best[0] < large <= clusters:
            best = (large, merges)
        if best[0] >= clusters:
            break
    return best[1]


def large_clusters(tree: Matrix, least: int) -> Iterator[tuple[int, int]]:
    """From the root of a merge table down, the merges of each cut and its clusters of `least` rows."""
    count = len(tree) + 1
    sizes = np.concatenate([np.ones(count), tree[:, 3]])
    large = 1
    for merges in reversed(range(len(tree))):
        a, b = tree[merges, :2].astype(int)
        large += int(sizes[a] >= least) + int(sizes[b] >= least)
        large -= int(sizes[count + merges] >= least)
        yield merges, large


def without_small(labels: Labels, matrix: Matrix, least: int) -> Labels:
    """The clusters (n,) of `least` rows or more, which the rows of smaller ones have joined.

    A small cluster joins the one with the least mean distance to it, ties to the lower number. If
    fewer than two are large, all rows are one cluster.
    """
    sizes = np.bincount(labels)
    [large] = np.nonzero(sizes >= least)
    if len(large) < 2:
        return np.zeros_like(labels)
    kept = labels.copy()
    for small in np.flatnonzero(sizes < least).tolist():
        rows = labels == small
        apart = [float(matrix[np.ix_(rows, labels == k)].mean()) for k in large.tolist()]
        kept[rows] = large[int(np.argmin(apart))]
    return by_first_member(kept)


def cut_between(
    cut: tuple[float | None, float | None], heights: Sequence[float], count: int
) -> float | None:
    """A height at which a plot of a merge tree shows its cut.

    Args:
        cut: `low` and `high` of an `Agglomeration`.
        heights: its merge heights.
        count: the number of rows now.

    Returns:
        The height; None where rows were added after the cut.
    """
    if count != len(heights) + 1 or not heights:
        return None
    low, high = cut
    if high is None:
        return 1.05 * heights[-1]
    return ((low or 0.0) + high) / 2


def largest_gap(heights: Matrix) -> int:
    """The merges to make: all before the largest ratio of consecutive heights.

    Ties go to fewer merges. Zero heights count as 1e-12 of the largest. Fewer than two heights, or
    none above zero, have no gap: then all merges are made.
    """
    if len(heights) < 2 or heights[-1] <= 0:
        return len(heights)
    raised = np.maximum(heights, heights[-1] * 1e-12)
    return int(np.argmax(raised[1:] / raised[:-1])) + 1


def _tree(matrix: Matrix, linkage: Linkage) -> Matrix:
    """scipy's merge table (n - 1, 4): two clusters, height, size."""
    if len(matrix) == 1:
        return np.zeros((0, 4))
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    return np.asarray(hierarchy.linkage(squareform(matrix, checks=False), linkage), np.float64)


def _after(tree: Matrix, merges: int) -> tuple[Labels, Matrix]:
    """Labels (n,) and WPGMA weights (n,) after the first merges of the table."""
    count = len(tree) + 1
    members = {i: [i] for i in range(count)}
    weights = np.ones(count)
    for step, (a, b) in enumerate(tree[:merges, :2].astype(int).tolist()):
        merged = members.pop(a) + members.pop(b)
        members[count + step] = merged
        weights[merged] /= 2
    labels = np.empty(count, np.int64)
    for name, rows in members.items():
        labels[rows] = name
    return by_first_member(labels), weights


def gram(rows: Rows, origin: Vector | None = None) -> Matrix:
    """Inner products (n, n) of rows - origin, in float64; reads the rows once."""
    products = np.zeros((len(rows), len(rows)))
    for span in tiles(len(rows), len(rows[0])):
        block = read(rows, span)
        if origin is not None:
            block = block - origin[span].astype(np.float64)
        products += block @ block.T
    return products


def bipartition_min_cross(similarity: Matrix) -> tuple[Labels, float]:
    """The split in two whose largest similarity across is least (Sattler et al. 2019).

    It is exact: pairs are joined in the order of falling similarity, ties by index, until two
    components remain.

    Args:
        similarity: symmetric (n, n).

    Returns:
        Labels 0 and 1 (n,), row 0 in 0, and the largest similarity across.

    Raises:
        ValueError: there are fewer than two rows.
    """
    count = len(similarity)
    if count < 2:
        raise ValueError(f"{count} rows cannot be split in two")
    first, second = np.triu_indices(count, 1)
    order = np.argsort(-similarity[first, second], kind="stable")
    labels = np.arange(count)
    components = count
    for i, j in zip(first[order].tolist(), second[order].tolist(), strict=True):
        if components > 2 and labels[i] != labels[j]:
            labels = np.where(labels == labels[j], labels[i], labels)
            components -= 1
    halves = by_first_member(labels)
    return halves, across(similarity, halves)


def across(similarity: Matrix, labels: Labels) -> float:
    """The largest similarity of two rows with different labels."""
    is_across = labels[:, None] != labels[None, :]
    return float(np.max(similarity[is_across]))


def orthonormal(columns: npt.NDArray[Any]) -> Matrix:
    """An orthonormal basis (d, rank) of the span of columns (d, p).

    Directions below the rounding errors of float32 are left out.
    """
    left, values, _ = np.linalg.svd(np.asarray(columns, np.float64), full_matrices=False)
    largest = values.max(initial=0.0)
    basis: Matrix = left[:, values > largest * max(columns.shape) * np.finfo(np.float32).eps]
    return basis


def by_first_member(labels: Labels) -> Labels:
    """The same clusters, numbered from 0 in the order of their first members."""
    numbers: dict[int, int] = {}
    for label in labels.tolist():
        numbers.setdefault(label, len(numbers))
    return np.array([numbers[label] for label in labels.tolist()], np.int64)
