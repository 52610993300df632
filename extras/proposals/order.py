"""Whether the rows of a table follow one another, as the samples of a sensor do, although no column has their times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from covey.agent.data.cells import BadCells
from covey.agent.data.table_files import open_table
from covey.agent.data.values import value_of
from covey.extras.proposals.describe import TableDescription

LEAST_ROWS = 100  # of fewer, neighbours are alike by chance
LEAST_VALUES = 10  # different ones of a column that can show it
MOST_COLUMNS = 32  # that are looked at
FAR = 16  # rows, between which samples of a sensor have changed
LEAST_MOVES = 50  # neighbours that differ
ALIKE = 0.2  # of the mean square between random rows
SORTED = 0.9  # a column that goes with the numbers of the rows this well is what they are sorted by

Float64 = npt.NDArray[np.float64]


def follow(path: Path, table: TableDescription) -> bool:
    """Whether neighbouring rows are far more alike than rows a little apart, in half of the columns of numbers.

    Rows that are sorted are not: their neighbours are alike in what they are sorted by, and differ otherwise as much as rows a
    little apart do. Neither are a few rows of each person or thing: what is alike in these does not move from row to row.
    """
    columns = [
        one.name
        for one in table.columns
        if one.kind in ("whole", "number") and one.distinct >= LEAST_VALUES and not one.steps
    ]
    columns = columns[:: max(len(columns) // MOST_COLUMNS, 1)]
    if table.rows < LEAST_ROWS or not columns:
        return False
    with open_table(path, least=1, notation=table.notation) as file:
        first = next(iter(file.blocks(columns, BadCells(path))))
    numbers = [[value_of(cell).number for cell in first.cells[name]] for name in columns]
    return 2 * sum(_follow(np.array(own)) for own in numbers) >= len(columns)


def _follow(numbers: Float64) -> bool:
    """Whether the ranks of neighbours that differ do so by little, next to those of random rows and of rows a little apart."""
    is_there = np.isfinite(numbers)
    if is_there.sum() < LEAST_ROWS:
        return False
    _, place, counts = np.unique(numbers[is_there], return_inverse=True, return_counts=True)
    ranks = np.full(len(numbers), np.nan)
    ranks[is_there] = (np.cumsum(counts) - counts / 2)[place] / is_there.sum()
    near, apart = (_squares(ranks, rows) for rows in (1, min(FAR, len(ranks) // 8)))
    near = near[near > 0]
    spread = 2 * float(ranks[is_there].var())  # the mean square between random rows
    if not spread or len(near) < LEAST_MOVES or not len(apart):
        return False
    is_sorted = abs(np.corrcoef(ranks[is_there], np.flatnonzero(is_there))[0, 1]) > SORTED
    return not is_sorted and near.mean() < ALIKE * spread and 2 * near.mean() < apart.mean()


def _squares(ranks: Float64, rows: int) -> Float64:
    """The squares between ranks that are this number of rows apart."""
    squares: Float64 = np.square(ranks[rows:] - ranks[:-rows])
    return squares[np.isfinite(squares)]
