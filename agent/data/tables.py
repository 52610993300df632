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
LABEL_NAMES = ("label", "class", "target", "y")


@dataclass(frozen=True)
class Row:
    """Where a row of a file is: its number below the header, and its line in a text file (0: no text)."""

    path: Path
    number: int
    line: int = 0

    def __str__(self) -> str:
        line = f" (line {self.line})" if self.line else ""
        return f"{self.path}: row {self.number}{line}"


@dataclass(frozen=True)
class Table:
    """A file's feature columns (n, width) float32 and its labels as spelled."""

    columns: tuple[str, ...]
    label: str
    features: npt.NDArray[np.float32]
    spelled: list[str]


def load_table(path: Path, label: str | None = None, test: Path | None = None) -> Dataset:
    """A `.csv`, `.tsv` or `.parquet` file, with an optional second file as test part.

    Without `label`, the label is the column called label, class, target or y, else the last one.
    """
    train_table = _read(path, label)
    source = f"{path}, label column {train_table.label!r}"
    if test is None:
        targets, _, labels = encode(train_table.spelled)
        return dataset(train_table.features, targets, source=source, labels=labels)
    test_table = _read(test, train_table.label)
    if test_table.columns != train_table.columns:
        raise DataError(
            f"{test}: columns {_few(test_table.columns)} differ from {path.name}: {_few(train_table.columns)}",
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


def label_column(columns: Sequence[str], wanted: str | None, where: str) -> int:
    """Index of the label column. DataError where `wanted` is not there."""
    if wanted is not None:
        if wanted not in columns:
            raise DataError(
                f"{where}: no label column {wanted!r}; the columns are {_few(columns)}",
                public=f"the label column is not among the {len(columns)} columns of the table",
            )
        return list(columns).index(wanted)
    lowered = [column.strip().lower() for column in columns]
    return next((lowered.index(name) for name in LABEL_NAMES if name in lowered), len(columns) - 1)


def _read(path: Path, label: str | None) -> Table:
    return _read_parquet(path, label) if path.suffix == ".parquet" else _read_csv(path, label)


def _read_csv(path: Path, label: str | None) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            rows = csv.reader(file, delimiter=max(",;\t", key=first.count))
            columns = _header(path, next(rows, []), label)
            at = label_column(columns, label, str(path))
            return _collect(path, columns, at, rows)
    except UnicodeDecodeError as error:
        fault = "not UTF-8 text; save the table as UTF-8"
        raise DataError(
            f"{path}: {fault} ({error.reason})", public=f"the table is {fault}"
        ) from None
    except csv.Error as error:
        raise DataError(f"{path}: {error}", public="the table is no CSV text") from None


def _header(path: Path, cells: list[str], label: str | None) -> tuple[str, ...]:
    columns = tuple(cell.strip() for cell in cells)
    if not any(columns):
        raise DataError(
            f"{path}: empty; a first line with column names and one line per sample are expected",
            public="the table is empty",
        )
    if len(columns) < 2:
        raise DataError(
            f"{path}: one column only ({columns[0]!r}); a label and at least one feature are expected",
            public="the table has one column only; a label and at least one feature are expected",
        )
    # a first sample's label may be a word; a label's usual name, or one that was asked for, stands in a header alone
    named = label is not None or any(column.lower() in LABEL_NAMES for column in columns)
    if all(_is_number(column) for column in (columns if named else columns[:-1])):
        fault = "the first line holds numbers; column names are expected there"
        raise DataError(f"{path}: {fault}", public=fault)
    if len(set(columns)) < len(columns):
        twice = sorted({column for column in columns if columns.count(column) > 1})
        raise DataError(
            f"{path}: columns occur twice: {_few(twice)}", public="two columns have one name"
        )
    return columns


def _collect(path: Path, columns: tuple[str, ...], at: int, rows: Iterator[list[str]]) -> Table:
    blocks: list[npt.NDArray[np.float32]] = []
    spelled: list[str] = []
    reader = rows
    for row, cells in enumerate(filter(None, reader), start=1):
        where = Row(path, row, reader.line_num)  # type: ignore[attr-defined]
        if len(cells) != len(columns):
            fault = f"{len(cells)} cells, the header has {len(columns)} columns"
            raise DataError(f"{where}: {fault}", public=f"row {row}: {fault}")
        spelled.append(_label(cells[at], where, columns[at]))
        blocks.append(_numbers(cells, columns, at, where))
    if not blocks:
        raise DataError(
            f"{path}: no samples below the header",
            public="the table has no samples below its header",
        )
    return Table(columns[:at] + columns[at + 1 :], columns[at], np.stack(blocks), spelled)


def _label(cell: str, where: Row, column: str) -> str:
    text = cell.strip()
    if not text or text.lower() in {"nan", "na", "null"}:
        raise DataError(
            f"{where}: no label in column {column!r}; fill it in or leave the row out",
            public=f"row {where.number} has no label",
        )
    return text


def _numbers(
    cells: list[str], columns: Sequence[str], label: int, where: Row
) -> npt.NDArray[np.float32]:
    """The features of one row: all its cells but the label."""
    features = cells[:label] + cells[label + 1 :]
    try:
        values = np.array([float(cell) for cell in features], np.float64)
    except ValueError:
        bad = next(i for i, cell in enumerate(cells) if i != label and not _is_number(cell))
        text = cells[bad].strip()
        seen = f"{text!r} is not a number" if text else "the cell is empty"
        kind = "is not a number" if text else "is empty"
        raise _bad_cell(
            where, columns, bad, f"{seen}; every feature must be numeric", kind
        ) from None
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.isfinite(single).all():
        bad = int(np.flatnonzero(~np.isfinite(single))[0])
        bad += bad >= label  # the position in the whole row
        seen = f"{cells[bad].strip()}; a finite number is expected"
        raise _bad_cell(where, columns, bad, seen, "is not a finite number")
    return single


def _bad_cell(where: Row, columns: Sequence[str], position: int, seen: str, kind: str) -> DataError:
    """The column by name for the terminal, by number for everybody else: names may be private too."""
    public = f"row {where.number}, column {position + 1} {kind}"
    return DataError(f"{where}, column {columns[position]!r}: {seen}", public=public)


def _read_parquet(path: Path, label: str | None) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        fault = "reading Parquet needs pyarrow: pip install 'covey[parquet]'"
        raise DataError(f"{path}: {fault}", public=fault) from None
    try:
        file = pq.ParquetFile(path)
        columns = tuple(file.schema_arrow.names)
        at = _checked_schema(path, file, columns, label)
        # a word that occurs often is stored once: read as a dictionary, it is held once too
        dictionary = pq.ParquetFile(path, read_dictionary=[columns[at]]).read([columns[at]])
        spelled = _parquet_labels(path, columns[at], dictionary.column(0))
        table = file.read([name for name in columns if name != columns[at]])
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: not a Parquet file, or cut short ({error})",
            public="not a Parquet file, or cut short",
        ) from None
    names = columns[:at] + columns[at + 1 :]
    found = [_parquet_column(path, columns, name, table.column(name)) for name in names]
    if any(len(values) != len(spelled) for values in found):
        raise DataError(
            f"{path}: its columns differ in length",
            public="the columns of a table differ in length",
        )
    return Table(names, columns[at], np.stack(found, axis=1), spelled)


def _checked_schema(path: Path, file: Any, columns: tuple[str, ...], label: str | None) -> int:
    """The position of the label; DataError for a table that is empty, ambiguous, nested or too large."""
    rows = file.metadata.num_rows
    if rows == 0 or len(columns) < 2:
        fault = f"{rows} rows, {len(columns)} columns; a label and features are expected"
        raise DataError(f"{path}: {fault}", public=fault)
    if len(set(columns)) < len(columns):
        raise DataError(f"{path}: two columns have one name", public="two columns have one name")
    limit = unpacked_limit(path)
    check_size(path, rows * len(columns) * 4, limit)
    groups = range(file.metadata.num_row_groups)
    check_size(path, sum(file.metadata.row_group(group).total_byte_size for group in groups), limit)
    at = label_column(columns, label, str(path))
    for position, field in enumerate(file.schema_arrow):
        if field.type.num_fields:
            raise DataError(
                f"{path}: column {field.name!r} is {field.type}; plain values are expected",
                public=f"column {position + 1} is nested; plain values are expected",
            )
    return at


def _parquet_labels(path: Path, column: str, cells: Any) -> list[str]:
    """Every label as text. Equal labels of a block share one string."""
    spelled: list[str] = []
    for block in cells.chunks:
        words: list[Any] | None = None
        if hasattr(block, "dictionary"):
            words = block.dictionary.to_pylist()
            block = block.indices
        for value in block.to_pylist():
            cell = value if words is None or value is None else words[value]
            row = Row(path, len(spelled) + 1)
            spelled.append(_label("" if cell is None else _text_of(cell), row, column))
    return spelled


def _text_of(cell: object) -> str:
    return cell if isinstance(cell, str) else str(cell)


def _parquet_column(
    path: Path, columns: tuple[str, ...], name: str, cells: Any
) -> npt.NDArray[np.float32]:
    found: list[float] = []
    for block in cells.chunks:
        for cell in block.to_pylist():
            if not _is_single(cell):
                seen = "the cell is empty" if cell is None else repr(cell)
                kind = "is empty" if cell is None else "is not a finite number"
                row = Row(path, len(found) + 1)
                raise _bad_cell(
                    row, columns, columns.index(name), f"{seen}; a finite number is expected", kind
                )
            found.append(cell)
    return np.array(found, np.float32)


def _is_single(cell: object) -> bool:
    """Does the cell fit into a finite float32?"""
    if not isinstance(cell, int | float):
        return False
    return abs(cell) <= MAX_FLOAT32  # false for NaN


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _few(names: Sequence[str]) -> str:
    """At most eight names, for a message."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(map(repr, names[:8])) + more
