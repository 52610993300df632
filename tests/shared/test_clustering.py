"""Clustering primitives against brute force on small sizes, and their promises about ties and memory."""

import itertools
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.shared.numerics import clustering
from covey.shared.numerics.clustering import (
    Linkage,
    Matrix,
    across,
    agglomerative,
    bipartition_min_cross,
    coordinates,
    distances,
    euclidean,
    gram,
    kmeans,
    largest_gap,
    orthonormal,
    refill,
    sketch,
)
from covey.shared.seeds import generator
from tests.night import examples


def groups(centres: list[list[float]], each: int, noise: float = 0.1) -> list[Any]:
    draw = generator(3, "groups")
    return [
        (np.array(c) + draw.normal(0, noise, len(c))).astype(np.float32)
        for c in centres
        for _ in range(each)
    ]


def inertia(rows: list[Any], labels: tuple[int, ...]) -> float:
    X, total = np.array(rows, np.float64), 0.0
    for k in set(labels):
        members = X[np.array(labels) == k]
        total += float(((members - members.mean(axis=0)) ** 2).sum())
    return total


@pytest.mark.parametrize(
    "size", [2, 40]
)  # fewer and more dimensions than rows: the direct and the Gram path
def test_kmeans_finds_the_best_of_all_partitions(size: int) -> None:
    rows = list(generator(1, "rows").normal(0, 1, (7, size)).astype(np.float32))
    best = min(
        inertia(rows, labels)
        for labels in itertools.product(range(3), repeat=7)
        if len(set(labels)) == 3
    )
    found = kmeans(rows, 3, n_init=50, seed=0)
    assert found.inertia == pytest.approx(best, rel=1e-6)
    assert inertia(rows, tuple(found.labels)) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("distance", ["l2sq", "cosine", "l1"])
def test_kmeans_separates_groups_and_numbers_them_by_first_member(distance: Any) -> None:
    rows = groups([[5, 0, 0], [0, 5, 0], [0, 0, -5]], each=4)
    found = kmeans(rows, 3, n_init=10, seed=1, distance=distance)
    assert found.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.centres[2] == pytest.approx(np.mean(rows[8:], axis=0), rel=1e-6)


def test_kmeans_repeats_for_a_seed_and_reads_memory_maps(tmp_path: Path) -> None:
    X = generator(2, "rows").normal(0, 1, (6, 50)).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    mapped = [np.load(tmp_path / "x.npy", mmap_mode="r")[i] for i in range(6)]
    once, again = (kmeans(rows, 2, n_init=3, seed=9) for rows in (list(X), mapped))
    assert once.labels.tolist() == again.labels.tolist()
    assert [c.tobytes() for c in once.centres] == [c.tobytes() for c in again.centres]


def test_kmeans_starts_at_distinct_points() -> None:
    rows = [np.array([0.0], np.float32)] * 9 + [np.array([7.0], np.float32)]
    for seed in range(
        20
    ):  # ten rows, two points: a draw of two rows that ignores twins would nearly always fail
        assert kmeans(rows, 2, n_init=1, seed=seed).labels.tolist() == [0] * 9 + [1]


def test_kmeans_wants_as_many_rows_as_clusters() -> None:
    with pytest.raises(ValueError, match="1 rows cannot make 2 groups"):
        kmeans([np.zeros(3, np.float32)], 2, n_init=1, seed=0)


@pytest.mark.parametrize("tile", [1, 7, 1 << 20])
def test_distances_do_not_depend_on_the_tiles(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "TILE", tile)
    rows, centres = generator(4, "rows").normal(0, 1, (2, 5, 11)).astype(np.float32)
    gaps = rows[:, None].astype(np.float64) - centres[None]
    assert distances(list(rows), list(centres)) == pytest.approx((gaps**2).sum(axis=2))
    assert distances(list(rows), list(centres), "l1") == pytest.approx(np.abs(gaps).sum(axis=2))
    norms = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(centres, axis=1)[None]
    assert distances(list(rows), list(centres), "cosine") == pytest.approx(
        1 - rows @ centres.T / norms, abs=1e-6
    )


def test_the_cosine_distance_to_nothing_is_1() -> None:
    assert distances([np.zeros(2, np.float32)], [np.ones(2, np.float32)], "cosine").tolist() == [
        [1.0]
    ]


def test_equal_rows_have_the_same_coordinates_to_the_last_bit() -> None:
    draw = generator(0, "groups")
    groups = [draw.normal(0, 1, 40).astype(np.float32) for _ in range(3)]
    rows = [
        groups[i % 3] for i in range(12)
    ]  # more values than rows: they go through their Gram matrix
    points = coordinates(rows, "l2sq")
    assert [points[i].tobytes() for i in range(12)] == [points[i % 3].tobytes() for i in range(12)]
    for seed in range(40):
        assert kmeans(rows, 3, n_init=1, seed=seed).labels.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize("length", [1e6, 1e9, 1e12])
def test_kmeans_finds_honest_groups_despite_one_huge_row(length: float) -> None:
    draw = generator(1, "groups")
    rows = [((-1) ** i + draw.normal(0, 0.1, 1000)).astype(np.float32) for i in range(12)]
    rows.append(np.full(1000, length / math.sqrt(1000), np.float32))
    for seed in range(5):
        assert kmeans(rows, 3, n_init=20, seed=seed).labels.tolist() == [0, 1] * 6 + [2]


@pytest.mark.parametrize("distance", ["l2sq", "cosine"])
def test_coordinates_keep_pairwise_distances_in_few_dimensions(distance: Any) -> None:
    rows = list((generator(5, "rows").normal(0, 1, (4, 300)) + 3).astype(np.float32))
    points = coordinates(rows, distance)
    assert len(points[0]) == 4
    assert distances(points, points, distance) == pytest.approx(
        distances(rows, rows, distance), abs=1e-9
    )


def test_an_empty_cluster_gets_the_farthest_row_that_is_not_alone() -> None:
    labels, apart = np.array([0, 0, 1, 0]), np.array([1.0, 2.0, 99.0, 0.5])
    assert refill(labels, apart, 3).tolist() == [0, 2, 1, 0]
    assert refill(labels, apart, 4).tolist() == [3, 2, 1, 0]
    assert refill(np.array([0]), np.array([1.0]), 2).tolist() == [0]


def test_a_sketch_keeps_distances_and_may_be_made_row_by_row() -> None:
    rows = list(generator(6, "rows").normal(0, 1, (3, 1500)).astype(np.float32))
    together = sketch(rows, 2048, seed=1)
    assert together[1] == pytest.approx(sketch(rows[1:2], 2048, seed=1)[0], rel=1e-5)
    assert euclidean(list(together)) == pytest.approx(euclidean(rows), rel=0.1)
    assert not np.allclose(together, sketch(rows, 2048, seed=2))


def test_distances_of_near_identical_rows_do_not_cancel() -> None:
    a = np.full(1000, 1000.0, np.float32)
    b = a.copy()
    b[0] = np.nextafter(b[0], np.float32(2000))
    assert euclidean([a, b])[0, 1] == pytest.approx(float(b[0]) - 1000.0, rel=1e-12)


def brute(matrix: Any, linkage: str, stop: Any) -> list[list[int]]:
    """Merge the two nearest clusters until `stop(height, clusters)`; clusters by first member."""
    clusters = [[i] for i in range(len(matrix))]
    measure: Any = {"single": np.min, "complete": np.max, "average": np.mean}[linkage]
    while len(clusters) > 1:
        pairs = [
            (measure(matrix[np.ix_(a, b)]), a, b) for a, b in itertools.combinations(clusters, 2)
        ]
        height, a, b = min(pairs, key=lambda pair: pair[0])
        if stop(height, clusters):
            break
        clusters = sorted([*(c for c in clusters if c not in (a, b)), sorted(a + b)])
    return clusters


def as_lists(labels: Any) -> list[list[int]]:
    return [np.flatnonzero(labels == k).tolist() for k in range(labels.max() + 1)]


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.sampled_from(["single", "complete", "average"]))
def test_agglomeration_agrees_with_merging_by_hand(seed: int, count: int, linkage: Any) -> None:
    matrix = euclidean(list(generator(seed, "rows").normal(0, 1, (count, 3)).astype(np.float32)))
    threshold = float(np.median(matrix[np.triu_indices(count, 1)]))
    by_height = agglomerative(matrix, linkage, threshold=threshold)
    assert as_lists(by_height.labels) == brute(
        matrix, linkage, lambda height, _: height > threshold
    )
    by_count = agglomerative(matrix, linkage, n_clusters=2)
    assert as_lists(by_count.labels) == brute(
        matrix, linkage, lambda _, clusters: len(clusters) == 2
    )


@pytest.mark.parametrize("linkage", get_args(Linkage))
def test_every_linkage_finds_far_groups_and_names_the_threshold_that_does(linkage: Any) -> None:
    matrix = euclidean(groups([[9, 0], [0, 9], [-9, -9]], each=3))
    cut = agglomerative(matrix, linkage, n_clusters=3)
    assert cut.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert cut.low is not None
    assert cut.high is not None
    for threshold in (cut.low, (cut.low + cut.high) / 2):
        assert agglomerative(matrix, linkage, threshold=threshold).clusters == 3
    assert agglomerative(matrix, linkage, threshold=cut.high).clusters == 2
    assert (
        agglomerative(matrix, linkage).labels.tolist() == cut.labels.tolist()
    )  # the gap is the largest


def test_weighted_linkage_is_the_plain_mean_of_the_two_parts() -> None:
    # a and b merge at 1, c joins them at 2; d is 10 from a and b, 4 from c: (10 + 4) / 2, not (10 + 10 + 4) / 3
    matrix = np.array([[0, 1, 2, 10], [1, 0, 2, 10], [2, 2, 0, 4], [10, 10, 4, 0]], float)
    assert agglomerative(matrix, "weighted", n_clusters=1).heights == pytest.approx((1, 2, 7))
    assert agglomerative(matrix, "average", n_clusters=1).heights == pytest.approx((1, 2, 8))


def test_path_weights_make_a_weighted_mean_of_what_weighted_linkage_measures() -> None:
    matrix = np.array([[0, 1, 2, 10], [1, 0, 2, 10], [2, 2, 0, 4], [10, 10, 4, 0]], float)
    cut = agglomerative(matrix, "weighted", n_clusters=2)
    assert cut.labels.tolist() == [0, 0, 0, 1]
    assert cut.weights.tolist() == [0.25, 0.25, 0.5, 1.0]
    assert matrix[3, :3] @ cut.weights[:3] == cut.heights[-1] == 7


def test_a_threshold_below_zero_leaves_each_agent_alone_and_a_huge_one_joins_all() -> None:
    twins = np.zeros((3, 3))
    assert agglomerative(twins, threshold=-1.0).labels.tolist() == [0, 1, 2]
    assert agglomerative(twins, threshold=0.0).labels.tolist() == [0, 0, 0]
    assert agglomerative(euclidean(groups([[0, 0], [9, 9]], 2)), threshold=1e300).clusters == 1
    assert agglomerative(np.zeros((1, 1)), n_clusters=3).labels.tolist() == [0]


def test_a_given_number_of_clusters_is_found_even_among_ties() -> None:
    square = euclidean([np.array(p, np.float32) for p in ([0, 0], [0, 1], [1, 0], [1, 1])])
    assert [agglomerative(square, "single", n_clusters=k).clusters for k in (1, 2, 3, 4)] == [
        1,
        2,
        3,
        4,
    ]


def test_the_largest_gap_is_relative_and_ties_make_the_fewest_merges() -> None:
    assert largest_gap(np.array([1.0, 1.1, 10.0, 60.0])) == 2
    assert largest_gap(np.array([1.0, 2.0, 4.0])) == 1
    assert largest_gap(np.array([0.0, 0.0, 5.0])) == 2
    assert largest_gap(np.array([0.0, 0.0])) == 2
    assert largest_gap(np.array([3.0])) == 1


@pytest.mark.parametrize(
    "matrix",
    [np.ones((2, 2)), np.array([[0.0, 1], [2, 0]]), np.full((2, 2), np.nan), np.zeros((2, 3))],
)
def test_clustering_refuses_a_matrix_that_holds_no_distances(matrix: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        agglomerative(matrix)


@given(st.integers(2, 8), st.integers(0, 10_000), st.booleans())
@settings(max_examples=examples(13), deadline=None)
def test_the_bipartition_has_the_least_similarity_across_of_all(
    count: int, seed: int, ties: bool
) -> None:
    half = generator(seed, "similar").uniform(-1, 1, (count, count))
    similarity = np.round(half + half.T, 0 if ties else 9)
    splits = (
        np.array((0, *rest)) for rest in itertools.product(range(2), repeat=count - 1) if any(rest)
    )
    best = min(across(similarity, labels) for labels in splits)
    labels, cross = bipartition_min_cross(similarity)
    assert cross == best == across(similarity, labels)
    assert labels[0] == 0
    assert set(labels.tolist()) == {0, 1}


def test_the_bipartition_breaks_ties_by_index() -> None:
    assert bipartition_min_cross(np.ones((4, 4)))[0].tolist() == [0, 0, 0, 1]
    with pytest.raises(ValueError, match="1 rows cannot be split"):
        bipartition_min_cross(np.ones((1, 1)))


def test_inner_products_are_taken_around_the_origin_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "TILE", 7)
    rows = list(generator(8, "rows").normal(0, 1, (3, 11)).astype(np.float32))
    origin = rows[2] * 2
    moved = np.array(rows, np.float64) - origin
    assert gram(rows, origin) == pytest.approx(moved @ moved.T)
    assert gram(rows) == pytest.approx(np.array(rows) @ np.array(rows).T, abs=1e-5)


def principal_angles(u: npt.NDArray[Any], v: npt.NDArray[Any]) -> Matrix:
    """The angles between the spans of the columns of two matrices, in degrees, ascending.

    Args:
        u: columns (d, p).
        v: columns (d, q).
    """
    cosines = np.linalg.svd(orthonormal(u).T @ orthonormal(v), compute_uv=False)
    clipped = np.clip(cosines, -1.0, 1.0)  # rounding can exceed 1
    angles: Matrix = np.degrees(np.arccos(clipped))
    return angles


def test_principal_angles_are_those_of_the_subspaces() -> None:
    from scipy.linalg import subspace_angles

    u, v = generator(9, "spaces").normal(0, 1, (2, 12, 3))
    expected = np.degrees(np.sort(subspace_angles(u, v)))
    assert principal_angles(u, v) == pytest.approx(expected, abs=1e-6)
    mixed = u @ np.array([[1.0, 2, 0], [0, 1, 1], [3, 0, 1]])
    assert principal_angles(mixed, v) == pytest.approx(
        expected, abs=1e-6
    )  # another basis, the same space


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_least_principal_angle_is_the_least_between_any_two_directions(seed: int) -> None:
    u, v = generator(seed, "planes").normal(0, 1, (2, 3, 1))
    plane = np.concatenate([u, generator(seed, "more").normal(0, 1, (3, 1))], axis=1)
    turns = np.radians(np.linspace(0, 180, 721))
    directions = orthonormal(plane) @ np.stack([np.cos(turns), np.sin(turns)])
    cosines = np.abs(directions.T @ v[:, 0]) / np.linalg.norm(v)
    assert principal_angles(plane, v)[0] == pytest.approx(
        np.degrees(np.arccos(cosines.max())), abs=0.3
    )


def test_a_dependent_column_spans_nothing_new() -> None:
    u = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    assert orthonormal(u).shape == (3, 1)
    assert principal_angles(u, np.array([[0.0], [1.0], [0.0]]))[0] == pytest.approx(90.0)
