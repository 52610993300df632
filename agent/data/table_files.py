"""A table by the name of its place: a file, or a source that an extra knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from covey.agent.data.table_rows import TableFile, open_csv, open_parquet
from covey.agent.data_place import Source, is_json
from covey.shared import extras
from covey.shared.scenario.columns import Notation

USUAL = Notation()


@contextmanager
def open_table(
    path: Path, names: Sequence[str] = (), least: int = 2, notation: Notation = USUAL
) -> Iterator[TableFile]:
    """A text file, JSON lines, a `.parquet` file or a source, open while its rows are read.

    Args:
        path: the file.
        names: of columns that the table should have; they help to recognise a CSV file without a header.
        least: columns that the table needs: a label and a feature, or 1 for a table without a label.
        notation: how its texts spell numbers and times.

    Raises:
        DataError: the file cannot be read, has no header, no rows or too few columns, or names a column twice.
    """
    if isinstance(path, Source):
        with path.opened(names, least, notation) as table:
            yield table
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
    if is_json(path):
        json_rows = extras.part("formats", "json_rows", "JSON")
        with json_rows.open_json(path, names, least, notation) as table:
            yield table
    elif path.suffix.lower() == ".parquet":
        with open_parquet(path, least, notation) as table:
            yield table
    else:
        with open_csv(path, names, least, notation) as table:
            yield table
