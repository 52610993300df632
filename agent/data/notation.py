"""How a text table spells numbers, times and letters: read as a task declares it, or found in the file itself.

Whatever a file's notation, the rest of the program meets numbers with a decimal point and times in ISO 8601.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import islice, product
from pathlib import Path
from typing import Any

from covey.shared.scenario.columns import SEPARATORS, Notation

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
