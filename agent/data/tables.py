"""Tables: CSV and Parquet. One column is the label, all others are features, shape (width,)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Dataset, dataset, encode
from covey.agent.data.limits import check_size, unpacked_limit
from covey.shared.errors import DataError

MAX_FLOAT32 = float(np.finfo(np.float32).max)
LABEL_NAMES = ("label", "class", "target", "y")  # in the order in which they are tried
MISSING_LABELS = frozenset({"", "nan", "na", "null"})
DELIMITERS = ",;\t"
MAX_NAMES = 8  # in a message

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """Where a row of a file is."""

    path: Path
    number: int  # from 1, below the header
    line: int = 0  # from 1; 0 in a file that is no text

    def __str__(self) -> str:
        line = f" (line {self.line})" if self.line else ""
        return f"{self.path}: row {self.number}{line}"


@dataclass(frozen=True)
class Header:
    """The columns of a table, and which of them is the label."""

    columns: tuple[str, ...]
    label_position: int

    @property
    def label(self) -> str:
        """The name of the label column."""
        return self.columns[self.label_position]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of all other columns, in their order."""
        before = self.columns[: self.label_position]
        after = self.columns[self.label_position + 1 :]
        return before + after

    def bad_cell(self, row: Row, position: int, seen: str, kind: str) -> DataError:
        """A refusal: the column by name for the terminal, by number elsewhere, because names may be private too."""
        column = self.columns[position]
        return DataError(
            f"{row}, column {column!r}: {seen}",
            public=f"row {row.number}, column {position + 1} {kind}",
        )


@dataclass(frozen=True)
class Table:
    """What a file holds."""

    columns: tuple[str, ...]  # of the features
    label: str  # the label column
    features: Float32  # (n, width)
    spelled: list[str]  # (n,) labels as the file spells them


def load_table(
    path: Path,
    label: str | None = None,
    test: Path | None = None,
) -> Dataset:
    """A `.csv`, `.tsv` or `.parquet` file.

    Args:
        path: the training samples, or all of them.
        label: the label column; None: the one called label, class, target or y, else the last.
        test: a second file with the same columns as test part.

    Raises:
        DataError: the file cannot be read, or a cell is not what its column needs; it names row and column.
    """
    train_table = _read(path, label)
    source = f"{path}, label column {train_table.label!r}"
    if test is None:
        targets, _, labels = encode(train_table.spelled)
        return dataset(train_table.features, targets, source=source, labels=labels)
    test_table = _read(test, train_table.label)
    if test_table.columns != train_table.columns:
        raise DataError(
            f"{test}: columns {_listed(test_table.columns)} differ from {path.name}: "
            f"{_listed(train_table.columns)}; give both files the same columns in the same order",
            public="the columns of the test table differ from those of the training table",
        )
    targets, test_targets, labels = encode(train_table.spelled, test_table.spelled)
    return dataset(
        train_table.features,
        targets,
        (test_table.features, test_targets),
        source=source,
        labels=labels,
    )


def label_column(columns: Sequence[str], wish: str | None, where: str) -> int:
    """Position of the label column: the one that is asked for, else by its usual names, else the last.

    Raises:
        DataError: the table has no column of the name that is asked for.
    """
    if wish is not None:
        if wish not in columns:
            raise DataError(
                f"{where}: no label column {wish!r}; the columns are {_listed(columns)}: choose "
                "one of them with --label",
                public=f"the label column is not among the {len(columns)} columns of the table",
            )
        return list(columns).index(wish)
    lowered = [column.strip().lower() for column in columns]
    for name in LABEL_NAMES:
        if name in lowered:
            return lowered.index(name)
    return len(columns) - 1


def _read(path: Path, label: str | None) -> Table:
    if path.suffix == ".parquet":
        return _read_parquet(path, label)
    return _read_csv(path, label)


# -- CSV -----------------------------------------------------------------------------------------------------


def _read_csv(path: Path, label: str | None) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first_line = file.readline()
            file.seek(0)
            delimiter = max(DELIMITERS, key=first_line.count)
            rows = csv.reader(file, delimiter=delimiter)
            header = _csv_header(path, next(rows, []), label)
            return _csv_table(path, header, rows)
    except UnicodeDecodeError as error:
        fault = "not UTF-8 text; save the table as UTF-8"
        raise DataError(
            f"{path}: {fault} ({error.reason})",
            public=f"the table is {fault}",
        ) from None
    except csv.Error as error:
        raise DataError(
            f"{path}: not a CSV table ({error}); save it as CSV",
            public="the table is no CSV text",
        ) from None


def _csv_header(path: Path, cells: list[str], label: str | None) -> Header:
    """The first line of a CSV file. DataError if it is empty, holds numbers or names a column twice."""
    columns = tuple(cell.strip() for cell in cells)
    if not any(columns):
        raise DataError(
            f"{path}: empty; expected a first line with column names and one line per sample",
            public="the table is empty",
        )
    if len(columns) < 2:
        expected = "expected a label and at least one feature"
        raise DataError(
            f"{path}: one column only ({columns[0]!r}); {expected}",
            public=f"the table has one column only; {expected}",
        )
    # A first sample's label may be a word, so that the last column proves nothing. But a label's usual name, or the
    # one that is asked for, occurs in a header only.
    names_its_label = label is not None
    for column in columns:
        if column.lower() in LABEL_NAMES:
            names_its_label = True
    examined = columns if names_its_label else columns[:-1]
    numeric = [_is_number(column) for column in examined]
    if all(numeric):
        fault = "the first line holds numbers; expected column names: add such a line"
        raise DataError(f"{path}: {fault}", public=fault)
    repeated: set[str] = set()
    for column in columns:
        if columns.count(column) > 1:
            repeated.add(column)
    if repeated:
        raise DataError(
            f"{path}: columns occur twice: {_listed(sorted(repeated))}; rename or remove one of "
            "them",
            public="two columns have one name",
        )
    position = label_column(columns, label, str(path))
    return Header(columns, position)


def _csv_table(path: Path, header: Header, rows: Iterator[list[str]]) -> Table:
    """All rows below the header; empty lines are skipped. DataError names the first faulty row."""
    blocks: list[Float32] = []
    spelled: list[str] = []
    number = 0
    for cells in rows:
        if not cells:
            continue
        number += 1
        row = Row(path, number, rows.line_num)  # type: ignore[attr-defined]
        width = len(header.columns)
        if len(cells) != width:
            fault = f"{len(cells)} cells, the header has {width} columns"
            raise DataError(f"{row}: {fault}; correct the row", public=f"row {number}: {fault}")
        label = cells[header.label_position]
        spelled.append(_label(label, row, header.label))
        blocks.append(_csv_features(cells, header, row))
    if not blocks:
        raise DataError(
            f"{path}: no samples below the header; add one line per sample",
            public="the table has no samples below its header",
        )
    features = np.stack(blocks)
    return Table(header.features, header.label, features, spelled)


def _csv_features(cells: list[str], header: Header, row: Row) -> Float32:
    """The features (width,) of one row: all its cells but the label."""
    position = header.label_position
    before = cells[:position]
    after = cells[position + 1 :]
    features = before + after
    try:
        numbers = [float(cell) for cell in features]
    except ValueError:
        raise _not_a_number(cells, header, row) from None
    values = np.array(numbers, np.float64)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(single))
    if len(bad):
        first = int(bad[0])
        if first >= position:
            first += 1  # the position in the whole row
        seen = f"{cells[first].strip()}; expected a finite number"
        raise header.bad_cell(row, first, seen, "is not a finite number")
    return single


def _not_a_number(cells: list[str], header: Header, row: Row) -> DataError:
    """The refusal of the first feature that is no number."""
    position = 0
    while position == header.label_position or _is_number(cells[position]):
        position += 1
    text = cells[position].strip()
    advice = "every feature must be a number: correct the cell, or remove the column"
    if not text:
        return header.bad_cell(row, position, f"the cell is empty; {advice}", "is empty")
    seen = f"{text!r} is not a number; {advice}"
    return header.bad_cell(row, position, seen, "is not a number")


def _label(cell: str, row: Row, column: str) -> str:
    """The label as it is spelled. DataError if it is missing."""
    text = cell.strip()
    if text.lower() in MISSING_LABELS:
        raise DataError(
            f"{row}: no label in column {column!r}; fill it in or leave the row out",
            public=f"row {row.number} has no label",
        )
    return text


# -- Parquet -------------------------------------------------------------------------------------------------


def _read_parquet(path: Path, label: str | None) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        fault = "reading Parquet needs pyarrow: pip install 'covey[parquet]'"
        raise DataError(f"{path}: {fault}", public=fault) from None
    try:
        file = pq.ParquetFile(path)
        header = _parquet_header(path, file, label)
        # a word that occurs often is stored once: read as a dictionary, it is held once too
        labels = [header.label]
        dictionary = pq.ParquetFile(path, read_dictionary=labels).read(labels)
        spelled = _parquet_labels(path, header.label, dictionary.column(0))
        table = file.read(list(header.features))
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        fault = "not a Parquet file, or cut short"
        raise DataError(f"{path}: {fault} ({error}); copy it again", public=fault) from None
    columns: list[Float32] = []
    for name in header.features:
        column = _parquet_feature(path, header, name, table.column(name))
        if len(column) != len(spelled):
            raise DataError(
                f"{path}: its columns differ in length",
                public="the columns of a table differ in length",
            )
        columns.append(column)
    features = np.stack(columns, axis=1)
    return Table(header.features, header.label, features, spelled)


def _parquet_header(path: Path, file: Any, label: str | None) -> Header:
    """The columns; DataError for a table that is empty, ambiguous, nested or too large."""
    columns = tuple(file.schema_arrow.names)
    rows = file.metadata.num_rows
    if rows == 0 or len(columns) < 2:
        fault = f"{rows} rows, {len(columns)} columns; expected samples with a label and features"
        raise DataError(f"{path}: {fault}", public=fault)
    if len(set(columns)) < len(columns):
        raise DataError(
            f"{path}: two columns have one name; rename or remove one of them",
            public="two columns have one name",
        )
    limit = unpacked_limit(path)
    check_size(path, rows * len(columns) * 4, limit)
    stored_bytes = 0
    for group in range(file.metadata.num_row_groups):
        stored_bytes += file.metadata.row_group(group).total_byte_size
    check_size(path, stored_bytes, limit)
    label_position = label_column(columns, label, str(path))
    for number, field in enumerate(file.schema_arrow, start=1):
        if field.type.num_fields:
            expected = "expected plain values: remove the column or spread it over several"
            raise DataError(
                f"{path}: column {field.name!r} is {field.type}; {expected}",
                public=f"column {number} is nested; {expected}",
            )
    return Header(columns, label_position)


def _parquet_labels(path: Path, column: str, cells: Any) -> list[str]:
    """Every label as text. Equal labels of a block share one string."""
    spelled: list[str] = []
    for block in cells.chunks:
        for value in _block_values(block):
            row = Row(path, len(spelled) + 1)
            text = "" if value is None else str(value)
            spelled.append(_label(text, row, column))
    return spelled


def _block_values(block: Any) -> Iterator[Any]:
    """The values of a block of labels, which may be stored as indices into a dictionary."""
    if not hasattr(block, "dictionary"):
        yield from block.to_pylist()
        return
    words = block.dictionary.to_pylist()
    for index in block.indices.to_pylist():
        yield None if index is None else words[index]


def _parquet_feature(path: Path, header: Header, name: str, cells: Any) -> Float32:
    """A column (n,) of numbers. DataError names the first cell that is none."""
    found: list[float] = []
    for block in cells.chunks:
        for cell in block.to_pylist():
            if not _fits_float32(cell):
                row = Row(path, len(found) + 1)
                position = header.columns.index(name)
                raise _bad_parquet_cell(header, row, position, cell)
            found.append(cell)
    return np.array(found, np.float32)


def _bad_parquet_cell(header: Header, row: Row, position: int, cell: object) -> DataError:
    expected = "expected a finite number"
    if cell is None:
        return header.bad_cell(row, position, f"the cell is empty; {expected}", "is empty")
    return header.bad_cell(row, position, f"{cell!r}; {expected}", "is not a finite number")


def _fits_float32(cell: object) -> bool:
    """Whether the cell is a number that float32 can hold; false for NaN."""
    if not isinstance(cell, int | float):
        return False
    return abs(cell) <= MAX_FLOAT32


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    """The first names, for a message."""
    quoted = [repr(name) for name in names[:MAX_NAMES]]
    shown = ", ".join(quoted)
    rest = len(names) - MAX_NAMES
    if rest <= 0:
        return shown
    return f"{shown} and {rest} more"
