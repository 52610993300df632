"""Cells of a table: how a text table spells numbers, times and letters, and the cells that are refused.

A notation is read as a task declares it, or found in the file itself. All refused cells are counted, and one message
names the first ones.

Whatever a file's notation, the rest of the program meets numbers with a decimal point and times in ISO 8601.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, product
from pathlib import Path
from typing import Any

from covey.shared.errors import DataError
from covey.shared.scenario.columns import SEPARATORS, Notation

# -- the refused cells of a table ------------------------------------------------------------------


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

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first = []
        self._block = []
        self.count = 0
        self._by_column = Counter()

    def __repr__(self) -> str:
        return f"<BadCells {self._path}: {self.count}>"

    def add(self, cell: BadCell) -> None:
        """Remember a refused cell."""
        self.count += 1
        self._by_column[cell.column] += 1
        self._block.append(cell)

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
            lines.append(f"in all: {self._counted()}")
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


# -- how a text table spells numbers, times and letters ---------------------------------------------


Cells = Sequence[Any]  # of one column: texts of a CSV file, Python's own values of a Parquet file

EXAMINED_ROWS = 1000  # in which the notation of a file is looked for
MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # the first bytes of a file
FALLBACK = "cp1252"  # proposed for text that is not UTF-8: Western European, as Windows writes it
COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?|[+-]?\d+")
# one comma before three digits: 1,234 may be a thousand or hardly more than one
THOUSANDS = re.compile(r"[+-]?\d{1,3},\d{3}")
DAYS = ("%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
CLOCKS = ("", " %H:%M", " %H:%M:%S")


def encoding_of(path: Path, notation: Notation) -> str:
    """The encoding of a text file: by its first bytes, else UTF-8, else the one that the task declares."""
    with path.open("rb") as file:
        if marked := MARKS.get(file.read(2)):
            return marked
    if notation.encoding is None or _is_utf8(path):
        return "utf-8-sig"
    return notation.encoding


def separator_of(header: str, notation: Notation) -> str:
    """The character between the cells of a text file: the declared one, else the most frequent one of its first line."""
    return notation.separator or max(SEPARATORS, key=header.count)


def plain(cells: Cells, notation: Notation) -> Cells:
    """The cells of a column, texts in the task's notation replaced by numbers with a point and times in ISO 8601."""
    if notation.decimal == "." and not notation.dates:
        return cells
    return [_plain(cell, notation) if isinstance(cell, str) else cell for cell in cells]


def _plain(cell: str, notation: Notation) -> str:
    text = cell.strip()
    if notation.decimal == "," and COMMA_NUMBER.fullmatch(text):
        return text.replace(",", ".")
    for form in notation.dates:
        if (moment := _moment(text, form)) is not None:
            return moment.isoformat(" ")
    return cell


def _moment(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def _is_utf8(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8-sig") as file:
            while file.read(1 << 20):
                pass
    except UnicodeDecodeError:
        return False
    return True


# -- an undeclared notation -----------------------------------------------------------------------------------


def found_notation(path: Path) -> Notation:
    """The notation of a text table, by its bytes and its first rows. What could be read in two ways stays as it is.

    Args:
        path: a `.csv` or `.tsv` file; any other has the default notation.
    """
    if path.suffix.lower() not in (".csv", ".tsv"):
        return Notation()
    encoding = None if encoding_of(path, Notation()) == "utf-16" or _is_utf8(path) else FALLBACK
    columns = _first_columns(path, Notation(encoding=encoding))
    decimal = "," if any(map(_has_decimal_commas, columns)) else "."
    dates = {form: None for column in columns if (form := _date_form(column))}
    return Notation(decimal=decimal, dates=tuple(dates), encoding=encoding)


def _first_columns(path: Path, notation: Notation) -> list[list[str]]:
    """The cells that are there, by column, in the first rows below the header."""
    try:
        with path.open(newline="", encoding=encoding_of(path, notation)) as file:
            separator = separator_of(file.readline(), notation)
            file.seek(0)
            header, *rows = islice(csv.reader(file, delimiter=separator), EXAMINED_ROWS + 1)
    except (UnicodeError, csv.Error, ValueError):
        return []  # its reader reports the fault
    cells = zip(*[row for row in rows if len(row) == len(header)], strict=True)
    return [[text for cell in column if (text := cell.strip())] for column in cells]


def _has_decimal_commas(cells: list[str]) -> bool:
    """Whether a column holds numbers, some with a comma, that cannot be thousands."""
    with_comma = [cell for cell in cells if COMMA_NUMBER.fullmatch(cell)]
    others = [cell for cell in cells if not COMMA_NUMBER.fullmatch(cell)]
    are_numbers = all(POINT_NUMBER.fullmatch(cell) and "." not in cell for cell in others)
    return are_numbers and any(not THOUSANDS.fullmatch(cell) for cell in with_comma)


def _date_form(cells: list[str]) -> str | None:
    """The only form of dates that fits all cells of a column; None if there is none, or 03/04/2025 could be two days."""
    if not cells or all(POINT_NUMBER.fullmatch(cell) for cell in cells):
        return None
    forms = [day + clock for day, clock in product(DAYS, CLOCKS)]
    fitting = [form for form in forms if all(_moment(cell, form) for cell in cells)]
    return fitting[0] if len(fitting) == 1 else None
