"""A table of a SQLite database, or the rows of a query, as the place of a device's data.

An idle agent imports this: it reads no file, and imports neither numpy nor sqlite3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from covey.agent.data_place import FORM, Source
from covey.shared.errors import DataError
from covey.shared.own_code.plugins import SQLITE

if TYPE_CHECKING:
    from covey.agent.data.table_rows import TableFile
    from covey.shared.scenario.columns import Notation

KEYS = ("table", "query")


class SqlitePath(Source):
    """The file of a database, and which of its rows count."""

    table: str = ""
    query: str = ""

    def __str__(self) -> str:
        key = "table" if self.table else "query"
        return f"{SQLITE}{super().__str__()}?{key}={self.table or self.query}"

    def __fspath__(self) -> str:
        return str(self.file)

    @property
    def file(self) -> Path:
        """The database."""
        return Path(super().__str__())

    @property
    def typed(self) -> str:
        key, value = ("table", self.table) if self.table else ("query", self.query)
        return f"{SQLITE}{self.file.resolve()}?{key}={value}"

    @contextmanager
    def opened(self, names: Sequence[str], least: int, notation: Notation) -> Iterator[TableFile]:
        from covey.extras.formats import layouts, sqlite_rows

        key = {"table": self.table, "query": self.query}
        with sqlite_rows.open_sqlite(self, self.file, least, notation, **key) as table:
            is_laid_out = notation.join or notation.pivot
            yield layouts.laid_out(table, self, notation, names) if is_laid_out else table


def database(data: str) -> SqlitePath:
    """The database that the value of `--data` names. DataError if the file, the table or the query is missing in it."""
    file, _, rest = data.removeprefix(SQLITE).partition("?")
    key, _, value = rest.partition("=")
    if not file or key not in KEYS or not value.strip():
        raise DataError(f"{data}: expected {FORM}", public="the database is named in another form")
    place = SqlitePath(file)
    setattr(place, key, value)
    return place


def sizes_of_database(data: str) -> tuple[int, int, int]:
    """How many files a database has, their bytes and their newest time of modification (ns).

    A second one holds its newest rows until they are written into the first.
    """
    file = data.removeprefix(SQLITE).partition("?")[0]
    entries = size_bytes = newest_ns = 0
    for path in (file, f"{file}-wal"):
        try:
            found = Path(path).stat()
        except OSError:
            continue
        entries += 1
        size_bytes += found.st_size
        newest_ns = max(newest_ns, found.st_mtime_ns)
    return entries, size_bytes, newest_ns
