"""Robust means and trimmed K-means against brute force on small sizes."""

import itertools
from typing import Any

import numpy as np
import pytest

from covey.shared.numerics import clustering
from covey.shared.seeds import generator
from covey.shared.strategies.robust import (
    Trim,
    ball,
    dropped,
    geometric_median,
    median,
    robust_mean,
    trimmed_cost,
    trimmed_kmeans,
    trimmed_mean,
)


def rows(count: int, size: int, seed: int = 1) -> list[Any]:
    return list(generator(seed, "rows").normal(0, 1, (count, size)).astype(np.float32))


@pytest.mark.parametrize(
    ("count", "share", "cut"), [(5, 0.2, 1), (4, 0.2, 0), (30, 0.1, 3), (100, 0.29, 29), (9, 0, 0)]
)
def test_a_share_is_rounded_down_to_whole_rows(count: int, share: float, cut: int) -> None:
    assert dropped(count, share) == cut


@pytest.mark.parametrize("tile", [1, 1 << 20])
def test_a_trimmed_mean_sorts_every_coordinate_for_itself(
    tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "TILE", tile)
    some = rows(7, 5)
    expected = [np.mean(sorted(float(row[j]) for row in some)[1:-1]) for j in range(5)]
    assert trimmed_mean(some, 0.2) == pytest.approx(expected)
    assert median(some) == pytest.approx(trimmed_mean(some, 0.49))
    assert trimmed_mean(some, 0.0) == pytest.approx(np.mean(some, axis=0))
    assert robust_mean(some, "median", 0.0) == pytest.approx(np.median(some, axis=0))


def test_a_trim_that_leaves_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="leaves nothing of 4 rows"):
        trimmed_mean(rows(4, 2), 0.5)


def test_the_geometric_median_is_the_best_of_all_points_around() -> None:
    points = np.array(rows(6, 2), np.float64)
    found = geometric_median(points)
    steps = np.linspace(-2, 2, 81)
    least = min(
        np.linalg.norm(points - [x, y], axis=1).sum() for x, y in itertools.product(steps, steps)
    )
    assert np.linalg.norm(points - found, axis=1).sum() <= least + 1e-9


@pytest.mark.parametrize("size", [2, 60])
def test_a_ball_drops_the_rows_farthest_from_the_geometric_median(size: int) -> None:
    some = rows(10, size)
    some[3] = some[3] + np.float32(50)
    assert ball(some, 0.1) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert ball(some, 0.05) == [
        0,
        1,
        2,
        4,
        5,
        6,
        7,
        8,
        9,
    ]  # below the quantile is never the farthest one
    assert len(ball(some, 0.3)) == 7
    assert ball([some[0]] * 4, 0.25) == [0, 1, 2, 3]  # nobody is farther than the others
    assert robust_mean(some, "ball", 0.1) == pytest.approx(
        np.mean([some[i] for i in ball(some, 0.1)], axis=0), abs=1e-6
    )


def by_hand(
    points: Any, labels: Any, trim: Trim, share: float, clusters: int
) -> tuple[bool, float]:
    """Is a partition at rest, and what does it cost?"""
    centres = np.array([robust_mean(points[labels == k], trim, share) for k in range(clusters)])
    table = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    return bool(np.array_equal(table.argmin(axis=1), labels)), trimmed_cost(
        labels, table[np.arange(len(labels)), labels], share
    )


@pytest.mark.parametrize(("trim", "share"), [("mean", 0.3), ("ball", 0.3), ("median", 0.0)])
def test_trimmed_kmeans_finds_the_cheapest_of_all_partitions_at_rest(
    trim: Any, share: float
) -> None:
    points = np.array(rows(8, 2, seed=5), np.float64)
    every = (
        np.array(labels)
        for labels in itertools.product(range(2), repeat=8)
        if len(set(labels)) == 2
    )
    results = [by_hand(points, labels, trim, share, 2) for labels in every]
    best = min(cost for rests, cost in results if rests)
    found = trimmed_kmeans(
        [p.astype(np.float32) for p in points], 2, trim=trim, share=share, n_init=60, seed=0
    )
    assert found.inertia == pytest.approx(best, rel=1e-5)
    assert by_hand(points, found.labels, trim, share, 2)[1] == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("trim", ["mean", "ball", "median"])
@pytest.mark.parametrize("size", [2, 40])
def test_trimmed_kmeans_centres_are_not_moved_by_an_outlier(trim: Any, size: int) -> None:
    draw = generator(2, "rows")
    some = [
        (side * 5 + draw.normal(0, 0.1, size)).astype(np.float32)
        for side in (1, -1)
        for _ in range(6)
    ]
    some.append(np.full(size, 40, np.float32))  # nearer to +5 than to -5
    found = trimmed_kmeans(some, 2, trim=trim, share=0.15, n_init=20, seed=1)
    assert found.labels.tolist() == [0] * 6 + [1] * 6 + [0]
    assert found.centres[0] == pytest.approx(np.full(size, 5), abs=0.3)
    again = trimmed_kmeans(some, 2, trim=trim, share=0.15, n_init=20, seed=1)
    assert [c.tobytes() for c in again.centres] == [c.tobytes() for c in found.centres]


def test_trimmed_kmeans_that_never_trims_is_kmeans() -> None:
    some = rows(9, 30)
    ours = trimmed_kmeans(some, 3, trim="mean", share=0.05, n_init=5, seed=2)
    plain = clustering.kmeans(some, 3, n_init=5, seed=2)
    assert ours.labels.tolist() == plain.labels.tolist()


def test_trimmed_kmeans_wants_as_many_rows_as_clusters() -> None:
    with pytest.raises(ValueError, match="2 rows cannot make 3 groups"):
        trimmed_kmeans(rows(2, 2), 3, trim="median", share=0.0, n_init=1, seed=0)
