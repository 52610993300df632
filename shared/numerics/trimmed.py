"""Means that a few wild rows cannot move, and K-means with such centres.

A trimmed mean drops the smallest and the largest values of every coordinate; a ball drops the rows that lie
farthest from the geometric median, at least one of two that differ; a median drops all but the middle. Rows may be
memory-mapped.
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
    """How many of `count` values a share trims: rounded down, but 0.1 of 30 is 3."""
    return math.floor(share * count + 1e-9)


def trimmed_mean(rows: Rows, share: float) -> Matrix:
    """Mean (d,) of each coordinate's values without the `share` smallest and the `share` largest of them."""
    cut = dropped(len(rows), share)
    if not 0 <= 2 * cut < len(rows):
        raise ValueError(f"{share} trimmed on both sides leaves nothing of {len(rows)} rows")
    result = np.empty(len(rows[0]))
    for span in tiles(len(rows), len(rows[0])):
        block = read(rows, span)
        result[span] = (np.sort(block, axis=0)[cut : len(rows) - cut] if cut else block).mean(
            axis=0
        )
    return result


def median(rows: Rows) -> Matrix:
    """The middle value (d,) of each coordinate."""
    result = np.empty(len(rows[0]))
    for span in tiles(len(rows), len(rows[0])):
        result[span] = np.median(read(rows, span), axis=0)
    return result


def geometric_median(points: Matrix) -> Matrix:
    """The point (d,) with the least sum of distances to points (n, d), by Weiszfeld's iteration from their mean."""
    centre: Matrix = points.mean(axis=0)
    for _ in range(WEISZFELD):
        near = 1.0 / np.maximum(np.linalg.norm(points - centre, axis=1), 1e-12)
        centre = near @ points / near.sum()
    return centre


def ball(rows: Rows, share: float) -> list[int]:
    """The rows whose distance to the geometric median is below the 1 - `share` quantile; all where none is."""
    points = read(coordinates(rows, "l2sq"), slice(None))
    apart = np.linalg.norm(points - geometric_median(points), axis=1)
    near = np.flatnonzero(apart < np.quantile(apart, 1 - share)).tolist()
    return near or list(range(len(rows)))


def robust_mean(rows: Rows, trim: Trim, share: float) -> Matrix:
    """Trim_share of rows (n, d): (d,) in float64."""
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
    """Lloyd's algorithm with robust centres: the run with the least trimmed cost of `n_init`.

    The cost of a cluster is the sum of squared distances to its centre without its `share` farthest members; it is
    the result's inertia. Raises ValueError for fewer rows than clusters.
    """
    idle = {"mean": dropped(len(rows), share) == 0, "ball": share == 0, "median": False}
    if idle[trim]:
        return kmeans(
            rows, clusters, n_init=n_init, seed=seed, most=most
        )  # nothing is ever trimmed
    if not 1 <= clusters <= len(rows):
        raise ValueError(f"{len(rows)} rows cannot make {clusters} clusters")

    def centre(members: list[Any]) -> Matrix:
        return robust_mean(members, trim, share)

    points = (
        coordinates(rows, "l2sq") if trim == "ball" else rows
    )  # a coordinate's order survives no rotation
    draws = (generator(seed, "kmeans", run) for run in range(n_init))
    runs = [lloyd(points, clusters, draw, "l2sq", most, centre) for draw in draws]
    costs = [trimmed_cost(labels, apart, share) for labels, apart in runs]
    best = costs.index(min(costs))
    labels = by_first_member(runs[best][0])
    members = [
        [row for row, label in zip(rows, labels, strict=True) if label == k]
        for k in range(labels.max() + 1)
    ]
    centres = tuple(centre(own).astype(np.float32) for own in members)
    return KMeans(labels, centres, costs[best])


def trimmed_cost(labels: Labels, apart: Matrix, share: float) -> float:
    """Sum of the distances (n,), without the `share` largest of each cluster."""
    kept: list[float] = []
    for k in set(labels.tolist()):
        own = np.sort(apart[labels == k])
        kept += own[: len(own) - dropped(len(own), share)].tolist()
    return math.fsum(kept)
