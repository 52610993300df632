"""Points of many values in two dimensions, and rows of a distance matrix in the order of their tree. Pure.

scikit-learn and scipy are imported only where they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.clustering import Linkage, Matrix

FEWEST_FOR_TSNE = 10  # points: fewer have no neighbourhoods to keep
MOST_FOR_TSNE = 2000
PERPLEXITY = 30.0


@dataclass(frozen=True)
class Plane:
    """The two directions (2, d) in which points differ most, and the share of all variance that lies in each."""

    axes: Matrix
    shares: tuple[float, ...]

    def of(self, points: npt.NDArray[np.floating]) -> Matrix:
        """Coordinates (n, 2) of points (n, d) that are centred already."""
        found: Matrix = np.asarray(points, np.float64) @ self.axes.T
        return found


def principal_plane(points: npt.NDArray[np.floating]) -> Plane:
    """PCA of points (n, d) that are centred already, d at least 2. An axis points to where its largest entry is positive."""
    _, values, axes = np.linalg.svd(np.asarray(points, np.float64), full_matrices=False)
    axes = np.vstack([axes, np.zeros((2, points.shape[1]))])[
        :2
    ]  # fewer than two points span fewer than two axes
    largest = axes[np.arange(2), np.abs(axes).argmax(axis=1)]
    axes = axes * np.where(largest < 0, -1.0, 1.0)[:, None]
    variances = np.append(values**2, [0.0, 0.0])
    total = float(variances.sum())
    shares = tuple((variances[:2] / total).tolist()) if total > 0 else (0.0, 0.0)
    return Plane(axes, shares)


def rounds_in_one_plane(
    rounds: Sequence[tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]],
) -> tuple[Plane, list[tuple[Matrix, Matrix]]]:
    """The plane of all rounds together, and each round's points (n, 2) and centres (K, 2) in it.

    Each round, given as points (n, d) and centres (K, d), is centred at the mean of its points: what all models have learned since the last round would hide
    what tells them apart.
    """
    centred: list[tuple[Matrix, Matrix]] = []
    for points, centres in rounds:
        middle = np.asarray(points, np.float64).mean(axis=0)
        centred.append((points - middle, centres - middle))
    plane = principal_plane(np.concatenate([points for points, _ in centred]))
    return plane, [(plane.of(points), plane.of(centres)) for points, centres in centred]


def tsne(points: npt.NDArray[np.floating]) -> Matrix | None:
    """t-SNE (n, 2) of points (n, d), from the PCA and without any chance; None for too few points or too many."""
    if not FEWEST_FOR_TSNE <= len(points) <= MOST_FOR_TSNE:
        return None
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    fitted = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(
        np.asarray(points, np.float64)
    )
    return np.asarray(fitted, np.float64)


@dataclass(frozen=True)
class Tree:
    """A merge tree as it is drawn: `order` of the n rows, and for each merge the four corners of its bracket, `places`
    (n - 1, 4) along the rows, the first row at 0, and `heights` (n - 1, 4)."""

    order: tuple[int, ...]
    places: Matrix
    heights: Matrix


def tree_of(distances: Matrix, linkage: Linkage) -> Tree:
    """The merge tree of a symmetric distance matrix (n, n), n at least 2."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    merges = hierarchy.linkage(squareform(distances, checks=False), linkage)
    drawn = hierarchy.dendrogram(merges, no_plot=True)
    places = (np.asarray(drawn["icoord"], np.float64) - 5.0) / 10.0  # scipy puts row i at 10 i + 5
    return Tree(tuple(drawn["leaves"] or ()), places, np.asarray(drawn["dcoord"], np.float64))
