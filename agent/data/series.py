"""Whether the rows of a table are series of measurements over time, and how long its values stay as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path

import numpy as np
import numpy.typing as npt

from covey.agent.data.bad_cells import BadCells
from covey.agent.data.describe import MAX_SHOWN, ColumnDescription, TableDescription
from covey.agent.data.notation import Cells
from covey.agent.data.table_columns import spelled
from covey.agent.data.table_rows import open_table
from covey.agent.data.times import moment_of
from covey.shared.proposal.description import SeriesFacts

MOSTLY = 0.9  # of the rows of a series have a later time than the row before
LEAST_SERIES = 8  # rows; shorter groups are no series

Codes = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass
class _Rows:
    """The columns that count, in the order of the file."""

    times: list[float] = field(default_factory=list)  # seconds since 1970
    codes: dict[str, list[int]] = field(default_factory=dict)  # values of columns with few of them
    words: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, name: str, cells: Cells) -> None:
        """Append the cells of a column with few values."""
        codes = self.codes.setdefault(name, [])
        words = self.words.setdefault(name, {})
        for cell in cells:
            codes.append(words.setdefault(spelled(cell), len(words)))


def find_series(path: Path, table: TableDescription) -> SeriesFacts | None:
    """The series in a table with a column of times; None if there is no such column, or its rows are in no order.

    Args:
        path: the file.
        table: its description.

    Raises:
        DataError: the file cannot be read.
    """
    time = _time_column(table)
    if time is None:
        return None
    rows = _read(path, time, table)
    times = np.array(rows.times)
    codes: dict[str, Codes] = {}
    for name, listed in rows.codes.items():
        codes[name] = np.array(listed, np.int64)
    whole = np.zeros(len(times), np.int64)
    is_one = _rises(times, whole)
    groups: list[str] = []
    if not is_one:
        groups = [name for name, own in codes.items() if _rises(times, own)]
    if not is_one and not groups:
        return None
    runs: dict[str, float] = {}
    for name, own in codes.items():
        others = [group for group in groups if group != name]
        series = codes[others[0]] if others else whole
        runs[name] = _mean_run(own, series)
    first = whole if is_one else codes[groups[0]]
    return SeriesFacts(
        time=time,
        groups=tuple(groups),
        shortest=int(np.bincount(first).min()),
        span_s=float(np.ptp(times)),
        runs=runs,
    )


def _time_column(table: TableDescription) -> str | None:
    """The first complete column of times."""
    for column in table.columns:
        if column.kind == "time" and not column.missing:
            return column.name
    return None


def _has_few_values(column: ColumnDescription) -> bool:
    is_name = column.kind in ("word", "whole") and not column.missing
    return is_name and 1 < column.distinct <= MAX_SHOWN


def _read(path: Path, time: str, table: TableDescription) -> _Rows:
    """The times and the columns with few values, row by row."""
    rows = _Rows()
    few = [column.name for column in table.columns if _has_few_values(column)]
    with open_table(path, least=1, notation=table.notation) as file:
        for block in file.blocks([time, *few], BadCells(path)):
            for cell in block.cells[time]:
                rows.times.append(_seconds(cell))
            for name in few:
                rows.add(name, block.cells[name])
    return rows


def _seconds(cell: object) -> float:
    """A point in time in seconds since 1970, by the clock as written if it has no zone."""
    moment = moment_of(cell)
    if moment is None:
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def _rises(times: Float64, series: Codes) -> bool:
    """Whether the times of each series rise from row to row, and none is short."""
    if np.bincount(series).min() < LEAST_SERIES:
        return False
    order = np.argsort(series, kind="stable")
    steps = np.diff(times[order])
    inside = np.diff(series[order]) == 0
    own = steps[inside]
    return bool((own >= 0).all() and (own > 0).mean() >= MOSTLY)


def _mean_run(codes: Codes, series: Codes) -> float:
    """How many rows of a series a value stays on average."""
    order = np.argsort(series, kind="stable")
    changes = (np.diff(codes[order]) != 0) | (np.diff(series[order]) != 0)
    return len(codes) / (1 + int(changes.sum()))
