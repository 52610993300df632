"""Rows of JSON: an object in each line, as loggers of MQTT write them, all objects in a list, or an object with a list for each column.

Nested objects are spread, `{"payload": {"temp": 20}}` to the column `payload.temp`; so are objects in a text. A column is a key of
any row; where a row lacks it, its cell is missing, or 0 if the task has it among `read.zeros`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from covey.agent.data.cells import LEAVES_OUT, BadCell, BadCells
from covey.agent.data.limits import ROW_BYTES, VALUE_BYTES, check_size, unpacked_limit
from covey.agent.data.notation import encoding_of, plain
from covey.agent.data.table_rows import BLOCK_ROWS, Block, TableFile, check_columns
from covey.agent.data_place import JSON_LINES, UnfinishedFile
from covey.shared.errors import DataError
from covey.shared.scenario.columns import Notation

DEEPEST = 16  # objects within one another
LONGEST = 512  # characters of a name whose object is spread: each cell in it has the name again
FORMS = 'expected a list of objects, an object in each line, or a list for each column: {"temp": [20.1, 20.4], "state": ["ok", "worn"]}'
MOST_AXES = 64  # numbers of a list that are cells of their own, such as those of an accelerometer
Row = dict[str, Any]


class _JsonRows(TableFile):
    def __init__(
        self, rows: Sequence[tuple[int, Row | None]], columns: tuple[str, ...], notation: Notation
    ) -> None:
        self.columns = columns
        self._rows = rows  # with their lines; None: no object
        self._notation = notation

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        zeros = {name: self._zero_of(name) for name in self._notation.zeros}
        numbered = self._numbered(faults)
        while block := list(islice(numbered, BLOCK_ROWS)):
            rows, lines, found = zip(*block, strict=True)
            cells = {
                name: plain([row.get(name, zeros.get(name)) for row in found], self._notation)
                for name in names
            }
            yield Block(rows, lines, cells)

    def _zero_of(self, name: str) -> object:
        """The cell that a row without a key stands for: false among booleans."""
        cells = (row[name] for _, row in self._rows if row is not None and name in row)
        return False if isinstance(next(cells, None), bool) else 0

    def _numbered(self, faults: BadCells) -> Iterator[tuple[int, int, Row]]:
        for number, (line, row) in enumerate(self._rows, start=1):
            if row is not None:
                yield number, line, row
                continue
            fault = "no object of JSON"
            advice = "correct the line, or remove it"
            faults.add(BadCell(number, -1, line, "", fault, f"is {fault}", advice))


@contextmanager
def open_json(
    path: Path, asked: Sequence[str], least: int, notation: Notation
) -> Iterator[TableFile]:
    """A file of objects, as a table; where the owner of a device hides what rows hold, with the columns that are asked for.

    Raises:
        DataError: it is neither a list nor lines of objects, has too few or too many keys, or takes too much memory.
    """
    try:
        text = path.read_text(encoding_of(path, notation))
    except UnicodeError as error:
        fault = "not UTF-8 text"
        raise DataError(f"{path}: {fault} ({error})", public=f"the file is {fault}") from None
    rows: list[tuple[int, Row | None]] = []
    names: dict[str, None] = {}
    size, limit = 0, unpacked_limit(path)
    for line, row in (_lines if path.suffix.lower() in JSON_LINES else _of_file)(path, text):
        rows.append((line, row))
        names |= dict.fromkeys(row or ())
        size += ROW_BYTES + sum(VALUE_BYTES + len(name) for name in row or ())
        check_size(path, size, limit)
    if LEAVES_OUT.get() and asked:
        names = dict.fromkeys(asked)
    columns = tuple(name for name in names if name.strip())
    check_columns(path, columns, least)
    yield _JsonRows(rows, columns, notation)


def _of_file(path: Path, text: str) -> Iterator[tuple[int, Row | None]]:
    """The rows of a list, of lists in it, or of an object of columns; else those of lines."""
    begin = text.lstrip("\ufeff \r\n\t")[:1]
    found = _value(text)
    if isinstance(found, Mapping):
        found = _rows_of(path, found)
    if (
        found is None
        and begin == "{"
        and isinstance(_value(text.strip().partition("\n")[0]), Mapping)
    ):
        yield from _lines(path, text)
        return
    if not isinstance(found, list):
        fault = "not JSON, or cut short"
        raise DataError(f"{path}: {fault}; copy it again", public=f"the file is {fault}")
    for one in found:
        for row in one if isinstance(one, list) else [one]:
            yield 0, _row(row)


def _rows_of(path: Path, value: Mapping[str, Any]) -> list[Row]:
    """The rows of an object: of the one list of objects in it, of its columns, or as pandas writes them. DataError for another one."""
    tables = [one for one in value.values() if isinstance(one, list) and one]
    named = [one for one in tables if all(isinstance(row, Mapping) for row in one)]
    if len(named) == 1:
        return [dict(row) for row in named[0]]
    names = value.get("columns")
    split = [one for one in tables if all(isinstance(row, list) for row in one)]
    if isinstance(names, list) and len(split) == 1:
        return [dict(zip(map(str, names), row, strict=False)) for row in split[0]]
    cells = dict(_columns(value, ""))
    lengths = {len(own) for own in cells.values() if isinstance(own, list)}
    if len(lengths) == 1:
        [rows] = lengths
        columns = [own if isinstance(own, list) else [own] * rows for own in cells.values()]
        return [dict(zip(cells, row, strict=True)) for row in zip(*columns, strict=True)]
    fault = "one object of JSON, and no table"
    seen = f": lists of {min(lengths)} to {max(lengths)} values" if lengths else ""
    raise DataError(f"{path}: {fault}{seen}; {FORMS}", public=f"the file is {fault}; {FORMS}")


def _columns(value: Mapping[str, Any], begin: str) -> Iterator[tuple[str, Any]]:
    """The columns of an object, by the names of all keys above them: lists, or objects that have numbers of rows as keys."""
    for key, own in value.items():
        if not isinstance(own, Mapping):
            yield begin + key, own
        elif own and all(map(str.isdigit, own)):
            yield begin + key, [*own.values()]
        else:
            yield from _columns(own, f"{begin}{key}.")


def _lines(path: Path, text: str) -> Iterator[tuple[int, Row | None]]:
    lines = text.splitlines(keepends=True)
    if isinstance(path, UnfinishedFile) and lines and not lines[-1].endswith(("\n", "\r")):
        del lines[-1]
    for number, line in enumerate(lines, start=1):
        if line.strip("\ufeff \r\n\t,"):
            yield number, _row(_value(line))


def _value(text: str) -> Any:
    """What a text of JSON stands for; None for another text. NaN is a missing cell."""
    try:
        return json.loads(text.strip("\ufeff \r\n\t,"), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _row(value: Any) -> Row | None:
    return dict(_spread(value, "", DEEPEST)) if isinstance(value, Mapping) else None


def _spread(value: Mapping[str, Any], begin: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The cells of an object, by the names of all keys above them."""
    for key, cell in value.items():
        if isinstance(cell, str) and cell.lstrip().startswith("{"):
            inner = _value(cell)
            cell = inner if isinstance(inner, Mapping) else cell
        if isinstance(cell, list) and len(cell) <= MOST_AXES:
            cell = {str(place): one for place, one in enumerate(cell)}
        if isinstance(cell, Mapping) and depth and len(begin) + len(key) <= LONGEST:
            yield from _spread(cell, f"{begin}{key}.", depth - 1)
        else:
            yield begin + key, cell
