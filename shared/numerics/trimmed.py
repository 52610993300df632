"""Means that a few extreme rows cannot move, and K-means with such centres.

A trimmed mean drops the smallest and the largest values of every coordinate. A ball drops the rows
that are farthest from the geometric median, at least one of two that differ. A median drops all but
the middle value. Rows may be memory-mapped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from covey.shared.numerics.clustering import (
    KMeans,
    Labels,
    Matrix,
    Rows,
    by_first_member,
    coordinates,
    kmeans,
    lloyd,
    read,
    tiles,
)
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator

Trim = Literal["mean", "ball", "median"]
WEISZFELD = 100  # iterations towards the geometric median


def dropped(count: int, share: float) -> int:
    """How many of `count` values a share trims, rounded down."""
    # the small addition makes 0.1 of 30 exactly 3
    return math.floor((share * count) + 1e-9)


def trimmed_mean(rows: Rows, share: float) -> Matrix:
    """The mean (d,) of each coordinate without its smallest and its largest values.

    Args:
        rows: n vectors (d,).
        share: of the values that are dropped on each side.

    Raises:
        ValueError: nothing is left.
    """
    count = len(rows)
    cut = dropped(count, share)
    if not 0 <= 2 * cut < count:
        raise ValueError(f"{share} trimmed on both sides leaves nothing of {count} rows")
    size = len(rows[0])
    result = np.empty(size)
    for span in tiles(count, size):
        block = read(rows, span)
        if cut:
            block = np.sort(block, axis=0)[cut : count - cut]
        result[span] = block.mean(axis=0)
    return result


def median(rows: Rows) -> Matrix:
    """The middle value (d,) of each coordinate."""
    size = len(rows[0])
    result = np.empty(size)
    for span in tiles(len(rows), size):
        result[span] = np.median(read(rows, span), axis=0)
    return result


def geometric_median(points: Matrix) -> Matrix:
    """The point (d,) with the least sum of distances to points (n, d).

    Weiszfeld's iteration from their mean.
    """
    centre: Matrix = points.mean(axis=0)
    for _ in range(WEISZFELD):
        near = 1.0 / np.maximum(np.linalg.norm(points - centre, axis=1), 1e-12)
        centre = near @ points / near.sum()
    return centre


def ball(rows: Rows, share: float) -> list[int]:
    """The rows whose distance to the geometric median is below the 1 - `share` quantile.

    All rows where none is.
    """
    points = read(coordinates(rows, "l2sq"), slice(None))
    apart = np.linalg.norm(points - geometric_median(points), axis=1)
    near = np.flatnonzero(apart < np.quantile(apart, 1 - share))
    if not near.size:
        return list(range(len(rows)))
    inside: list[int] = near.tolist()
    return inside


def robust_mean(rows: Rows, trim: Trim, share: float) -> Matrix:
    """The mean (d,) of rows (n, d) without a share of them, in float64."""
    match trim:
        case "mean":
            return trimmed_mean(rows, share)
        case "median":
            return median(rows)
        case "ball":
            return trimmed_mean([rows[i] for i in ball(rows, share)], 0.0)


def trimmed_kmeans(
    rows: Sequence[Vector],
    clusters: int,
    *,
    trim: Trim,
    share: float,
    n_init: int,
    seed: int,
    most: int = 50,
) -> KMeans:
    """Lloyd's algorithm with robust centres: the run with the least trimmed cost.

    The cost of a cluster is the sum of squared distances to its centre without the farthest
    members; it is the result's inertia.

    Args:
        rows: n vectors (d,).
        clusters: K.
        trim: what a centre is.
        share: of the members of a cluster that are trimmed.
        n_init: the number of runs.
        seed: of the draws.
        most: the largest number of iterations of a run.

    Raises:
        ValueError: there are fewer rows than clusters.
    """
    match trim:
        case "mean":
            nothing_is_trimmed = dropped(len(rows), share) == 0
        case "ball":
            nothing_is_trimmed = share == 0
        case "median":
            nothing_is_trimmed = False
    if nothing_is_trimmed:
        return kmeans(rows, clusters, n_init=n_init, seed=seed, most=most)
    if not 1 <= clusters <= len(rows):
        raise ValueError(f"{len(rows)} rows cannot make {clusters} clusters")

    def centre(members: list[Any]) -> Matrix:
        return robust_mean(members, trim, share)

    # a rotation changes the order of a coordinate's values, which the other rules need
    points: Rows = rows
    if trim == "ball":
        points = coordinates(rows, "l2sq")
    partitions: list[Labels] = []
    costs: list[float] = []
    for run in range(n_init):
        draw = generator(seed, "kmeans", run)
        labels, apart = lloyd(points, clusters, draw, distance="l2sq", most=most, centre=centre)
        partitions.append(labels)
        costs.append(trimmed_cost(labels, apart, share))
    best = costs.index(min(costs))
    labels = by_first_member(partitions[best])
    centres: list[Vector] = []
    for k in range(labels.max() + 1):
        members = [rows[i] for i in np.flatnonzero(labels == k).tolist()]
        of_cluster = centre(members)
        centres.append(of_cluster.astype(np.float32))
    return KMeans(labels, tuple(centres), costs[best])


def trimmed_cost(labels: Labels, apart: Matrix, share: float) -> float:
    """The sum of the distances (n,) without the largest `share` of each cluster."""
    kept: list[float] = []
    for k in set(labels.tolist()):
        own = apart[labels == k]
        ascending = np.sort(own)
        cut = dropped(len(own), share)
        kept += ascending[: (len(own) - cut)].tolist()
    return math.fsum(kept)
