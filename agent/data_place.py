"""Data that lie elsewhere than in one file: a table of a SQLite database, or a folder to which a gateway adds a file a day.

An idle agent imports this: it reads no file, and imports neither numpy nor sqlite3.
"""

from __future__ import annotations

import re
from pathlib import Path

from covey.shared.errors import DataError

SQLITE = "sqlite:"
FORM = "sqlite:FILE?table=NAME or sqlite:FILE?query=SELECT..."
KEYS = ("table", "query")
TEXTS = (".csv", ".tsv")
DAILY = (*TEXTS, ".parquet")
# a year and a month, or a day, as in 2026-11-27.csv, readings_202611.parquet
DATE = re.compile(r"(?<!\d)(19|20)\d\d[-_.]?(0[1-9]|1[0-2])([-_.]?(0[1-9]|[12]\d|3[01]))?(?!\d{3})")

_Path: type = type(Path())  # that of this system, of which a class can be made before Python 3.12


class SqlitePath(_Path):  # type: ignore[misc]
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


class GrowingFolder(_Path):  # type: ignore[misc]
    """A folder of tables with dates in their names; the rows of all of them, in the order of the names, are one table."""

    parts: tuple[Path, ...] = ()


def sqlite_path(data: str) -> SqlitePath | None:
    """The database that the value of `--data` names; None if it names something else.

    Raises:
        DataError: the file, the table or the query is missing in it.
    """
    if not data.startswith(SQLITE):
        return None
    file, _, rest = data.removeprefix(SQLITE).partition("?")
    key, _, value = rest.partition("=")
    if not file or key not in KEYS or not value.strip():
        raise DataError(f"{data}: expected {FORM}", public="the database is named in another form")
    place = SqlitePath(file)
    setattr(place, key, value)
    return place


def daily_files(folder: Path) -> tuple[Path, ...]:
    """The files of a growing folder, in the order of their names: two or more tables of one kind, all with a date in their names.

    Empty for any other folder. Files without a byte are left out: a gateway has just made them.
    """
    files = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file()]
    kinds = {path.suffix.lower() for path in files}
    if len(files) < 2 or len(kinds) != 1 or not kinds <= set(DAILY):
        return ()
    if not all(DATE.search(path.stem) for path in files):
        return ()
    return tuple(path for path in sorted(files) if path.stat().st_size)


def place_of(data: str | Path) -> Path:
    """The place that the value of `--data` names. DataError for a database that is named in another form."""
    if isinstance(data, SqlitePath | GrowingFolder):
        return data
    database = sqlite_path(str(data))
    if database is not None:
        return database
    place = Path(data)
    if place.is_dir() and (parts := daily_files(place)):
        growing = GrowingFolder(place)
        growing.parts = parts
        return growing
    return place


def text_of(place: Path) -> Path | None:
    """The text file whose first bytes show how a table is written; None for tables whose values have types."""
    if isinstance(place, GrowingFolder):
        place = place.parts[0]
    return place if place.suffix.lower() in TEXTS and not isinstance(place, SqlitePath) else None
