"""Samples that belong together: copies, groups, stretches of time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.agent.data.dataset import (
    Dataset,
    RawColumns,
    hold_back,
    splits,
    ties_of,
    units_of,
    with_test,
)
from covey.shared.numerics.units import JUDGING, RECORDINGS, Ties, kinds_of, series_in

# -- the ties of samples -----------------------------------------------------------------------------------------------


def test_equal_samples_are_of_one_kind_whatever_their_zeros_and_missing_cells() -> None:
    rows = np.array([[1, 0], [np.nan, 2], [1, -0.0], [-np.nan, 2], [1, 1e-30]], np.float32)
    assert kinds_of(rows).tolist() == [0, 1, 0, 1, 2]
    assert kinds_of(rows[:0]).tolist() == []


def test_a_copy_is_of_the_unit_of_the_sample_that_it_copies() -> None:
    rows = np.array([[1], [2], [3], [1]])
    assert Ties.of(rows).units(rows).tolist() == [0, 1, 2, 0]
    groups = np.array(["a", "a", "b", "b"])
    assert Ties.of(rows, groups).units(rows).tolist() == [0, 0, 1, 0]
    log = np.tile(np.arange(40), 2)[:, None]
    units = Ties.of(log, overlap=1).units(np.zeros(80))
    assert units[:40].tolist() == units[40:].tolist()


def test_stretches_follow_the_order_of_time_and_not_of_the_file() -> None:
    moments = np.arange(40)[::-1].astype(float)
    units = Ties.of(np.arange(40)[:, None], moments=moments).units(np.arange(40))
    assert units.tolist() == [7 - row // 5 for row in range(40)]


# -- nothing that knows a sample judges it -----------------------------------------------------------------------------


@st.composite
def data_sets(draw: Any) -> Dataset:
    """Samples of which many are copies, in groups, in the order of time, as windows, or without either."""
    n = draw(st.integers(1, 120))
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    origin = rng.integers(0, max(1, n * draw(st.integers(1, 10)) // 5), n)
    numbers = rng.standard_normal((origin.max() + 1, 2)).astype(np.float32)
    targets = draw(st.sampled_from([origin % 3, (origin % 7).astype(np.float32) / 2]))
    groups = rng.integers(0, draw(st.integers(1, 40)), n) if draw(st.booleans()) else None
    time = draw(st.sampled_from(["none", "moments", "windows"]))
    return Dataset(
        numbers[origin],
        targets.astype(np.int64) if targets.dtype.kind == "i" else targets,
        numbers[:0],
        targets[:0],
        groups=groups,
        columns=RawColumns(moments=rng.random(n)) if time == "moments" else None,
        overlap=draw(st.integers(0, 4)) if time == "windows" else None,
    )


def kinds_in(features: Any) -> set[bytes]:
    return {row.tobytes() for row in features}


@given(data_sets())
def test_no_copy_is_on_both_sides(data: Dataset) -> None:
    units = units_of(data)
    one, other = units % 3 == 0, units % 3 != 0
    assert kinds_in(data.features[one]).isdisjoint(kinds_in(data.features[other]))
    train, held = hold_back(data, 1, "a")
    if held is not None:
        assert kinds_in(train.features).isdisjoint(kinds_in(held.features))
        assert len(np.unique(units_of(held))) > 1, "the errors of one unit have no variance"
    for first, second in splits(data, 1, "a"):
        assert kinds_in(data.features[first]).isdisjoint(kinds_in(data.features[second]))


@given(data_sets())
def test_no_group_and_no_row_of_a_window_is_on_both_sides(data: Dataset) -> None:
    ties = ties_of(data)
    kinds = ties.kinds
    for train, judges in splits(data, 1, "a"):
        if ties.places is None and ties.groups.any():
            once = np.bincount(kinds)[kinds] == 1  # a copy may be of another group
            both = np.intersect1d(
                ties.groups[train[once[train]]], ties.groups[judges[once[judges]]]
            )
            assert not len(both)
        for group in np.unique(ties.groups):
            series = np.flatnonzero(ties.groups == group)
            place = {row: at for at, row in enumerate(series)}
            if data.overlap:
                here = [place[row] for row in train if row in place]
                there = [place[row] for row in judges if row in place]
                assert all(abs(a - b) > data.overlap for a in here for b in there)


@given(data_sets())
def test_each_sample_judges_in_one_fold(data: Dataset) -> None:
    found = [judges for _, judges in splits(data, 1, "a")]
    if len(found) == 3:
        assert sorted(np.concatenate(found).tolist()) == list(range(len(data.targets)))
    assert not found or len(np.unique(ties_of(data).units(data.targets, JUDGING))) >= 3


# -- windows whose file names no series ------------------------------------------------------------------------------

LENGTH = 16


def windows(recordings: int, step: int, channels: int = 3, each: int = 9) -> Any:
    """(recordings * each, channels, LENGTH) of readings that are all different."""
    readings = np.random.default_rng(7).permutation(recordings * channels * LENGTH * each)
    readings = readings.reshape(recordings, channels, LENGTH * each)
    starts = range(0, step * each, step)
    cut = [own[:, start : start + LENGTH] for own in readings for start in starts]
    return np.stack(cut).astype(np.float32)


def of_windows(features: Any) -> Dataset:
    targets = np.arange(len(features)) % 3
    return Dataset(features, targets, features[:0], targets[:0])


def readings_in(features: Any) -> set[float]:
    return set(np.unique(features).tolist())


WAYS = {
    "channels first": lambda own: own,
    "channels last": lambda own: own.swapaxes(1, 2),
    "one channel": lambda own: own[:, 0],
    "the newest first": lambda own: own[:, 0, ::-1],
    "in a row": lambda own: own.swapaxes(1, 2).reshape(len(own), -1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [1, 4, 8])
@pytest.mark.parametrize("recordings", [1, 3, RECORDINGS + 5])
def test_no_reading_of_an_overlapping_window_is_on_both_sides(
    recordings: int, step: int, way: str
) -> None:
    data = of_windows(WAYS[way](windows(recordings, step, each=200 if recordings < 9 else 9)))
    series, overlap = series_in(data.features)
    assert len(np.unique(series)) == recordings
    assert overlap == -(-LENGTH // step) - 1
    sides = [(data.features[one], data.features[other]) for one, other in splits(data, 1, "a")]
    assert len(sides) == 3
    train, held = hold_back(data, 1, "a")
    if held is not None:
        sides.append((train.features, held.features))
    tested = with_test(data)
    sides.append((tested.features, tested.test_features))
    for one, other in sides:
        assert len(one)
        assert len(other)
        assert readings_in(one).isdisjoint(readings_in(other))


def test_of_many_recordings_each_is_a_unit_and_few_are_divided_in_time() -> None:
    many = of_windows(windows(RECORDINGS, 8))
    assert units_of(many).tolist() == np.repeat(np.arange(RECORDINGS), 9).tolist()
    assert len(np.unique(units_of(of_windows(windows(RECORDINGS - 1, 8))))) > RECORDINGS


def test_samples_without_common_readings_have_no_series() -> None:
    rng = np.random.default_rng(3)
    noise = rng.standard_normal((200, 3, LENGTH)).astype(np.float32)
    rare = (rng.random((200, 40)) < 0.02).astype(np.float32)
    patterned = np.tile(np.array([[1, 0, 0, 1, 0, 0]], np.float32), (200, 1))
    counted = np.sort(rng.integers(0, 5, (200, 6)), axis=1).astype(np.float32)
    intervals = np.stack([np.arange(200.0), np.arange(200.0) + 1], axis=1)  # from, to
    apart = windows(3, LENGTH)
    dull = np.repeat(np.arange(200, dtype=np.float32), 3 * LENGTH).reshape(200, 3, LENGTH) // 9
    images = rng.random((200, 1, 8, 8)).astype(np.float32)
    for samples in (
        noise,
        rare,
        patterned,
        counted,
        intervals,
        apart,
        dull,
        images,
        noise[:1],
        noise[:0],
    ):
        assert series_in(samples)[1] == 0
        assert not series_in(samples)[0].any()


def test_a_group_or_a_time_that_the_file_names_comes_before_what_is_found() -> None:
    samples = windows(2, 8)
    named = Ties.of(samples, groups=np.arange(18) // 6)
    assert named.groups.tolist() == (np.arange(18) // 6).tolist()
    assert named.places is None
    assert Ties.of(samples, moments=np.arange(18)).overlap == 0
    assert Ties.of(samples, overlap=3).overlap == 3


def test_a_series_of_few_stretches_has_folds() -> None:
    features = np.arange(104, dtype=np.float32)[:, None]
    series = Dataset(features, features[:, 0], features[:0], features[:0, 0], overlap=9)
    assert len(np.unique(units_of(series, JUDGING))) == 6
    assert len(splits(series, 1, "a")) == 3


def test_a_common_sample_stays_in_training() -> None:
    features = np.concatenate([np.zeros((60, 1)), np.arange(1, 61)[:, None]]).astype(np.float32)
    data = Dataset(features, np.zeros(120, np.int64), features[:0], np.zeros(0, np.int64))
    for seed in range(60):
        train, held = hold_back(data, seed, "a")
        assert held is not None
        assert np.count_nonzero(train.features == 0) == 60
        assert len(held.targets) == 6
