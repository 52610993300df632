"""The rows of a CSV or Parquet file as blocks of columns, so that both kinds of file are read by the same code."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from covey.agent.data.cells import BadCell, BadCells, Cells
from covey.agent.data.limits import check_size, unpacked_limit
from covey.agent.data.notation import encoding_of, named_separator, plain, separator_of
from covey.agent.data.values import number_written
from covey.shared.errors import DataError, install
from covey.shared.scenario.columns import LABEL_NAMES, Notation
from covey.shared.sentences import some

BLOCK_ROWS = 4096
MAX_NAMES = 8  # in a message
MAX_COLUMNS = 4096
ROW_BYTES = 64  # of a row's number and label, as Python's own objects
VALUE_BYTES = 8  # of a feature: float32, twice while its blocks are put together


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table, by column."""

    rows: Sequence[int]  # (n,) their numbers, from 1 below the header
    lines: Sequence[int]  # (n,) their lines in the file, from 1; 0 in a file that is no text
    cells: Mapping[str, Cells]  # by name of the column, (n,) each


class TableFile:
    """An open table. `columns` are the names in its header, without empty ones; `blocks` gives its rows, once."""

    columns: tuple[str, ...]
    nameless: int = 0  # columns without a name, which are never read
    separator: str = ""  # between the cells of a text file

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The place of each column in the file, from 0."""
        return {name: position for position, name in enumerate(self.columns)}

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        """The rows, with the cells of the named columns. Rows of another length become faults."""
        raise NotImplementedError


def check_columns(path: Path, columns: Sequence[str], least: int) -> None:
    """DataError for too few or too many columns, and for two of one name."""
    if len(columns) < least:
        fault = f"{len(columns)} columns; expected a label and at least one feature"
        raise DataError(f"{path}: {fault}", public=f"the table has {fault}")
    _check_width(path, len(columns))
    check_names(path, columns)


def check_names(path: Path, columns: Sequence[str]) -> None:
    """DataError if two columns have one name."""
    repeated = [column for column, count in Counter(columns).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path}: columns occur twice: {listed(sorted(repeated))}; rename or remove one of "
            "them",
            public="two columns have one name",
        )


def _check_width(path: Path, count: int) -> None:
    """DataError for a table with more columns than are read: each of them costs time in every block of rows."""
    if count > MAX_COLUMNS:
        fault = f"{count} columns; expected at most {MAX_COLUMNS}"
        raise DataError(
            f"{path}: {fault}: leave some out, or save the features as an array x in an .npz file",
            public=f"the table has {fault}",
        )


def listed(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return some([repr(name) for name in names], MAX_NAMES)


# -- CSV -----------------------------------------------------------------------------------------------------


class _CsvFile(TableFile):
    def __init__(
        self, header: Sequence[str], rows: Any, notation: Notation, separator: str
    ) -> None:
        self._width = len(header)
        self.positions = {name: place for place, name in enumerate(header) if name}
        self.columns = tuple(self.positions)
        self.nameless = self._width - len(self.columns)
        self.separator = separator
        self._rows = rows  # a csv reader below the header
        self._notation = notation

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        positions = {name: self.positions[name] for name in names}
        numbered = self._numbered(faults)
        while block := list(islice(numbered, BLOCK_ROWS)):
            rows, lines, cells = zip(*block, strict=True)
            by_position = list(zip(*cells, strict=True))
            columns = {
                name: plain(by_position[position], self._notation)
                for name, position in positions.items()
            }
            yield Block(rows, lines, columns)

    def _numbered(self, faults: BadCells) -> Iterator[tuple[int, int, list[str]]]:
        """Number, line and cells of each row that has as many cells as the header; empty lines are skipped.

        Empty cells behind the last column count as none: spreadsheets write them.
        """
        number = 0
        for cells in self._rows:
            if not cells:
                continue
            number += 1
            line = self._rows.line_num
            if len(cells) > self._width and not any(map(str.strip, cells[self._width :])):
                del cells[self._width :]
            if len(cells) == self._width:
                yield number, line, cells
                continue
            fault = f"{len(cells)} cells, the header has {self._width} columns"
            faults.add(
                BadCell(
                    number,
                    -1,
                    line,
                    column="",
                    fault=fault,
                    kind=f"has {fault}",
                    advice="correct the row",
                )
            )


# the first bytes of files that are called tables -> what they are, and what to do
OTHER_FILES = {
    b"PK\x03\x04": "an Excel workbook, or another zip archive; save its sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save its sheet as CSV",
    b"PAR1": "a Parquet file; give it the suffix .parquet",
    b"SQLite format 3": "a SQLite database; name it as sqlite:FILE?table=NAME",
    b"%PDF": "a PDF document; export its table as CSV",
    b"\x1f\x8b": "compressed with gzip; unpack it",
    b"<!doctype html": "a web page, perhaps of a login; download the table itself",
    b"<html": "a web page, perhaps of a login; download the table itself",
    **dict.fromkeys(
        (b"<head", b"<body", b"<meta", b"<table", b"<!--"), "a web page; download the table itself"
    ),
    b"<?xml": "an XML document; export its table as CSV",
    b"[{": "JSON; save it as CSV",
    b'{"': "JSON; save it as CSV",
}


def _check_is_text(path: Path) -> None:
    """DataError for a file that is something else than its suffix claims."""
    with path.open("rb") as file:
        begin = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip()
    for mark, what in OTHER_FILES.items():
        if begin.lower().startswith(mark.lower()):
            raise DataError(f"{path}: not a table but {what}", public=f"the file is {what}")


@contextmanager
def open_csv(
    path: Path, names: Sequence[str], least: int, notation: Notation
) -> Iterator[TableFile]:
    _check_is_text(path)
    encoding = encoding_of(path, notation)
    try:
        with path.open(newline="", encoding=encoding) as file:
            line = file.readline()
            separator = separator_of(line, notation)
            file.seek(0)
            rows = csv.reader(file, delimiter=separator)
            if named_separator(line) is not None:
                next(rows)
            header = [cell.strip() for cell in next(rows, [])]
            _check_csv_header(path, header, names, least)
            yield _CsvFile(header, rows, notation, separator)
    except UnicodeError as error:
        fault = f"not {encoding.removesuffix('-sig').upper()} text"
        advice = "save the table as UTF-8, or name its encoding in task.read.encoding"
        raise DataError(
            f"{path}: {fault} ({error}); {advice}", public=f"the table is {fault}; {advice}"
        ) from None
    except csv.Error as error:
        raise DataError(
            f"{path}: not a CSV table ({error}); save it as CSV", public="the table is not CSV text"
        ) from None


def _check_csv_header(path: Path, cells: Sequence[str], names: Sequence[str], least: int) -> None:
    """DataError if the first line of a CSV file is empty, holds numbers or names a column twice."""
    columns = [cell for cell in cells if cell]
    _check_width(path, len(cells))
    if not columns:
        raise DataError(
            f"{path}: empty; expected a first line with column names and one line per sample",
            public="the table is empty",
        )
    # A first sample's label may be a word, so that the last column proves nothing. But a label's usual name, or a name
    # that is asked for, occurs in a header only.
    has_a_known_name = bool(names) or len(columns) == 1
    for column in columns:
        if column.lower() in LABEL_NAMES:
            has_a_known_name = True
    examined = columns if has_a_known_name else columns[:-1]
    if all(number_written(column) is not None for column in examined):
        fault = "the first line holds numbers; expected column names: add such a line"
        raise DataError(f"{path}: {fault}", public=fault)
    if len(columns) < least:
        expected = "expected a label and at least one feature"
        if " " in columns[0]:
            expected += ", with commas, semicolons, tabs or bars between the cells of each line"
        raise DataError(
            f"{path}: one column only ({columns[0]!r:.60}); {expected}",
            public=f"the table has one column only; {expected}",
        )
    check_names(path, columns)


# -- parquet -------------------------------------------------------------------------------------------------


class _ParquetFile(TableFile):
    def __init__(self, file: Any, columns: tuple[str, ...], notation: Notation) -> None:
        self.columns = columns
        self._file = file
        self._notation = notation

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        number = 0
        for batch in self._file.iter_batches(BLOCK_ROWS, columns=list(names)):
            count = batch.num_rows
            rows = range(number + 1, number + count + 1)
            number += count
            cells = {name: plain(_values(batch.column(name)), self._notation) for name in names}
            yield Block(rows, [0] * count, cells)


@contextmanager
def open_parquet(path: Path, least: int, notation: Notation) -> Iterator[TableFile]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        fault = f"reading Parquet needs pyarrow: {install('parquet')}"
        raise DataError(f"{path}: {fault}", public=fault) from None
    try:
        file = pq.ParquetFile(path)
        columns = _parquet_header(path, file, least)
        # a word that occurs often is stored once: read as a dictionary, it is held once too
        texts: list[str] = []
        for field in file.schema_arrow:
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                texts.append(field.name)
        yield _ParquetFile(pq.ParquetFile(path, read_dictionary=texts), columns, notation)
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        fault = "not a Parquet file, or cut short"
        raise DataError(f"{path}: {fault} ({error}); copy it again", public=fault) from None


def _parquet_header(path: Path, file: Any, least: int) -> tuple[str, ...]:
    """The columns; DataError for a table that is empty, ambiguous, nested or too large."""
    columns = tuple(name for name in file.schema_arrow.names if name.strip())
    rows = file.metadata.num_rows
    if rows == 0 or len(columns) < least:
        fault = f"{rows} rows, {len(columns)} columns; expected samples with a label and features"
        raise DataError(f"{path}: {fault}", public=fault)
    _check_width(path, len(columns))
    check_names(path, columns)
    limit = unpacked_limit(path)
    check_size(path, rows * (len(columns) * VALUE_BYTES + ROW_BYTES), limit)
    stored_bytes = 0
    for group in range(file.metadata.num_row_groups):
        stored_bytes += file.metadata.row_group(group).total_byte_size
    check_size(path, stored_bytes, limit)
    for number, field in enumerate(file.schema_arrow, start=1):
        if field.type.num_fields:
            expected = "expected plain values: remove the column or spread it over several"
            raise DataError(
                f"{path}: column {field.name!r} is {field.type}; {expected}",
                public=f"column {number} is nested; {expected}",
            )
    return columns


def _values(column: Any) -> list[Any]:
    """The values of a column, which may be stored as indices into a dictionary. Equal words share one string."""
    if not hasattr(column, "dictionary"):
        values: list[Any] = column.to_pylist()
        return values
    words = column.dictionary.to_pylist()
    found: list[Any] = []
    for index in column.indices.to_pylist():
        found.append(None if index is None else words[index])
    return found
