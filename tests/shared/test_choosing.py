"""How many clusters the data say there are: planted clusters, clouds without any, outliers."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from covey.shared.numerics.choose_k import (
    MAX_ROWS,
    ChosenK,
    best_silhouette,
    by_rotations,
    by_silhouette,
    dimensions,
)
from covey.shared.numerics.clustering import Labels, Linkage, Matrix, agglomerative, euclidean


def planted(
    sizes: list[int], noise: float, size: int = 850, outliers: int = 0, seed: int = 0
) -> tuple[Matrix, Labels]:
    """Points around centres of standard deviation 1, outliers around centres of their own; the truth."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes) + outliers), [*sizes, *[1] * outliers])
    points: Matrix = rng.standard_normal((len(sizes) + outliers, size))[truth]
    return points + noise * rng.standard_normal(points.shape), truth


def matrix_of(points: Matrix) -> Matrix:
    return euclidean(list(points))


# -- silhouettes against chance -----------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize("sizes", [[10] * 2, [20, 4], [30, 10, 5, 3], [6] * 8], ids=str)
def test_planted_clusters_are_found_balanced_or_not(sizes: list[int], noise: float) -> None:
    points, truth = planted(sizes, noise)
    choice = by_silhouette(matrix_of(points))
    assert choice.clusters == len(sizes)
    assert choice.score > choice.chance
    assert np.array_equal(
        agglomerative(matrix_of(points), n_clusters=choice.clusters).labels, truth
    )


@pytest.mark.parametrize("size", [1, 850])
def test_a_test_at_5_percent_rarely_splits_a_cloud_without_clusters(size: int) -> None:
    rng = np.random.default_rng(size)
    found = [by_silhouette(matrix_of(rng.standard_normal((24, size)))).clusters for _ in range(4)]
    assert found.count(1) >= 3  # 1 in 70 where each misses with 5 %


def test_a_longish_cloud_is_one_cluster() -> None:
    lengths = np.linspace(3, 0.1, 60)
    points = np.random.default_rng(3).standard_normal((40, 60)) * lengths
    assert by_silhouette(matrix_of(points)).clusters == 1


def test_outliers_are_clusters_of_their_own_and_split_or_join_no_other() -> None:
    points, truth = planted([20, 15, 10], noise=1.0, outliers=5)
    choice = by_silhouette(matrix_of(points))
    assert choice.clusters == 3 + 5
    assert np.array_equal(agglomerative(matrix_of(points), n_clusters=8).labels, truth)


def test_outliers_around_one_cluster_leave_it_whole() -> None:
    points, truth = planted([30], noise=1.0, outliers=3)
    choice = by_silhouette(matrix_of(points))
    assert np.array_equal(
        agglomerative(matrix_of(points), n_clusters=choice.clusters).labels, truth
    )


@pytest.mark.parametrize("linkage", get_args(Linkage))
def test_every_linkage_finds_what_lies_well_apart(linkage: Linkage) -> None:
    points, _ = planted([8, 8, 8], noise=0.5)
    assert by_silhouette(matrix_of(points), linkage).clusters == 3


def test_the_best_silhouette_is_sklearns_where_no_agent_stands_alone() -> None:
    points, truth = planted([9, 6, 5], noise=1.0)
    expected = silhouette_score(matrix_of(points), truth, metric="precomputed")
    assert by_silhouette(matrix_of(points)).score == pytest.approx(expected)


def test_the_answer_depends_on_the_matrix_alone_and_not_on_its_order_or_unit() -> None:
    points, _ = planted([12, 8, 5], noise=1.5)
    matrix = matrix_of(points)
    order = np.random.default_rng(1).permutation(len(matrix))
    first = by_silhouette(matrix)
    assert by_silhouette(matrix) == first
    for other in (by_silhouette(matrix[np.ix_(order, order)]), by_silhouette(1e-6 * matrix)):
        assert other.clusters == first.clusters
        assert other.score == pytest.approx(first.score)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_than_four_rows_are_one_cluster(count: int) -> None:
    assert by_silhouette(matrix_of(np.arange(count, dtype=float)[:, None] ** 9)).clusters == 1


def test_equal_rows_are_one_cluster_and_equal_rows_at_two_places_are_two() -> None:
    assert by_silhouette(np.zeros((6, 6))) == ChosenK(1, 0.0, 0.0)
    assert by_silhouette(matrix_of(np.repeat([[0.0], [5.0]], 6, axis=0))).clusters == 2


def test_never_more_clusters_than_asked_for() -> None:
    points, _ = planted([5] * 6, noise=0.5)
    assert by_silhouette(matrix_of(points), most=4).clusters <= 4


@pytest.mark.parametrize("size", [1, 5, 50, 850])
def test_dimensions_are_those_of_a_round_cloud(size: int) -> None:
    points, _ = planted([160], noise=0.3, size=size)
    assert dimensions(matrix_of(points)) == pytest.approx(size, rel=0.2)


def test_dimensions_of_a_longish_cloud_are_its_participation_ratio() -> None:
    variances = np.linspace(9, 0.01, 60)
    points = np.random.default_rng(3).standard_normal((160, 60)) * np.sqrt(variances)
    ratio = variances.sum() ** 2 / (variances**2).sum()
    assert dimensions(matrix_of(points)) == pytest.approx(ratio, rel=0.2)


# -- the gap statistic against rotations --------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "noise"), [([10] * 2, 2.0), ([20, 4], 0.5), ([30, 10, 5, 3], 2.0), ([6] * 8, 0.5)]
)
def test_rotations_find_planted_clusters_balanced_or_not(sizes: list[int], noise: float) -> None:
    points, truth = planted(sizes, noise)
    choice = by_rotations(matrix_of(points))
    assert choice.clusters == len(sizes)
    assert choice.score > choice.chance
    assert np.array_equal(
        agglomerative(matrix_of(points), "ward", n_clusters=choice.clusters).labels, truth
    )


def test_rotations_find_two_groups_that_silhouettes_and_the_gap_miss() -> None:
    points, truth = planted([12, 12], noise=4.0)
    matrix = matrix_of(points)
    assert by_silhouette(matrix).clusters == 1
    assert agglomerative(matrix).clusters > 12
    assert by_rotations(matrix).clusters == 2
    assert np.array_equal(agglomerative(matrix, "ward", n_clusters=2).labels, truth)


@pytest.mark.parametrize("size", [1, 850])
def test_a_test_at_5_percent_by_rotations_rarely_splits_a_cloud(size: int) -> None:
    rng = np.random.default_rng(size)
    found = [by_rotations(matrix_of(rng.standard_normal((18, size)))).clusters for _ in range(4)]
    assert found.count(1) >= 3  # 1 in 70 where each misses with 5 %


def test_rotations_keep_a_longish_cloud_together() -> None:
    lengths = np.linspace(3, 0.1, 60) ** 3
    points = np.random.default_rng(3).standard_normal((40, 60)) * lengths
    assert by_rotations(matrix_of(points)).clusters == 1


def test_rotations_put_outliers_together_and_leave_the_clusters_whole() -> None:
    points, truth = planted([20, 15, 10], noise=1.0, outliers=5)
    choice = by_rotations(matrix_of(points))
    labels = agglomerative(matrix_of(points), "ward", n_clusters=choice.clusters).labels
    assert np.array_equal(labels[:45], truth[:45])
    assert choice.clusters in (3, 4)  # with one of the clusters, or by themselves


@pytest.mark.parametrize("linkage", get_args(Linkage))
def test_rotations_find_what_lies_well_apart_with_every_linkage(linkage: Linkage) -> None:
    points, _ = planted([8, 8, 8], noise=0.5)
    assert by_rotations(matrix_of(points), linkage).clusters == 3


def test_rotations_depend_on_the_matrix_alone_and_not_on_its_order_or_unit() -> None:
    points, _ = planted([12, 8, 5], noise=1.5)
    matrix = matrix_of(points)
    order = np.random.default_rng(1).permutation(len(matrix))
    first = by_rotations(matrix)
    assert by_rotations(matrix) == first
    for other in (by_rotations(matrix[np.ix_(order, order)]), by_rotations(1e-6 * matrix)):
        assert other.clusters == first.clusters
        assert other.score == pytest.approx(first.score)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rotations_leave_fewer_than_four_rows_together(count: int) -> None:
    assert by_rotations(matrix_of(np.arange(count, dtype=float)[:, None] ** 9)).clusters == 1


def test_rotations_leave_equal_rows_together_and_part_equal_rows_at_two_places() -> None:
    assert by_rotations(np.zeros((6, 6))) == ChosenK(1, 0.0, 0.0)
    assert by_rotations(matrix_of(np.repeat([[0.0], [5.0]], 6, axis=0))).clusters == 2


def test_rotations_never_make_more_clusters_than_a_third_of_the_rows_or_than_asked_for() -> None:
    points, _ = planted([2] * 6, noise=0.1)
    assert by_rotations(matrix_of(points)).clusters <= 4
    points, _ = planted([5] * 6, noise=0.5)
    assert by_rotations(matrix_of(points), most=4).clusters <= 4


def test_rotations_look_at_a_sample_of_a_large_fleet() -> None:
    points, _ = planted([MAX_ROWS, 100, 50], noise=1.0, size=20)
    assert by_rotations(matrix_of(points)).clusters == 3


# -- the best silhouette of rows that are known to differ ---------------------------------------------


@pytest.mark.parametrize("sizes", [[10] * 2, [20, 4], [30, 10, 5, 3], [6] * 8], ids=str)
def test_the_best_silhouette_finds_planted_clusters_where_chance_is_as_good(
    sizes: list[int],
) -> None:
    points, truth = planted(sizes, noise=2.5)
    choice = best_silhouette(matrix_of(points))
    assert choice.clusters == len(sizes)
    labels = agglomerative(matrix_of(points), "complete", n_clusters=choice.clusters).labels
    assert np.array_equal(labels, truth)


def test_the_best_silhouette_is_never_of_one_cluster_where_rows_differ() -> None:
    heads = np.random.default_rng(5).standard_normal((10, 1))
    assert by_silhouette(matrix_of(heads)).clusters == 1
    assert best_silhouette(matrix_of(heads)).clusters > 1
    assert best_silhouette(np.zeros((6, 6))).clusters == 1


def test_the_best_silhouette_of_equals_is_that_of_fewer_clusters() -> None:
    """Two pairs of pairs whose finer cut is as good: all distances within are zero."""
    places = np.array([0.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0])[:, None]
    assert best_silhouette(matrix_of(places)).clusters == 2


def test_the_best_silhouette_has_three_rows_in_a_cluster_on_average() -> None:
    points, _ = planted([2] * 6, noise=0.1)
    assert best_silhouette(matrix_of(points)).clusters <= 4


# -- against rotations: limits ------------------------------------------------------------------------


def test_rotations_split_fleets_without_groups_where_agents_differ_in_noise() -> None:
    """The limit that choosing_k.md names: rows as long as those of agents with log-normal numbers of samples."""
    rng = np.random.default_rng(1)
    lengths = np.exp(-0.25 * rng.standard_normal((10, 20, 1)))
    fleets = rng.standard_normal((10, 20, 650)) * lengths
    found = [by_rotations(matrix_of(points)).clusters for points in fleets]
    assert sum(clusters > 1 for clusters in found) >= 8


def test_rotations_stop_at_a_gap_within_one_deviation_of_the_next() -> None:
    """Tibshirani's rule errs towards few clusters: in five dimensions it joins two of these three."""
    points, _ = planted([10, 10, 10], 0.5, size=5, seed=2)
    assert by_rotations(matrix_of(points)).clusters == 2
