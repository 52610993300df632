"""The contents of a table in figures, for a person who writes a task: types, missing cells, values, likely targets."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from covey.agent.data.cells import BadCells, Cells, found_notation
from covey.agent.data.table_columns import is_missing, spelled
from covey.agent.data.table_rows import open_table
from covey.agent.data.times import second_of_week
from covey.shared.scenario.columns import LABEL_NAMES, Notation

MAX_DISTINCT = 1000  # different values that are counted in one column
MAX_SHOWN = 50  # values of one column in the description
MAX_STRANGE = 3  # words in a column of numbers in the description
FEW_VALUES = 20  # a column with at most this number of different values may name classes
TIME_WORDS = ("time", "date", "stamp")  # in the name of a column that holds times as numbers
EPOCH_RANGE = (3e8, 4e18)  # of times as numbers, in seconds to nanoseconds since 1970

Kind = Literal["whole", "number", "time", "word", "empty"]


@dataclass(frozen=True)
class ColumnDescription:
    """One column of a table."""

    name: str
    kind: Kind  # of all cells that are there; empty: there is none
    missing: int  # cells
    distinct: int  # different values; MAX_DISTINCT + 1 stands for more than MAX_DISTINCT
    values: tuple[str, ...]  # as the file spells them, the most frequent first, at most MAX_SHOWN
    counts: tuple[int, ...]  # cells of each of these
    smallest: float | None  # of numbers
    largest: float | None
    numbers: int  # cells with a finite number
    # the first cells that are neither numbers nor times, at most MAX_STRANGE
    strange: tuple[str, ...]
    is_unique: bool  # no value of many occurs twice
    is_key: bool  # words of which none occurs twice, as names: a model can learn nothing from them

    @property
    def has_no_letters(self) -> bool:
        """Whether its words are numbers or times in another notation, such as 38,0 or 31.12.2025."""
        return bool(self.strange) and all(word.upper() == word.lower() for word in self.strange)


@dataclass(frozen=True)
class TableDescription:
    """A table."""

    rows: int
    faulty_rows: int  # with another number of cells than the header; they are not in `rows`
    columns: tuple[ColumnDescription, ...]  # in the order of the file
    targets: tuple[str, ...]  # columns that may be the target, the most likely first
    notation: Notation  # of the first file

    def to_json(self) -> dict[str, Any]:
        """For other programs."""
        return asdict(self) | {"notation": self.notation.model_dump()}

    def column(self, name: str) -> ColumnDescription:
        """The column of a name. KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def describe_table(path: Path, *more: Path) -> TableDescription:
    """Describe a `.csv`, `.tsv` or `.parquet` file. Nothing is refused except a file that is no table.

    Args:
        path: the file.
        more: other parts of the same data, such as a test part.

    Raises:
        DataError: the file cannot be read, or has no header.
    """
    rows = 0
    faulty_rows = 0
    found: dict[str, _Column] = {}
    notation = found_notation(path)
    for part in (path, *more):
        faults = BadCells(part)
        with open_table(part, least=1, notation=notation) as file:
            for name in file.columns:
                found.setdefault(name, _Column(name))
            for block in file.blocks(file.columns, faults):
                rows += len(block.rows)
                for name, cells in block.cells.items():
                    found[name].add(cells)
                faults.close_block()
        faulty_rows += faults.count
    columns = tuple(column.described() for column in found.values())
    return TableDescription(rows, faulty_rows, columns, _targets(columns, rows), notation)


class _Column:
    """Collects the figures of one column."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._present = 0
        self._missing = 0
        self._numbers = 0
        self._whole = 0
        self._times = 0  # texts and dates, not numbers
        self._strange: dict[str, None] = {}  # the first cells that are neither
        self._smallest = math.inf
        self._largest = -math.inf
        self._counts: Counter[str] = Counter()  # of at most MAX_DISTINCT + 1 values

    def add(self, cells: Cells) -> None:
        """Count the cells of a block."""
        for cell in cells:
            if is_missing(cell):
                self._missing += 1
            else:
                self._present += 1
                self._count(cell)

    def _count(self, cell: Any) -> None:
        word = spelled(cell)
        if word in self._counts or len(self._counts) <= MAX_DISTINCT:
            self._counts[word] += 1
        number = number_in(cell)
        if number is not None:
            self._numbers += 1
            self._whole += number.is_integer()
            self._smallest = min(self._smallest, number)
            self._largest = max(self._largest, number)
        elif second_of_week(cell) is not None:
            self._times += 1
        elif len(self._strange) < MAX_STRANGE:
            self._strange[word] = None

    def described(self) -> ColumnDescription:
        frequent = self._counts.most_common(MAX_SHOWN)
        has_numbers = bool(self._numbers)
        return ColumnDescription(
            name=self._name,
            kind=self._kind(),
            missing=self._missing,
            distinct=len(self._counts),
            values=tuple(word for word, _ in frequent),
            counts=tuple(count for _, count in frequent),
            smallest=self._smallest if has_numbers else None,
            largest=self._largest if has_numbers else None,
            numbers=self._numbers,
            strange=tuple(self._strange),
            is_unique=self._is_unique(),
            is_key=self._kind() == "word" and self._is_unique(),
        )

    def _is_unique(self) -> bool:
        """Whether no value occurs twice, as far as they are counted."""
        return self._counts.total() == len(self._counts) > FEW_VALUES

    def _kind(self) -> Kind:
        if not self._present:
            return "empty"
        if self._times == self._present:
            return "time"
        if self._numbers < self._present:
            return "word"
        if self._is_epoch():
            return "time"
        return "whole" if self._whole == self._present else "number"

    def _is_epoch(self) -> bool:
        """Numbers in a column whose name speaks of time, as large as times since 1970 are."""
        name = self._name.lower()
        if not any(word in name for word in TIME_WORDS):
            return False
        least, most = EPOCH_RANGE
        return least <= self._smallest and self._largest <= most


def number_in(cell: Any) -> float | None:
    """The finite number in a cell; None if it is none."""
    if not isinstance(cell, str | int | float):
        return None
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _targets(columns: tuple[ColumnDescription, ...], rows: int) -> tuple[str, ...]:
    """Columns with a target's usual name, then the last column, then those with few different values."""
    usable = [column for column in columns if column.kind != "empty" and column.distinct > 1]
    ranked: dict[str, None] = {}
    for name in LABEL_NAMES:
        for column in usable:
            if column.name.strip().lower() == name:
                ranked[column.name] = None
    for column in usable[-1:]:
        if column.kind != "time":
            ranked[column.name] = None
    for column in usable:
        repeats = column.distinct < rows
        if column.kind in ("word", "whole") and column.distinct <= FEW_VALUES and repeats:
            ranked[column.name] = None
    return tuple(ranked)
