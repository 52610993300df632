"""Points of many values in two dimensions, and rows of a distance matrix in the order of their tree. Pure.

scikit-learn and scipy are imported only by the functions that use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.clustering import Linkage, Matrix

Points = npt.NDArray[np.floating]  # (n, d)

MIN_FOR_TSNE = 10  # points: fewer have no neighbourhoods to keep
MAX_FOR_TSNE = 2000
PERPLEXITY = 30.0


@dataclass(frozen=True)
class Plane:
    """The two directions in which points differ most."""

    axes: Matrix  # (2, d), orthonormal; zero rows if the points span fewer directions
    shares: tuple[float, ...]  # of all variance, along each of them

    def of(self, points: Points) -> Matrix:
        """Coordinates (n, 2) of points (n, d) that are centred already."""
        coordinates: Matrix = np.asarray(points, np.float64) @ self.axes.T
        return coordinates


def principal_plane(points: Points) -> Plane:
    """PCA of points (n, d) that are centred already, d at least 2.

    The sign of an axis is fixed: its largest entry is positive.
    """
    _, singular, directions = np.linalg.svd(np.asarray(points, np.float64), full_matrices=False)
    # Fewer than two points span fewer than two axes: zeros stand for the others.
    missing = np.zeros((2, points.shape[1]))
    axes = np.vstack([directions, missing])[:2]
    places = np.abs(axes).argmax(axis=1)
    largest = axes[np.arange(2), places]
    signs = np.where(largest < 0, -1.0, 1.0)
    axes = axes * signs[:, None]
    variances = np.append(singular**2, [0.0, 0.0])
    total = float(variances.sum())
    if total <= 0:
        return Plane(axes, (0.0, 0.0))
    shares = variances[:2] / total
    return Plane(axes, tuple(shares.tolist()))


def rounds_in_one_plane(
    rounds: Sequence[tuple[Points, Points]],
) -> tuple[Plane, list[tuple[Matrix, Matrix]]]:
    """The plane of all rounds together, and each round's points (n, 2) and centres (K, 2) in it.

    Each round is centred at the mean of its points: the training that all models share would otherwise hide
    the differences between them.

    Args:
        rounds: points (n, d) and centres (K, d) of each round
    """
    centred: list[tuple[Matrix, Matrix]] = []
    for points, centres in rounds:
        middle = np.asarray(points, np.float64).mean(axis=0)
        centred.append((points - middle, centres - middle))
    plane = principal_plane(np.concatenate([points for points, _ in centred]))
    return plane, [(plane.of(points), plane.of(centres)) for points, centres in centred]


def tsne(points: Points) -> Matrix | None:
    """t-SNE (n, 2) of points (n, d), deterministic: it starts from the PCA. None for too few points or too many."""
    count = len(points)
    if not MIN_FOR_TSNE <= count <= MAX_FOR_TSNE:
        return None
    from sklearn.manifold import TSNE

    wide = np.asarray(points, np.float64)
    model = TSNE(2, perplexity=min(PERPLEXITY, (count - 1) / 3), init="pca", random_state=0)
    return np.asarray(model.fit_transform(wide), np.float64)


@dataclass(frozen=True)
class Tree:
    """A merge tree of n rows, as it is drawn: each merge is a bracket of four corners."""

    order: tuple[int, ...]  # of the rows
    places: Matrix  # (n - 1, 4), of the corners along the rows; the first row is at 0
    heights: Matrix  # (n - 1, 4)


def tree_of(distances: Matrix, linkage: Linkage) -> Tree:
    """The merge tree of a symmetric distance matrix (n, n), n at least 2."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    condensed = squareform(distances, checks=False)
    drawn = hierarchy.dendrogram(hierarchy.linkage(condensed, linkage), no_plot=True)
    leaves = drawn["leaves"] or ()
    corners = np.asarray(drawn["icoord"], np.float64)
    places = (corners - 5.0) / 10.0  # scipy places row i at 10 i + 5
    heights = np.asarray(drawn["dcoord"], np.float64)
    return Tree(tuple(leaves), places, heights)
