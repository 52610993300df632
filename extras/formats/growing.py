"""A folder to which a gateway adds a file a day: the rows of all its files are one table, and only what is new is read again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from covey.agent.data.cells import BadCells
from covey.agent.data.table_files import open_table
from covey.agent.data.table_rows import Block, TableFile, listed
from covey.agent.data.tables import FileTable, Vocabularies
from covey.agent.data_place import DAILY, TEXTS, Source, UnfinishedFile
from covey.shared.errors import DataError
from covey.shared.scenario.columns import Notation

LONGEST_LINE = 1 << 16  # bytes
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# a year and a month, or a day, as in 2026-11-27.csv, readings_202611.parquet
DATE = re.compile(r"(?<!\d)(19|20)\d\d[-_.]?(0[1-9]|1[0-2])([-_.]?(0[1-9]|[12]\d|3[01]))?(?!\d{3})")


class GrowingFolder(Source):
    """A folder of tables with dates in their names; the rows of all of them, in the order of the names, are one table."""

    parts: tuple[Path, ...] = ()

    @contextmanager
    def opened(self, names: Sequence[str], least: int, notation: Notation) -> Iterator[TableFile]:
        yield GrowingTable(self, names, least, notation)

    def read(
        self,
        part: Callable[[Path], FileTable],
        settings: tuple[Hashable, ...],
        words: Vocabularies,
        *,
        has_times: bool,
    ) -> FileTable:
        tables = KEPT.of(self, (str(self), *settings), words, part)
        return replace(joined(self, tables, has_times=has_times), vocabularies=words)


def growing_folder(folder: Path) -> GrowingFolder | None:
    """The folder if it grows; None for any other. DataError as `daily_files`."""
    parts = daily_files(folder)
    if not parts:
        return None
    growing = GrowingFolder(folder)
    growing.parts = parts
    growing.written = parts[0]
    return growing


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


class JoinedRows:
    """The rows of a growing folder's files as rows of one table: numbered through, with the same columns in all files."""

    def __init__(self, folder: GrowingFolder) -> None:
        self._first = folder.parts[0]
        self._columns: tuple[str, ...] | None = None  # of the first file
        self._before = 0  # rows of the files before the present one
        self._newest = 0  # row of the present file

    def enter(self, part: Path, columns: Sequence[str]) -> None:
        """Begin the next file. DataError unless it has the columns of the first one, in their order."""
        self._before += self._newest
        self._newest = 0
        if self._columns is None:
            self._columns = tuple(columns)
        if tuple(columns) == self._columns:
            return
        differing = sorted({*columns} ^ {*self._columns})
        how = (
            f"only one of them has {listed(differing)}"
            if differing
            else "they are in another order"
        )
        raise DataError(
            f"{part}: its columns are not those of {self._first.name}: {how}; give all files of the folder the same columns",
            public="the files of the folder have different columns",
        )

    def numbers(self, rows: Sequence[int]) -> Sequence[int]:
        """Rows of the present file, from 1, as rows of the whole."""
        self._newest = rows[-1] if rows else self._newest
        return [self._before + row for row in rows]


class GrowingTable(TableFile):
    """The files of a growing folder, one after the other."""

    def __init__(
        self, folder: GrowingFolder, names: Sequence[str], least: int, notation: Notation
    ) -> None:
        self._folder = folder
        self._options = (names, least, notation)
        with open_table(folder.parts[0], *self._options) as first:
            self.columns = first.columns
            self.nameless, self.separator = first.nameless, first.separator

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        joined = JoinedRows(self._folder)
        for part in self._folder.parts:
            with open_table(part, *self._options) as file:
                joined.enter(part, sorted(file.columns))
                for block in file.blocks(names, faults):
                    yield replace(block, rows=joined.numbers(block.rows))
                self.left_out.update(file.left_out)


@dataclass(frozen=True)
class _Part:
    """A file of a growing folder, as it was read."""

    stamp: tuple[type, str, int, int]  # kind of path, name, size, time of modification
    table: FileTable
    words: Vocabularies  # of this file and those before it


class KeptParts:
    """The files of the newest growing folder, so that only those are read that are new, or lie behind one that has changed."""

    def __init__(self) -> None:
        self._settings: tuple[Hashable, ...] = ()
        self._parts: list[_Part] = []

    def of(
        self,
        folder: GrowingFolder,
        settings: tuple[Hashable, ...],
        vocabularies: Vocabularies,
        read: Callable[[Path], FileTable],
    ) -> list[FileTable]:
        """The tables of all files, in the order of their names.

        Args:
            folder: to read.
            settings: all on which the tables depend, but the files.
            vocabularies: empty; gets the words of all files.
            read: reads one file, and adds its words to `vocabularies`.
        """
        if settings != self._settings or vocabularies:
            self._settings, self._parts = settings, []
        stamps = [_stamp(file) for file in folder.parts]
        same = 0
        while same < min(len(stamps), len(self._parts)) and self._parts[same].stamp == stamps[same]:
            same += 1
        del self._parts[same:]
        if self._parts:
            vocabularies.update(deepcopy(self._parts[-1].words))
        for file, stamp in zip(folder.parts[same:], stamps[same:], strict=True):
            table = read(file)
            self._parts.append(_Part(stamp, table, deepcopy(vocabularies)))
        return [part.table for part in self._parts]


KEPT = KeptParts()


def _stamp(file: Path) -> tuple[type, str, int, int]:
    found = file.stat()
    return type(file), file.name, found.st_size, found.st_mtime_ns


def joined(folder: GrowingFolder, tables: Sequence[FileTable], *, has_times: bool) -> FileTable:
    """The rows of all files as one table. DataError if two have other columns."""
    through = JoinedRows(folder)
    rows: list[int] = []
    for file, table in zip(folder.parts, tables, strict=True):
        through.enter(file, table.selection.names)
        rows += through.numbers(table.rows)
    moments = [one for table in tables for one in table.moments]
    if moments and not has_times:
        moments = list(map(float, rows))
    return replace(
        tables[0],
        features=np.concatenate([table.features for table in tables]),
        spelled=[one for table in tables for one in table.spelled],
        rows=rows,
        groups=[one for table in tables for one in table.groups],
        moments=moments,
    )
