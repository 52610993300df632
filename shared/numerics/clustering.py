"""Clustering primitives: K-means on streamed rows, agglomeration of a distance matrix.

Rows are float32 vectors (d,) that may be memory-mapped: they are read in tiles and never copied whole.
Everything is deterministic for a seed; ties go to the lower index; labels count from 0 in the order of
each cluster's first member. scipy is imported only where it is used: agents do not have it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
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

TILE = 1 << 20  # elements of a tile: 8 MiB in float64
SKETCH_ROWS = 512  # rows of the random matrix that exist at a time


def tiles(count: int, size: int) -> list[slice]:
    """Column slices such that `count` rows of one slice fill about a tile."""
    width = max(TILE // max(count, 1), 1)
    return [slice(start, min(start + width, size)) for start in range(0, size, width)]


def read(rows: Rows, span: slice) -> Matrix:
    """These columns of all rows in float64; pages of mapped rows are let go."""
    if isinstance(rows, np.ndarray):
        return np.asarray(rows[:, span], np.float64)
    block: Matrix = np.stack([row[span] for row in rows]).astype(np.float64)
    release(*rows)
    return block


def distances(rows: Rows, centres: Rows, distance: Distance = "l2sq") -> Matrix:
    """Distances (n, K) of rows to centres by direct differences in float64; cosine is 1 - similarity."""
    if distance == "cosine":
        return _cosines(rows, centres)
    table = np.zeros((len(rows), len(centres)))
    for span in tiles(len(rows), len(rows[0])):
        block, centre = read(rows, span), read(centres, span)
        for k, point in enumerate(centre):
            gap = block - point
            table[:, k] += _squares(gap) if distance == "l2sq" else np.abs(gap).sum(axis=1)
    return table


def _cosines(rows: Rows, centres: Rows) -> Matrix:
    products = np.zeros((len(rows), len(centres)))
    own, theirs = np.zeros(len(rows)), np.zeros(len(centres))
    for span in tiles(len(rows), len(rows[0])):
        block, centre = read(rows, span), read(centres, span)
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
    return labels, table[np.arange(len(labels)), labels]


def refill(labels: Labels, apart: Matrix, clusters: int) -> Labels:
    """Give every empty cluster the row that lies farthest from its centre and is not alone there.

    `apart` (n,) are the distances to the present centres. Clusters stay empty where too few rows exist.
    """
    labels, apart = labels.copy(), apart.copy()
    for empty in sorted(set(range(clusters)) - set(labels.tolist())):
        counts = np.bincount(labels, minlength=clusters)
        free = np.where(counts[labels] > 1, apart, -math.inf)
        farthest = int(free.argmax())
        if free[farthest] == -math.inf:
            break
        labels[farthest], apart[farthest] = empty, 0.0
    return labels


@dataclass(frozen=True)
class KMeans:
    """Labels (n,), centres K x (d,), and the sum of the rows' distances to their centres."""

    labels: Labels
    centres: tuple[Vector, ...]
    inertia: float


def kmeans(
    rows: Sequence[Vector],
    clusters: int,
    *,
    n_init: int,
    seed: int,
    distance: Distance = "l2sq",
    most: int = 100,
) -> KMeans:
    """Lloyd's algorithm from `clusters` distinct random rows; the run with the least inertia of `n_init`.

    Each run goes on until the labels rest, `most` iterations at the most. A centre is the mean of its rows
    whatever the distance. An emptied cluster is seeded again at the row farthest from its centre.
    Raises ValueError for fewer rows than clusters.
    """
    if not 1 <= clusters <= len(rows):
        raise ValueError(f"{len(rows)} rows cannot make {clusters} clusters")
    points = coordinates(rows, distance)
    runs = [
        lloyd(points, clusters, generator(seed, "kmeans", run), distance, most)
        for run in range(n_init)
    ]
    labels, apart = min(runs, key=lambda run: math.fsum(run[1]))
    labels = by_first_member(labels)
    used = range(int(labels.max()) + 1)
    centres = tuple(
        mean([(row, 1.0) for row, label in zip(rows, labels, strict=True) if label == k])
        for k in used
    )
    return KMeans(labels, centres, math.fsum(apart))


def coordinates(rows: Rows, distance: Distance) -> Rows:
    """Rows in at most n dimensions with the same pairwise distances and cosines.

    Short rows are returned in float64, long ones (d > n) through the eigenvectors of their Gram matrix: equal rows stay
    equal to the last bit. Rows stay as they are for "l1", since sums of absolute differences survive no rotation, and
    where one so long stands among them that products would round away what tells the others apart.
    """
    count, size = len(rows), len(rows[0])
    if distance == "l1":
        return rows
    if size <= count:
        return read(rows, slice(0, size))
    gram = np.zeros((count, count))
    for span in tiles(count, size):
        block = read(rows, span)
        if (
            distance == "l2sq"
        ):  # distances do not mind a shift, and rounding is smaller around the mean
            block = block - block.mean(axis=0)
        gram += block @ block.T
    if distance == "l2sq" and _rounded_away(gram):
        return rows
    values, vectors = np.linalg.eigh(gram)
    points: Matrix = vectors * np.sqrt(np.maximum(values, 0.0))
    return points[_first_equal(rows)]


def _rounded_away(gram: Matrix) -> bool:
    """Is the rounding of the largest product no longer small beside the squared distance of half of all pairs?"""
    own = gram.diagonal()
    apart = (own[:, None] + own[None, :] - 2 * gram)[np.triu_indices(len(gram), 1)]
    usual = max(float(np.median(apart)), 0.0) if apart.size else math.inf
    return bool(np.finfo(np.float64).eps * own.max() > 1e-6 * usual)


def _first_equal(rows: Rows) -> list[int]:
    """For each row the first one that is equal to it."""
    seen: dict[bytes, int] = {}
    return [
        seen.setdefault(hashlib.blake2b(np.ascontiguousarray(row).data).digest(), i)
        for i, row in enumerate(rows)
    ]


def lloyd(
    points: Rows,
    clusters: int,
    draw: np.random.Generator,
    distance: Distance,
    most: int,
    centre: Callable[[list[Any]], Matrix] | None = None,
) -> tuple[Labels, Matrix]:
    """One run from distinct random rows: labels (n,) and distances (n,) to the centres, which are means by default."""
    centre = centre or _plain
    centres: Rows = [points[i] for i in _distinct(points, clusters, draw)]
    labels, apart = nearest(points, centres, distance)
    for _ in range(most):
        labels = refill(labels, apart, clusters)
        members = [
            [points[i] for i in np.flatnonzero(labels == k).tolist()] for k in range(clusters)
        ]
        centres = [centre(own) if own else old for own, old in zip(members, centres, strict=True)]
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
    """Rows drawn at random such that no two are equal, where there are enough of those."""
    order = draw.permutation(len(points)).tolist()
    chosen: list[int] = []
    for i in order:
        if len(chosen) < clusters and not any(np.array_equal(points[i], points[j]) for j in chosen):
            chosen.append(i)
    twins = [i for i in order if i not in chosen]
    return chosen + twins[: clusters - len(chosen)]


def sketch(rows: Sequence[Vector], size: int, seed: int) -> Vector:
    """Rows (n, d) in `size` dimensions by a fixed Gaussian matrix: keeps l2 distances to about 1/sqrt(size).

    The matrix depends on the seed alone, so rows sketched at different times may be compared.
    """
    total = np.zeros((len(rows), size))
    for start in range(0, len(rows[0]), SKETCH_ROWS):
        block = read(rows, slice(start, start + SKETCH_ROWS))
        gauss = generator(seed, "sketch", start).standard_normal((block.shape[1], size), np.float32)
        total += block @ gauss.astype(np.float64)
    return (total / math.sqrt(size)).astype(np.float32)


def euclidean(rows: Sequence[Vector]) -> Matrix:
    """Symmetric matrix (n, n) of Euclidean distances by direct differences: near-identical rows stay apart."""
    half = np.tril(np.sqrt(distances(rows, rows)))
    matrix: Matrix = half + half.T
    return matrix


@dataclass(frozen=True)
class Agglomeration:
    """Labels (n,), all n - 1 merge heights in ascending order, and the thresholds that give this very cut.

    Any threshold in [`low`, `high`) cuts here; `low` is None for n singletons, `high` for one cluster.
    `weights` (n,) are the rows' shares in their cluster under linkage "weighted" (WPGMA): every merge halves the weights
    of both its sides, so a row has 2 to the power of minus the merges on its path. They sum to 1 in each cluster.
    """

    labels: Labels
    heights: tuple[float, ...]
    low: float | None
    high: float | None
    weights: Matrix

    @property
    def clusters(self) -> int:
        return int(self.labels.max()) + 1


def agglomerative(
    matrix: Matrix,
    linkage: Linkage = "average",
    *,
    threshold: float | None = None,
    n_clusters: int | None = None,
) -> Agglomeration:
    """Clusters of a symmetric distance matrix (n, n): merges are made while their height is <= `threshold`,
    or until `n_clusters` are left, or, where neither is given, up to the largest relative gap.

    Linkages are scipy's; "ward" wants Euclidean distances. Raises ValueError for a matrix that is not
    square, symmetric and finite with a zero diagonal.
    """
    count = len(matrix)
    if matrix.shape != (count, count) or count == 0 or not np.isfinite(matrix).all():
        raise ValueError(
            f"a square matrix of finite distances is wanted, not one of shape {matrix.shape}"
        )
    if not np.array_equal(matrix, matrix.T) or np.diagonal(matrix).any():
        raise ValueError("a symmetric matrix with a zero diagonal is wanted")
    tree = _tree(matrix, linkage)
    heights = np.maximum.accumulate(tree[:, 2])
    if n_clusters is not None:
        merges = count - min(n_clusters, count)
    elif threshold is not None:
        merges = int(np.searchsorted(heights, threshold, side="right"))
    else:
        merges = largest_gap(heights)
    low, high = (heights[at] if 0 <= at < count - 1 else None for at in (merges - 1, merges))
    labels, weights = _after(tree, merges)
    return Agglomeration(
        labels,
        tuple(heights.tolist()),
        None if low is None else float(low),
        None if high is None else float(high),
        weights,
    )


def cut_between(
    cut: tuple[float | None, float | None], heights: Sequence[float], count: int
) -> float | None:
    """A height at which a drawing of the tree of `count` rows is cut; None where rows were added after the cut.

    `cut` holds the thresholds of an `Agglomeration`, `heights` its merge heights.
    """
    if count != len(heights) + 1 or not heights:
        return None
    low, high = cut
    if high is None:
        return 1.05 * heights[-1]
    return ((low or 0.0) + high) / 2


def largest_gap(heights: Matrix) -> int:
    """Merges to make: all below the largest ratio of consecutive heights, ties to the fewest merges.

    Zero heights count as 1e-12 of the largest. Fewer than two heights, or none above zero, have no gap: merge all.
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
    """Labels (n,) and path weights (n,) once the first so many merges of the table were made."""
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
    """Inner products (n, n) of rows - origin, in float64, read in one pass."""
    products = np.zeros((len(rows), len(rows)))
    for span in tiles(len(rows), len(rows[0])):
        block = read(rows, span)
        if origin is not None:
            block = block - origin[span].astype(np.float64)
        products += block @ block.T
    return products


def bipartition_min_cross(similarity: Matrix) -> tuple[Labels, float]:
    """The split in two whose largest similarity across is least, and that similarity: labels 0 and 1, row 0 in 0.

    Exact (Sattler et al. 2019): pairs are joined in the order of falling similarity, ties by index, until two
    components remain. Raises ValueError for fewer than two rows.
    """
    count = len(similarity)
    if count < 2:
        raise ValueError(f"{count} rows cannot be split in two")
    first, second = np.triu_indices(count, 1)
    order = np.argsort(-similarity[first, second], kind="stable")
    labels, parts = np.arange(count), count
    for i, j in zip(first[order].tolist(), second[order].tolist(), strict=True):
        if parts > 2 and labels[i] != labels[j]:
            labels = np.where(labels == labels[j], labels[i], labels)
            parts -= 1
    halves = by_first_member(labels)
    return halves, across(similarity, halves)


def across(similarity: Matrix, labels: Labels) -> float:
    """The largest similarity of two rows with different labels."""
    return float(np.max(similarity[labels[:, None] != labels[None, :]]))


def orthonormal(columns: npt.NDArray[Any]) -> Matrix:
    """An orthonormal basis (d, rank) of the span of columns (d, p); directions below float32 rounding are left out."""
    left, values, _ = np.linalg.svd(np.asarray(columns, np.float64), full_matrices=False)
    least = values.max(initial=0.0) * max(columns.shape) * np.finfo(np.float32).eps
    basis: Matrix = left[:, values > least]
    return basis


def principal_angles(u: npt.NDArray[Any], v: npt.NDArray[Any]) -> Matrix:
    """Angles between the subspaces that the columns of two matrices (d, p) and (d, q) span, in degrees, ascending."""
    cosines = np.linalg.svd(orthonormal(u).T @ orthonormal(v), compute_uv=False)
    angles: Matrix = np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0)))
    return angles


def by_first_member(labels: Labels) -> Labels:
    """The same clusters, numbered from 0 in the order of their first members."""
    number = {name: k for k, name in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([number[name] for name in labels.tolist()], np.int64)
