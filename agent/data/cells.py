"""The cells of a table that are refused: all of them are counted, and one message names the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.shared.errors import DataError

# -- the refused cells of a table ------------------------------------------------------------------


# whether rows that do not fit a task are left out, where a refusal would tell that there are some
LEAVES_OUT: ContextVar[bool] = ContextVar("rows that do not fit are left out", default=False)
MAX_NAMED = 10  # refused cells in one message
MAX_SEEN = 40  # characters of a cell that a message quotes


@dataclass(frozen=True, order=True)
class BadCell:
    """A cell, or a whole row, that cannot be used. The order is that of the file."""

    row: int  # from 1, below the header
    position: int  # of the column in the file, from 0; -1 for a whole row
    line: int  # of the file, from 1; 0 if the file is no text
    column: str  # its name; empty for a whole row
    fault: str  # for the device's own terminal: it may quote the cell
    kind: str  # for other machines: no value and no name
    advice: str

    def described(self) -> str:
        """The cell in words, for the device's own terminal."""
        place = f"row {self.row}"
        if self.line:
            place += f" (line {self.line})"
        if self.column:
            place += f", column {self.column!r}"
        return f"{place}: {self.fault}"

    @property
    def public(self) -> str:
        """The cell in words, by numbers alone: names of columns may be private too."""
        if self.position < 0:
            return f"row {self.row} {self.kind}"
        return f"row {self.row}, column {self.position + 1} {self.kind}"


class BadCells:
    """Collects the refused cells of one file, block by block."""

    _first: list[BadCell]  # at most MAX_NAMED, in the order of the file
    _block: list[BadCell]  # of the present block of rows, in any order
    count: int  # all of them
    _by_column: Counter[str]  # faults by name of the column; empty name: whole rows
    rows: set[int]  # that have any

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first = []
        self._block = []
        self.count = 0
        self._by_column = Counter()
        self.rows: set[int] = set()

    def __repr__(self) -> str:
        return f"<BadCells {self._path}: {self.count}>"

    def add(self, cell: BadCell) -> None:
        """Remember a refused cell."""
        self.count += 1
        self._by_column[cell.column] += 1
        self.rows.add(cell.row)
        self._block.append(cell)

    @property
    def first(self) -> BadCell:
        """The first refused cell. IndexError if there is none."""
        return (self._first or self._block)[0]

    def close_block(self) -> None:
        """Keep the first cells of the block that was read. Later blocks have later rows."""
        self._block.sort()
        room = MAX_NAMED - len(self._first)
        self._first += self._block[:room]
        self._block = []

    def check(self, others: Sequence[DataError] = ()) -> None:
        """Raises DataError if any cell was refused. It names the first ones, and counts them all.

        Args:
            others: faults of the same file, such as missing columns, that the message names too.
        """
        self.close_block()
        errors = list(others)
        if self._first:
            errors.append(self._error())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise self._joined(errors)

    def _joined(self, errors: Sequence[DataError]) -> DataError:
        """One error for faults of several kinds."""
        prefix = f"{self._path}: "
        lines = [f"{self._path}: {len(errors)} kinds of faults:"]
        for error in errors:
            text = str(error).removeprefix(prefix)
            lines.append(f"- {text}")
        return DataError("\n  ".join(lines), public="; ".join(error.public for error in errors))

    def _error(self) -> DataError:
        """The faulty cells: the first ones by name, and their number."""
        if self.count == 1:
            only = self._first[0]
            return DataError(f"{self._path}: {only.described()}; {only.advice}", public=only.public)
        named = len(self._first)
        heading = f"{self.count} faults"
        if self.count > named:
            heading += f", the first {named}"
        lines = [f"{self._path}: {heading}:"]
        for cell in self._first:
            lines.append(f"{cell.described()};")
        if self.count > named:
            lines.append(f"in all: {self._counted()};")
        lines += dict.fromkeys(cell.advice for cell in self._first)
        return DataError(
            "\n  ".join(lines),
            public=f"{self.count} faults in the table, the first: {self._first[0].public}",
        )

    def _counted(self) -> str:
        """How many faults each column has, the most first."""
        shown: list[str] = []
        for name, count in self._by_column.most_common(MAX_NAMED):
            where = f"column {name!r}" if name else "whole rows"
            shown.append(f"{count} in {where}")
        return ", ".join(shown)


def quoted(cell: object) -> str:
    """A cell for a message, cut to MAX_SEEN characters."""
    text = repr(cell)
    if len(text) <= MAX_SEEN:
        return text
    return text[:MAX_SEEN] + "..."


Cells = Sequence[Any]  # of one column: texts of a CSV file, Python's own values of a Parquet file
