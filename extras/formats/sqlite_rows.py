"""The rows of a SQLite database: of a table, or of a query that only reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any
from urllib.parse import quote

from covey.agent.data.cells import BadCells
from covey.agent.data.limits import (
    LIMIT_VARIABLE,
    MAX_CELL_BYTES,
    ROW_BYTES,
    STEP_BYTES,
    VALUE_BYTES,
    check_size,
    unpacked_limit,
)
from covey.agent.data.notation import plain
from covey.agent.data.table_rows import BLOCK_ROWS, Block, TableFile, check_columns, listed
from covey.shared.errors import DataError
from covey.shared.scenario.columns import Notation

WAIT_S = 5.0  # for another program that writes
STEPS = 1_000_000  # of the database's machine between two looks at how many it has made
PATTERN_BYTES = 1000  # of a LIKE, which costs its length for each character that it is compared to
READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
# parts of SQLite's messages -> what to do
ADVICE = {
    "locked": "another program writes to it; try again, or let that program end its transactions",
    "busy": "another program writes to it; try again, or let that program end its transactions",
    "prohibited": "a query may only read: begin it with SELECT",
    "not authorized": "a query may only read: begin it with SELECT",
    "readonly": "a query may only read: begin it with SELECT",
    "one statement": "give one query",
    "not a database": "check the file, or copy it again",
    "image is malformed": "check the file, or copy it again",
    "decode to UTF-8": "its texts have another encoding; read that column as CAST(... AS BLOB), or leave it out of the query",
    "too big": f"a text or content has more than {MAX_CELL_BYTES} bytes; leave its column out of the query",
    "interrupted": f"its rows take too many steps; simplify the query or view, or set {LIMIT_VARIABLE}",
    "unable to open": "check that this user may read the file and its folder",
}


class _SqliteTable(TableFile):
    def __init__(
        self,
        path: Path,
        limit: int,
        cursor: sqlite3.Cursor,
        columns: tuple[str, ...],
        notation: Notation,
    ) -> None:
        self.columns = columns
        self._path = path
        self._limit = limit  # of all rows, in bytes
        self._cursor = cursor
        self._notation = notation

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        number = 0
        rows_within = self._within()
        while found := list(islice(rows_within, BLOCK_ROWS)):
            rows = range(number + 1, number + len(found) + 1)
            number += len(found)
            by_position = list(zip(*found, strict=True))
            cells = {
                name: plain(by_position[self.positions[name]], self._notation) for name in names
            }
            yield Block(rows, [0] * len(found), cells)

    def _within(self) -> Iterator[Sequence[Any]]:
        """The rows. DataError once they take more than the file may unpack to: a view can have rows without end."""
        size = 0
        for row in self._cursor:
            size += ROW_BYTES + VALUE_BYTES * len(row)
            size += sum([len(cell) for cell in row if isinstance(cell, str | bytes)])
            check_size(self._path, size, self._limit)
            yield row


@contextmanager
def open_sqlite(
    place: Path, file: Path, least: int, notation: Notation, *, table: str, query: str
) -> Iterator[TableFile]:
    """A database, open for reading alone while the rows of a table or a query are read. `place` names them in messages.

    Raises:
        DataError: there is no such file or table, the query writes, or another program has locked the database.
    """
    if not file.is_file():
        raise DataError(
            f"{file}: no such file; expected a database", public="the database does not exist"
        )
    address = f"file:{quote(str(file.resolve()))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=WAIT_S)) as base:
            query = query or _whole(base, place, table)
            base.set_authorizer(_only_reading)
            limit = unpacked_limit(file)
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)
            base.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_BYTES)
            goes_on = repeat(0, limit // STEP_BYTES // STEPS)
            base.set_progress_handler(partial(next, goes_on, 1), STEPS)  # 1 ends the query
            cursor = base.execute(query)
            if cursor.description is None:
                raise sqlite3.OperationalError("the query gives no rows: not authorized")
            columns = tuple(name for name, *_ in cursor.description)
            check_columns(place, columns, least)
            yield _SqliteTable(place, limit, cursor, columns, notation)
    except sqlite3.Error as error:
        text = str(error)
        advice = next((one for part, one in ADVICE.items() if part in text), "correct the query")
        raise DataError(
            f"{place}: {text}; {advice}", public=f"the database cannot be read; {advice}"
        ) from None


def _only_reading(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def _whole(base: sqlite3.Connection, place: Path, table: str) -> str:
    """The query of all rows of a table or a view, in the order of the database."""
    kinds = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    names = [name for (name,) in base.execute(kinds)]
    if table not in names:
        raise DataError(
            f"{place}: no table {table!r}; the database has {listed(names) or 'none'}",
            public="the database has no such table",
        )
    quoted = table.replace('"', '""')
    return f'SELECT * FROM "{quoted}"'  # noqa: S608 - the name is one of the database
