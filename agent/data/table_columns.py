"""Cells of a column as numbers: every refused cell becomes a fault, so that one message can name them all.

Points in time in the cells of a table, as the second of the week: what a model sees of them. Pure.

With the season, whole weeks since New Year are added: the position in the week is as before, and the sum has the position in
the year.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC

import numpy as np
import numpy.typing as npt

from covey.agent.data.cells import BadCell, BadCells, Cells, quoted
from covey.agent.data.table_rows import Block
from covey.agent.data.values import EPOCH, is_missing, moment_of, number_written, spelled, value_of
from covey.shared.scenario.columns import DAY_S, WEEK_S

BEGIN_S = 946_684_800.0  # 1 January 2000, in seconds since 1970


def seconds_of_week(
    place: CellPlace, block: Block, faults: BadCells, *, missing: bool, seasonal: bool = False
) -> Float32:
    """A block of a column of times, (n,): seconds since Monday, 0:00; NaN for missing cells.

    Exact to 1/16 s; with `seasonal`, which adds the weeks since New Year, to 2 s.
    """
    found: list[float] = []
    for index, cell in place.cells(block, faults, missing=missing):
        if cell is None:
            found.append(math.nan)
            continue
        second = second_of_week(cell, seasonal=seasonal)
        if second is None:
            advice = "write times as 2026-01-31 13:45 or as seconds since 1970, or name their form in task.read.dates"
            seen = f"{quoted(cell)} is not a time"
            faults.add(place.bad_cell(block, index, seen, "is not a time", advice))
            second = 0.0
        found.append(second)
    return np.array(found, np.float32)


def days_elapsed(place: CellPlace, block: Block, faults: BadCells, *, missing: bool) -> Float64:
    """A block of a column of times, (n,): days since 2000, by the clock as written; NaN for missing cells, and for those that are
    no times: `seconds_of_week` names them."""
    cells = [cell for _, cell in place.cells(block, faults, missing=missing)]
    days = (np.array(instants(cells)) - BEGIN_S) / DAY_S
    days[~np.isfinite(days)] = math.nan
    return days


def second_of_week(cell: object, *, seasonal: bool = False) -> float | None:
    """The second of the week of a point in time, by the clock as written; None if the cell is none.

    With `seasonal` the whole weeks since New Year are added, as many as bring it nearest to the second of the year.
    """
    moment = moment_of(cell)
    if moment is None:
        return None
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    weeks = round((moment.timetuple().tm_yday - 1 - moment.weekday()) / 7) if seasonal else 0
    return weeks * WEEK_S + moment.weekday() * DAY_S + seconds + moment.microsecond / 1e6


def instants(cells: Cells) -> list[float]:
    """The points in time of a column, to order them: seconds since 1970 by the clock as written; the earliest for others."""
    found: list[float] = []
    for cell in cells:
        moment = moment_of(cell)
        if moment is None:
            found.append(-math.inf)
        else:
            found.append((moment.replace(tzinfo=UTC) - EPOCH).total_seconds())
    return found


MAX_FLOAT32 = float(np.finfo(np.float32).max)

NUMERIC_TYPES = {str, int, float, bool}  # of cells that may hold a number
CORRECT = "correct numbers that are not finite"
FILL = "fill empty cells in, or name the features in task.columns and set task.impute"
DECIMAL_COMMA = "write numbers with a decimal point, such as 0.5, or set task.read.decimal to ','"
NO_WORDS = "correct words among numbers, leave the column out, or list a column of words in task.categories"

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CellPlace:
    """The column that is being read, for faults."""

    name: str
    position: int  # in the file, from 0

    def bad_cell(self, block: Block, index: int, fault: str, kind: str, advice: str) -> BadCell:
        """The fault of one cell of a block."""
        return BadCell(
            row=block.rows[index],
            position=self.position,
            line=block.lines[index],
            column=self.name,
            fault=fault,
            kind=kind,
            advice=advice,
        )

    def cells(
        self, block: Block, faults: BadCells, *, missing: bool
    ) -> Iterator[tuple[int, object]]:
        """The column's cells in a block, each with its index; None for a missing one, which is a fault unless `missing`."""
        for index, cell in enumerate(block.cells[self.name]):
            if not is_missing(cell):
                yield index, cell
                continue
            if not missing:
                advice = "fill it in, or set task.impute"
                faults.add(self.bad_cell(block, index, "the cell is empty", "is empty", advice))
            yield index, None


def numbers(place: CellPlace, block: Block, faults: BadCells, *, missing: bool) -> Float64:
    """A block of a column of numbers, (n,).

    Args:
        place: the column.
        block: its rows.
        faults: collects the cells that are no finite numbers.
        missing: whether cells may be missing; these are NaN.
    """
    cells = block.cells[place.name]
    values = all_numbers(cells)
    if values is not None:
        return values
    found: list[float] = []
    for index, cell in enumerate(cells):
        value = value_of(cell)
        if missing and value.kind == "missing":
            found.append(math.nan)
            continue
        number = value.number
        if not abs(number) <= MAX_FLOAT32:  # also NaN
            faults.add(_no_number(place, block, index, cell))
            number = 0.0
        found.append(number)
    return np.array(found, np.float64)


def all_numbers(cells: Cells) -> Float64 | None:
    """The cells, if all of them are plain numbers: the usual case, and the fast one, with the result of `value_of`."""
    if not set(map(type, cells)) <= NUMERIC_TYPES:
        return None
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except (ValueError, OverflowError):
        return None
    if any("_" in cell for cell in cells if isinstance(cell, str)):
        return None
    return values if (np.abs(values) <= MAX_FLOAT32).all() else None


def _no_number(place: CellPlace, block: Block, index: int, cell: object) -> BadCell:
    """The fault of a cell that is no finite number."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return place.bad_cell(block, index, "the cell is empty", "is empty", FILL)
    if value_of(cell).kind == "bytes":
        seen = "the cell holds bytes or a list, not a number"
        return place.bad_cell(block, index, seen, "holds bytes or a list", NO_WORDS)
    if not isinstance(cell, str):
        advice = FILL if is_missing(cell) else CORRECT
        seen = f"{quoted(cell)}; expected a finite number"
        return place.bad_cell(block, index, seen, "is not a finite number", advice)
    text = cell.strip()
    if number_written(text) is not None or text.lower() == "nan":
        advice = FILL if is_missing(cell) else CORRECT
        seen = f"{text:.40}; expected a finite number"
        return place.bad_cell(block, index, seen, "is not a finite number", advice)
    if is_missing(text):
        seen = f"{quoted(text)} stands for a missing cell"
        return place.bad_cell(block, index, seen, "is empty", FILL)
    seen = f"{quoted(text)} is not a number"
    has_decimal_comma = "," in text and number_written(text.replace(",", ".", 1)) is not None
    advice = DECIMAL_COMMA if has_decimal_comma else NO_WORDS
    return place.bad_cell(block, index, seen, "is not a number", advice)


class Words:
    """The cells of a categorical column as indices into the words that occur in it, in the order of their first row."""

    words: dict[str, int]  # word -> index

    def __init__(self) -> None:
        self.words = {}

    def __repr__(self) -> str:
        return f"<Words: {len(self.words)}>"

    def codes(self, place: CellPlace, block: Block, faults: BadCells, *, missing: bool) -> Float32:
        """A block of the column, (n,): indices as float32, NaN for missing cells."""
        found: list[float] = []
        for _, cell in place.cells(block, faults, missing=missing):
            if cell is None:
                found.append(math.nan)
                continue
            found.append(self.words.setdefault(spelled(cell), len(self.words)))
        return np.array(found, np.float32)


def labels(place: CellPlace, block: Block, faults: BadCells, *, missing: bool = False) -> list[str]:
    """A block of labels as words; missing ones are empty, and faults unless `missing`."""
    found: list[str] = []
    for index, cell in enumerate(block.cells[place.name]):
        is_there = not is_missing(cell)
        if not is_there and not missing:
            cell_fault = BadCell(
                row=block.rows[index],
                position=-1,
                line=block.lines[index],
                column="",
                fault=f"no label in column {place.name!r}",
                kind="has no label",
                advice="fill it in, leave the row out, or set task.drop_unlabelled",
            )
            faults.add(cell_fault)
        found.append(spelled(cell) if is_there else "")
    return found


def series_names(place: CellPlace, block: Block, faults: BadCells) -> list[str]:
    """A block of the column that names the series of each row; missing names become faults."""
    found: list[str] = []
    for index, cell in enumerate(block.cells[place.name]):
        if is_missing(cell):
            advice = "name the series of the row, or leave the row out"
            faults.add(place.bad_cell(block, index, "the cell is empty", "is empty", advice))
        found.append(spelled(cell))
    return found
