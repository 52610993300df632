"""Points in a plane, and the order of a tree: the pure half of the report's pictures."""

from __future__ import annotations

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from covey.extras.dashboard.cluster_pictures import (
    principal_plane,
    rounds_in_one_plane,
    tree_of,
    tsne,
)
from covey.shared.numerics.clustering import Linkage, euclidean


def planted(rounds: int = 1, apart: float = 6.0) -> list[np.ndarray]:
    """Twenty points (20, 30) of two clusters that take turns, in each round; all move on together by far more."""
    rng = np.random.default_rng(4)
    side = rng.normal(size=30)
    side *= apart / np.linalg.norm(side)
    found = []
    for number in range(rounds):
        common = 100.0 * number * np.ones(30)
        turns = np.arange(20)[:, None] % 2
        found.append(common + side * turns + rng.normal(size=(20, 30)) * 0.3)
    return found


def separated(points: np.ndarray) -> bool:
    """Whether even rows and odd ones lie apart in the first coordinate, with room between."""
    even, odd = points[0::2, 0], points[1::2, 0]
    return bool(even.max() + 1.0 < odd.min() or odd.max() + 1.0 < even.min())


def test_the_first_component_separates_planted_clusters() -> None:
    [points] = planted()
    plane, [(drawn, centres)] = rounds_in_one_plane([(points, points[:2])])
    assert separated(drawn)
    assert np.allclose(centres, drawn[:2])
    assert plane.shares[0] > 0.7
    assert plane.shares[0] > plane.shares[1]


def test_rounds_share_one_plane_and_what_all_models_learn_does_not_hide_the_clusters() -> None:
    rounds = planted(rounds=3)
    _, drawn = rounds_in_one_plane([(points, points[:1]) for points in rounds])
    assert all(separated(points) for points, _ in drawn)
    sides = {bool(points[0, 0] < points[1, 0]) for points, _ in drawn}
    assert len(sides) == 1  # the same cluster is on the same side in every round


def test_a_plane_does_not_depend_on_the_sign_that_a_decomposition_happens_to_choose() -> None:
    [points] = planted()
    centred = points - points.mean(axis=0)
    again = principal_plane(-centred)
    assert np.allclose(principal_plane(centred).axes, again.axes)


def test_one_point_and_equal_points_have_a_plane() -> None:
    for points in (np.zeros((1, 4)), np.zeros((3, 4))):
        plane = principal_plane(points)
        assert plane.shares == (0.0, 0.0)
        assert plane.of(points).shape == (len(points), 2)


def test_tsne_keeps_planted_clusters_together_and_repeats() -> None:
    [points] = planted(apart=30.0)
    first, again = tsne(points), tsne(points)
    assert first is not None
    assert again is not None
    assert np.array_equal(first, again)
    even, odd = first[0::2], first[1::2]
    gap = np.linalg.norm(even.mean(axis=0) - odd.mean(axis=0))
    spread = max(np.linalg.norm(own - own.mean(axis=0), axis=1).max() for own in (even, odd))
    assert gap > 2 * spread
    assert tsne(points[:9]) is None


def test_the_order_of_a_tree_is_scipys() -> None:
    matrix = euclidean(list(planted()[0].astype(np.float32)))
    linkages: tuple[Linkage, ...] = ("average", "single", "complete", "weighted", "ward")
    for linkage in linkages:
        tree = tree_of(matrix, linkage)
        merges = hierarchy.linkage(squareform(matrix), linkage)
        assert list(tree.order) == hierarchy.leaves_list(merges).tolist()
        parity = [row % 2 for row in tree.order]
        assert parity == sorted(
            parity, key=lambda one: one != parity[0]
        )  # planted clusters stand together
        assert np.isclose(tree.heights.max(), merges[-1, 2])
        assert tree.places.min() == 0.0
