"""Data that lie elsewhere than in one file: a table of a SQLite database, or a folder to which a gateway adds a file a day.

An idle agent imports this: it reads no file, and imports neither numpy nor sqlite3.

Notices when the data of this device changes: by the size and the time of modification of its files.

An idle agent imports this: it reads no file, and imports no numpy.
"""

from __future__ import annotations

import os
import re
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from covey.shared.errors import DataError
from covey.shared.own_code.plugins import SQLITE
from covey.shared.storage import json_text

# of a folder that are looked at; of a larger one, the first in the order of the disk
MAX_ENTRIES = 5000


class Fingerprint(NamedTuple):
    """Enough of some files to notice that they were changed, replaced, added or removed."""

    entries: int  # files and folders
    size_bytes: int  # of all files
    newest_ns: int  # the newest time of modification, in nanoseconds since the epoch


NOTHING = Fingerprint(0, 0, 0)  # the path does not exist, or cannot be read


def fingerprint(data: str) -> Fingerprint | None:
    """The fingerprint of the value of `--data`; None for code, whose data only it knows."""
    if data.startswith(SQLITE):
        return _of_database(data)
    path = Path(data)
    is_code = ":" in data and not path.exists()
    if is_code:
        return None
    try:
        found = path.stat()
    except OSError:
        return NOTHING
    total = Fingerprint(1, found.st_size, found.st_mtime_ns)
    if path.is_dir():
        total = _with_contents(path, total)
    return total


def _of_database(data: str) -> Fingerprint:
    """Of the file of a database, and of that which holds its newest rows until they are written into it."""
    file = data.removeprefix(SQLITE).partition("?")[0]
    entries, size_bytes, newest_ns = NOTHING
    for path in (file, f"{file}-wal"):
        try:
            found = Path(path).stat()
        except OSError:
            continue
        entries += 1
        size_bytes += found.st_size
        newest_ns = max(newest_ns, found.st_mtime_ns)
    return Fingerprint(entries, size_bytes, newest_ns)


def _with_contents(folder: Path, total: Fingerprint) -> Fingerprint:
    """The fingerprint of a folder with everything below it. Files that vanish meanwhile are left out."""
    entries, size_bytes, newest_ns = total
    waiting = [folder]
    while waiting and entries < MAX_ENTRIES:
        try:
            with os.scandir(waiting.pop()) as listed:
                for entry in listed:
                    found = entry.stat(follow_symlinks=False)
                    entries += 1
                    newest_ns = max(newest_ns, found.st_mtime_ns)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        size_bytes += found.st_size
                    if entries >= MAX_ENTRIES:
                        break
        except OSError:
            continue
    return Fingerprint(entries, size_bytes, newest_ns)


class DataWatch:
    """Compares the data with what it was when it was read last.

    Args:
        data: the value of `--data`; None for a simulated agent, whose data never changes.
    """

    def __init__(self, data: str | None) -> None:
        self._data = data
        self._known = self._look()  # of the data that was read last
        self._seen = self._known  # at the newest look

    def __repr__(self) -> str:
        return f"<DataWatch of {self._data}>"

    @property
    def is_gone(self) -> bool:
        """Whether there was nothing where the data should be."""
        return self._known is not None and self._known.size_bytes == 0

    def has_changed(self, *, at_once: bool = False) -> bool:
        """Whether the data has changed since it was read.

        Files that are still being written count at the next look; `at_once`: they count now, for they are about to be
        read.
        """
        now = self._look()
        is_settled = at_once or now == self._seen
        self._seen = now
        if now == self._known or not is_settled:
            return False
        self._known = now
        return True

    def _look(self) -> Fingerprint | None:
        return None if self._data is None else fingerprint(self._data)


FORM = "sqlite:FILE?table=NAME or sqlite:FILE?query=SELECT..."
KEYS = ("table", "query")
JSON_LINES = (".jsonl", ".ndjson")
TEXTS = (".csv", ".tsv", *JSON_LINES)
NAMED_TEXTS = (
    *TEXTS,
    ".txt",
    ".dat",
    ".data",
    ".log",
    ".json",
)  # which a folder may hold next to its data
DAILY = (*TEXTS, ".parquet")
LONGEST_LINE = 1 << 16  # bytes
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
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


class UnfinishedFile(_Path):  # type: ignore[misc]
    """The newest file of a growing folder, whose last line is still being written."""


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

    Empty for any other folder. Files without a byte are left out, and those with one more suffix, such as .csv.tmp: a gateway
    has just made them.

    Raises:
        DataError: one of them is compressed.
    """
    files = [
        path
        for path in folder.iterdir()
        if not path.name.startswith(".") and path.is_file() and not _is_unfinished(path)
    ]
    packed = [path for path in files if path.suffix.lower() in COMPRESSED]
    files = [path for path in files if path not in packed]
    kinds = {path.suffix.lower() for path in files}
    if len(files) < 2 or len(kinds) != 1 or not kinds <= set(DAILY):
        return ()
    if not all(DATE.search(path.stem) for path in files):
        return ()
    if packed:
        fault = "is compressed; unpack it, or move it elsewhere: its rows would be missed"
        raise DataError(f"{packed[0]} {fault}", public=f"a file of the folder {fault}")
    filled = [path for path in sorted(files) if path.stat().st_size]
    return (*filled[:-1], *chain.from_iterable(map(_newest, filled[-1:])))


def _newest(path: Path) -> tuple[Path, ...]:
    """The newest file; nothing while it has no whole line."""
    with path.open("rb") as file:
        begin = file.read(LONGEST_LINE)
        file.seek(-1, os.SEEK_END)
        end = file.read()
    if path.suffix.lower() not in TEXTS or end in (b"\n", b"\r"):
        return (path,)
    return (UnfinishedFile(path),) if b"\n" in begin or b"\r" in begin else ()


def _is_unfinished(path: Path) -> bool:
    """Whether a file has the name of a table and one more suffix, which is none of a compressed file."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return len(suffixes) > 1 and suffixes[-2] in DAILY and suffixes[-1] not in (*DAILY, *COMPRESSED)


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
    is_text = place.suffix.lower() in NAMED_TEXTS and not isinstance(place, SqlitePath)
    return place if is_text and not is_json(place) else None


def is_json(path: Path) -> bool:
    """Whether a file has an object of JSON for each row: one a line, or all in a list."""
    if path.suffix.lower() in JSON_LINES:
        return True
    return path.suffix.lower() == ".json" and json_text.holds_rows(path)


def is_named_table(path: Path) -> bool:
    """Whether a file that is named is read as a table, although a folder may hold such files next to its data."""
    suffix = path.suffix.lower()
    return suffix in NAMED_TEXTS and (suffix != ".json" or is_json(path))
