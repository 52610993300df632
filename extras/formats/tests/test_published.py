"""Published data sets: windows come back in the order in which they were recorded."""

from __future__ import annotations

import numpy as np

from covey.extras.formats.published import in_time_order
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
