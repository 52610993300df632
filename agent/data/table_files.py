"""A table by the name of its place: a file, the files of a growing folder, or a table of a database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from covey.agent.data.cells import BadCells
from covey.agent.data.table_rows import Block, TableFile, listed, open_csv, open_parquet
from covey.agent.data_place import GrowingFolder, SqlitePath, is_json
from covey.shared import extras
from covey.shared.errors import DataError
from covey.shared.scenario.columns import Notation

USUAL = Notation()


@contextmanager
def open_table(
    path: Path, names: Sequence[str] = (), least: int = 2, notation: Notation = USUAL
) -> Iterator[TableFile]:
    """A text file, JSON lines, a `.parquet` file, a table of a database, or all files of a growing folder, open while its rows are
    read.

    Args:
        path: the file.
        names: of columns that the table should have; they help to recognise a CSV file without a header.
        least: columns that the table needs: a label and a feature, or 1 for a table without a label.
        notation: how its texts spell numbers and times.

    Raises:
        DataError: the file cannot be read, has no header, no rows or too few columns, or names a column twice.
    """
    if isinstance(path, GrowingFolder):
        yield _GrowingFolder(path, names, least, notation)
        return
    with _opened(path, names, least, notation) as table:
        if notation.join or notation.pivot:
            layouts = extras.part("formats", "layouts", "task.read.pivot and join")
            yield layouts.laid_out(table, path, notation, names)
        else:
            yield table


@contextmanager
def _opened(
    path: Path, names: Sequence[str], least: int, notation: Notation
) -> Iterator[TableFile]:
    """A table as it is stored. Arguments and errors are those of `open_table`."""
    if isinstance(path, SqlitePath):
        sqlite = extras.part("formats", "sqlite_rows", "a SQLite database")
        with sqlite.open_sqlite(path, least, notation) as table:
            yield table
    elif is_json(path):
        json_rows = extras.part("formats", "json_rows", "JSON")
        with json_rows.open_json(path, names, least, notation) as table:
            yield table
    elif path.suffix.lower() == ".parquet":
        with open_parquet(path, least, notation) as table:
            yield table
    else:
        with open_csv(path, names, least, notation) as table:
            yield table


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


class _GrowingFolder(TableFile):
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
