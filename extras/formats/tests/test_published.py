"""Published data sets: windows come back in the order in which they were recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.agent.data.dataset import dataset, with_test
from covey.agent.data.partition import client_dataset, partition
from covey.extras.formats.published import in_recordings, in_time_order
from covey.shared.scenario.partition import ByGroup
from tests.agent.real_data import real


def test_har_windows_of_one_recording_follow_one_another() -> None:
    data = real("har")
    overlap = (data.features[:-1, :, 64:] == data.features[1:, :, :64]).all(axis=(1, 2))
    assert overlap.mean() > 0.9
    assert data.groups is not None
    assert len(np.unique(data.groups)) == 30


def test_windows_come_back_in_time_order_from_any_order() -> None:
    rng = np.random.default_rng(0)
    signals = [rng.integers(0, 1000, (2 * (n + 1), 3)) for n in (5, 1, 8)]
    windows = np.array(
        [signal[2 * i : 2 * i + 4] for signal in signals for i in range(len(signal) // 2 - 1)]
    )
    shuffled = rng.permutation(len(windows))
    order = shuffled[in_time_order(windows[shuffled])]
    assert sorted(order) == list(range(14))
    follows = set(zip(order[:-1].tolist(), order[1:].tolist(), strict=True))
    assert {(i, i + 1) for i in range(13) if i not in (4, 5)} <= follows


def test_equal_windows_in_a_row_do_not_trap_the_order() -> None:
    still = np.zeros((4, 4, 1))
    assert sorted(in_time_order(still).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "train", "test"),
    [("mnist-writer", (1, 28, 28), "uint8", 60000, 10000), ("har", (9, 128), "int16", 10299, 0)],
)
def test_a_published_set_keeps_its_small_type(
    name: str, shape: tuple[int, ...], dtype: str, train: int, test: int
) -> None:
    data = real(name)
    assert (data.shape, data.features.dtype.name) == (shape, dtype)
    assert (len(data.targets), len(data.test_targets)) == (train, test)


def test_two_hundred_writers_of_two_populations() -> None:
    data = real("mnist-writer")
    cfg = ByGroup(min_samples=100, populations={"hsf0": 100, "hsf4": 100})
    split = partition(
        cfg,
        data.targets,
        200,
        np.random.default_rng(0),
        groups=data.groups,
        populations=data.populations,
        test_targets=data.test_targets,
        test_groups=data.test_groups,
    )
    assert split.test_of == "train"
    assert split.truth is not None
    assert split.truth.tolist() == [0] * 100 + [1] * 100
    sizes = np.diff(split.train_ptr) + np.diff(split.test_ptr)
    assert sizes.min() >= 100
    assert not set(split.train_idx) & set(split.test_idx)


def test_thirty_people_keep_every_activity_in_both_parts_and_share_no_half_of_a_window() -> None:
    data = real("har")
    split = partition(
        ByGroup(split="time"),
        data.targets,
        30,
        np.random.default_rng(0),
        groups=data.groups,
        overlap=data.overlap,
    )
    for agent in range(30):
        own = client_dataset(data, split, agent)
        assert set(own.targets.tolist()) == set(own.test_targets.tolist()) == set(range(6))
        assert not halves(own.features) & halves(own.test_features)


def halves(windows: npt.NDArray[Any]) -> set[bytes]:
    """The halves of all windows (n, channels, rows)."""
    return {half.tobytes() for window in windows for half in np.split(window, 2, axis=1)}


def test_shuffled_windows_around_an_unusual_one_do_not_train() -> None:
    """They have half of its readings, wherever they are in the file."""
    rng = np.random.default_rng(0)
    signals = [rng.normal(size=(16 * 17, 2)) for _ in range(4)]
    windows = np.array([one[16 * i : 16 * i + 32] for one in signals for i in range(16)])
    unusual = np.zeros(64, np.int64)
    unusual[[5, 40]] = 1
    order = rng.permutation(64)
    shown = windows[order].swapaxes(1, 2)
    data = dataset(shown, unusual[order], source="x")
    found = with_test(replace(data, targets=data.targets > 0))
    assert found.test_targets.sum() == 2
    assert not halves(found.features) & halves(found.test_features[found.test_targets > 0])


@pytest.mark.parametrize("channels_first", [True, False])
def test_shuffled_windows_that_overlap_are_tested_behind_a_gap(*, channels_first: bool) -> None:
    """At random, half of the readings of a test window would be in windows that the model knows."""
    rng = np.random.default_rng(0)
    signals = [rng.normal(size=(16 * 17, 2)) for _ in range(4)]
    windows = np.array([one[16 * i : 16 * i + 32] for one in signals for i in range(16)])
    windows = rng.permutation(windows)
    shown = windows.swapaxes(1, 2) if channels_first else windows
    found = with_test(dataset(shown, np.arange(64) % 2, source="x"))
    axis = 2 if channels_first else 1
    known = {half.tobytes() for half in np.concatenate(np.split(found.features, 2, axis))}
    assert len(found.test_targets) == 12
    assert not any(
        half.tobytes() in known for half in np.concatenate(np.split(found.test_features, 2, axis))
    )


def test_other_samples_keep_their_order() -> None:
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8)).astype(np.uint8)
    data = dataset(images, np.arange(40) % 2, source="x")
    assert in_recordings(data) is data
