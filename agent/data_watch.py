"""Notices when the data of this device changes: by the size and the time of modification of its files.

An idle agent imports this: it reads no file, and imports no numpy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from covey.agent.data_place import SQLITE

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
