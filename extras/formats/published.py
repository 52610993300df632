"""Published data sets whose arrays are no samples in order yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from covey.agent.data.arrays import from_arrays, read_npz
from covey.agent.data.dataset import Array, Dataset, Indices, take, windows_in

WINDOW_AXES = 3  # samples, readings and channels


def har(path: Path) -> Dataset:
    """UCI HAR: windows of 9 channels and 128 readings, (9, 128).

    The groups are the 30 people. Within each recording the windows are in time order.
    """
    arrays = read_npz(path)
    order = in_time_order(arrays["x"])
    in_order: dict[str, Array] = dict(arrays)
    for name in ("x", "y", "subject"):
        in_order[name] = arrays[name][order]
    in_order["x"] = in_order["x"].transpose(0, 2, 1)  # channels first
    return replace(from_arrays(in_order, str(path)), overlap=1)


def in_recordings(data: Dataset) -> Dataset:
    """Windows of a sensor in the order of their recordings, if they were shuffled and overlap by half; other data as it is.

    Windows in the order of time are found by the agent itself. The second half of one is elsewhere the first half of another.
    """
    if data.features.ndim != WINDOW_AXES or data.groups is not None or windows_in(data)[1]:
        return data
    for windows in (data.features, data.features.swapaxes(1, 2)):
        found = take(data, in_time_order(windows))
        if windows_in(found)[1]:
            return found
    return data


def in_time_order(windows: Array) -> Indices:
    """The order (n,) that restores recordings from shuffled windows.

    Consecutive windows of a recording overlap by half: the second half of a window equals the first half of the next,
    bit for bit. Recordings are ordered by the row of their first window.

    Args:
        windows: (n, length, channels), in any order.
    """
    half = windows.shape[1] // 2
    row_of_first_half: dict[bytes, int] = {}
    for row, window in enumerate(windows):
        row_of_first_half[window[:half].tobytes()] = row
    successors = [row_of_first_half.get(window[half:].tobytes()) for window in windows]
    rows = range(len(windows))
    has_predecessor: set[int] = set()
    for row, successor in enumerate(successors):
        if successor is not None and successor != row:
            has_predecessor.add(successor)
    heads = [row for row in rows if row not in has_predecessor]
    order: dict[int, None] = {}  # an ordered set
    for start in [*heads, *rows]:  # all rows: windows of a closed loop have no head
        row_or_end: int | None = start
        while row_or_end is not None and row_or_end not in order:
            order[row_or_end] = None
            row_or_end = successors[row_or_end]
    return np.fromiter(order, np.int64, len(windows))


def mnist_writer(path: Path) -> Dataset:
    """MNIST (1, 28, 28) with its writers as groups. The populations are hsf0 (census staff) and hsf4 (students)."""
    arrays = read_npz(path)
    images = dict(arrays)
    for name in ("x_train", "x_test"):
        images[name] = arrays[name][:, None]  # one channel
    population_names = np.array([f"hsf{hsf}" for hsf in range(10)])
    images["populations"] = population_names[arrays["hsf_train"]]
    return from_arrays(images, str(path))
