"""Spectral clustering of a matrix of affinities, with the number of clusters by the index of Davies and Bouldin. Pure."""

from __future__ import annotations

import numpy as np

from covey.shared.numerics.clustering import Labels, Matrix, kmeans

LEAST = 1e-12  # of a degree or a distance that something is divided by
STARTS = 10  # of K-means


def spectral(affinity: Matrix, most: int, seed: int, *, below: float = 1.0) -> Labels | None:
    """Labels (n,) of the division with the smallest Davies-Bouldin index; None if no index is below `below`.

    The division is that of Ng, Jordan and Weiss 2002: K-means on the rows of the first K eigenvectors of the normalised
    affinities, each of length 1. The index is that of these rows.

    Args:
        affinity: (n, n) symmetric, not negative.
        most: the largest number of clusters; from two on all are tried.
        seed: of K-means.
        below: what the index must be smaller than.
    """
    roots = np.sqrt(np.maximum(affinity.sum(axis=1), LEAST))
    _, vectors = np.linalg.eigh(affinity / np.outer(roots, roots))
    largest_first = vectors[:, ::-1]
    best: Labels | None = None
    for count in range(2, min(most, len(affinity) - 1) + 1):
        rows = largest_first[:, :count]
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), LEAST)
        labels = kmeans(list(rows.astype(np.float32)), count, n_init=STARTS, seed=seed).labels
        index = davies_bouldin(rows, labels)
        if index < below:
            best, below = labels, index
    return best


def davies_bouldin(rows: Matrix, labels: Labels) -> float:
    """How wide clusters are, relative to the distances of their centres: the mean over clusters of the worst pair.

    Args:
        rows: (n, d).
        labels: (n,) from 0 on.

    Returns:
        0 for points that are equal within each cluster; infinity for one cluster.
    """
    count = int(labels.max()) + 1
    if count < 2:
        return float("inf")
    centres = np.stack([rows[labels == k].mean(axis=0) for k in range(count)])
    widths = np.array(
        [np.linalg.norm(rows[labels == k] - centres[k], axis=1).mean() for k in range(count)]
    )
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    ratios = (widths[:, None] + widths[None]) / np.maximum(apart, LEAST)
    np.fill_diagonal(ratios, 0.0)
    return float(ratios.max(axis=1).mean())
