"""Where the data of a device lie, and whether they have changed since they were read.

An idle agent imports this: it reads no file, and imports no numpy. A place that is no file of its own is a `Source`, which an
extra knows: a table of a database, or the files of a folder that grows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from covey.shared import extras
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
        sizes = extras.part("formats", "sqlite_place", DATABASE).sizes_of_database(data)
        return Fingerprint(*sizes)
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
DATABASE = "a SQLite database"
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
_Path: type = type(Path())  # that of this system, of which a class can be made before Python 3.12


class Source(_Path):  # type: ignore[misc]
    """A place whose rows are one table, and that is no file."""

    written: Path | None = None  # a text file whose first bytes show how its tables are written

    @property
    def typed(self) -> str:
        """The value of `--data` that names it from any folder."""
        raise NotImplementedError

    def opened(
        self, names: Sequence[str], least: int, notation: Any
    ) -> AbstractContextManager[Any]:
        """The table, open while its rows are read: `open_table` of this place."""
        raise NotImplementedError

    def read(
        self,
        part: Callable[[Path], Any],
        settings: tuple[Hashable, ...],
        words: Any,
        *,
        has_times: bool,
    ) -> Any:
        """All rows: `read_table` of this place.

        Args:
            part: reads a file, or this place, and adds the words of its columns to `words`.
            settings: all on which the rows depend, but the files.
            words: of an earlier part of the same data.
            has_times: moments are times; otherwise they number the rows.
        """
        return part(self)


class UnfinishedFile(_Path):  # type: ignore[misc]
    """The newest file of a growing folder, whose last line is still being written."""


def place_of(data: str | Path) -> Path:
    """The place that the value of `--data` names. DataError for a database that is named in another form."""
    if isinstance(data, Source):
        return data
    if str(data).startswith(SQLITE):
        database: Path = extras.part("formats", "sqlite_place", DATABASE).database(str(data))
        return database
    place = Path(data)
    if place.is_dir() and extras.has("formats"):
        place = extras.part("formats", "growing").growing_folder(place) or place
    return place


def text_of(place: Path) -> Path | None:
    """The text file whose first bytes show how a table is written; None for tables whose values have types."""
    if isinstance(place, Source):
        return text_of(place.written) if place.written else None
    is_text = place.suffix.lower() in NAMED_TEXTS
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
