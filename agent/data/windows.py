"""Windows over the rows of a table: consecutive rows of one series become one sample (channels, rows). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.scenario.columns import Window

Indices = npt.NDArray[np.int64]
Cells = npt.NDArray[Any]
Array = npt.NDArray[Any]


def window_rows(groups: Sequence[str], count: int, window: Window) -> Indices:
    """The rows of every window and of its targets after it, (windows, window.span).

    Rows of one series stay in the order of the file, also if other series lie between them. Series come in the order of
    their first row. Rows at the end of a series that fill no window are left out.

    Args:
        groups: (count,) the series of each row; empty: all rows are one series.
        count: rows of the table.
        window: length and stride.
    """
    rows_of: dict[str, list[int]] = {}
    for row in range(count):
        group = groups[row] if groups else ""
        rows_of.setdefault(group, []).append(row)
    found: list[Indices] = []
    for rows in rows_of.values():
        series = np.array(rows, np.int64)
        last_start = len(series) - window.span
        for start in range(0, last_start + 1, window.step):
            found.append(series[start : start + window.span])
    if not found:
        return np.empty((0, window.span), np.int64)
    return np.stack(found)


def longest_series(groups: Sequence[str], count: int) -> int:
    """Rows of the longest series."""
    if not groups:
        return count
    rows_of = Counter(groups)
    return max(rows_of.values())


def windows_of(features: Cells, rows: Indices) -> Cells:
    """Features (windows, columns, rows) from the features (n, columns) of all rows."""
    gathered = features[rows]  # (windows, rows, columns)
    channels_first = gathered.swapaxes(1, 2)
    return np.ascontiguousarray(channels_first)


def labels_of(spelled: Sequence[str], rows: Indices, window: Window, width: int = 1) -> list[str]:
    """The label of each window: that of its last row, or the most frequent one. Among equally frequent ones, the latest.

    Of forecasts: the labels of the rows after it, `window.targets` for each window.

    Args:
        spelled: (n * width,) labels of the rows.
        rows: as `window_rows` gives them.
        window: which rows count.
        width: labels of a row; of several the last row counts.
    """
    if width > 1:
        ends = rows[:, -1].tolist()
        return [label for row in ends for label in spelled[width * row : width * (row + 1)]]
    if window.horizon is not None:
        return [spelled[row] for row in rows[:, window.rows :].ravel().tolist()]
    found: list[str] = []
    for own in rows.tolist():
        if window.label == "last":
            found.append(spelled[own[-1]])
            continue
        latest_first = [spelled[row] for row in reversed(own)]
        counts = Counter(
            latest_first
        )  # `most_common` keeps the order of first occurrence among equals
        [(label, _)] = counts.most_common(1)
        found.append(label)
    return found


def earlier_and_latest(groups: Array, overlap: int, share: float) -> tuple[Indices, Indices]:
    """Which windows train and which test: of each series that is long enough, the latest ones test.

    Windows that share rows with a tested one are in neither part. If no series is long enough, the latest of all windows
    test; then nothing may be left to train on.

    Args:
        groups: (n,) the series of each window, in time order within a series.
        overlap: how many windows before a window share rows with it.
        share: of the windows, that test.
    """
    train: list[Indices] = []
    test: list[Indices] = []
    for group in np.unique(groups):
        windows = np.flatnonzero(groups == group)
        held = max(round(share * len(windows)), 1)
        earlier = len(windows) - held - overlap
        if earlier < 1:
            train.append(windows)
            continue
        train.append(windows[:earlier])
        test.append(windows[-held:])
    if test:
        return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
    n = len(groups)
    held = max(round(share * n), 1)
    latest = np.arange(n - held, n)
    return np.flatnonzero(apart_from(latest, groups, overlap)), latest


def apart_from(windows: Indices, groups: Array, overlap: int) -> npt.NDArray[np.bool_]:
    """(n,) True for each window that shares no rows with any of `windows`, and is none of them.

    Args:
        windows: indices of some windows.
        groups: (n,) the series of each window, in time order within a series.
        overlap: how many windows before a window share rows with it.
    """
    n = len(groups)
    apart = np.ones(n, np.bool_)
    for distance in range(-overlap, overlap + 1):
        near = windows + distance
        is_there = (near >= 0) & (near < n)
        near = near[is_there]
        of_same_series = groups[near] == groups[windows[is_there]]
        apart[near[of_same_series]] = False
    return apart
