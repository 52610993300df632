"""Tables: CSV and Parquet. One column is the label, all others are features, shape (width,)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agent.data.dataset import Dataset, dataset, encode
from shared.errors import DataError

LABEL_NAMES = ("label", "class", "target", "y")


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
            f"{test}: columns {_few(test_table.columns)} differ from {path.name}: {_few(train_table.columns)}"
        )
    targets, test_targets, labels = encode(train_table.spelled, test_table.spelled)
    return dataset(train_table.features, targets, (test_table.features, test_targets), source=source, labels=labels)


def label_column(columns: Sequence[str], wanted: str | None, where: str) -> int:
    """Index of the label column. DataError where `wanted` is not there."""
    if wanted is not None:
        if wanted not in columns:
            raise DataError(f"{where}: no label column {wanted!r}; the columns are {_few(columns)}")
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
        raise DataError(f"{path}: not UTF-8 text ({error.reason}); save the table as UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path}: {error}") from None


def _header(path: Path, cells: list[str], label: str | None) -> tuple[str, ...]:
    columns = tuple(cell.strip() for cell in cells)
    if not any(columns):
        raise DataError(f"{path}: empty; a first line with column names and one line per sample are wanted")
    if len(columns) < 2:
        raise DataError(f"{path}: one column only ({columns[0]!r}); a label and at least one feature are wanted")
    # a first sample's label may be a word; a label's usual name, or one that was asked for, stands in a header alone
    named = label is not None or any(column.lower() in LABEL_NAMES for column in columns)
    if all(_is_number(column) for column in (columns if named else columns[:-1])):
        raise DataError(f"{path}: the first line holds numbers; column names are wanted there")
    if len(set(columns)) < len(columns):
        twice = sorted({column for column in columns if columns.count(column) > 1})
        raise DataError(f"{path}: columns occur twice: {_few(twice)}")
    return columns


def _collect(path: Path, columns: tuple[str, ...], at: int, rows: Iterator[list[str]]) -> Table:
    names = columns[:at] + columns[at + 1 :]
    blocks: list[npt.NDArray[np.float32]] = []
    spelled: list[str] = []
    reader = rows
    for row, cells in enumerate(filter(None, reader), start=1):
        where = f"{path}: row {row} (line {reader.line_num})"  # type: ignore[attr-defined]
        if len(cells) != len(columns):
            raise DataError(f"{where}: {len(cells)} cells, the header has {len(columns)} columns")
        spelled.append(_label(cells[at], where, columns[at]))
        blocks.append(_numbers(cells[:at] + cells[at + 1 :], names, where))
    if not blocks:
        raise DataError(f"{path}: no samples below the header")
    return Table(names, columns[at], np.stack(blocks), spelled)


def _label(cell: str, where: str, column: str) -> str:
    text = cell.strip()
    if not text or text.lower() in {"nan", "na", "null"}:
        raise DataError(f"{where}: no label in column {column!r}; fill it in or leave the row out")
    return text


def _numbers(cells: list[str], names: Sequence[str], where: str) -> npt.NDArray[np.float32]:
    try:
        values = np.array([float(cell) for cell in cells], np.float64)
    except ValueError:
        bad = next(i for i, cell in enumerate(cells) if not _is_number(cell))
        text = cells[bad].strip()
        seen = f"{text!r} is not a number" if text else "the cell is empty"
        raise DataError(f"{where}, column {names[bad]!r}: {seen}; every feature must be numeric") from None
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.isfinite(single).all():
        bad = int(np.flatnonzero(~np.isfinite(single))[0])
        raise DataError(f"{where}, column {names[bad]!r}: {cells[bad].strip()}; a finite number is wanted")
    return single


def _read_parquet(path: Path, label: str | None) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install 'covey[parquet]'") from None
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file, or cut short ({error})") from None
    columns = tuple(table.column_names)
    if table.num_rows == 0 or len(columns) < 2:
        raise DataError(f"{path}: {table.num_rows} rows, {len(columns)} columns; a label and features are wanted")
    at = label_column(columns, label, str(path))
    names = columns[:at] + columns[at + 1 :]
    spelled = [
        _label("" if cell is None else str(cell), f"{path}: row {row}", columns[at])
        for row, cell in enumerate(table.column(at).to_pylist(), start=1)
    ]
    features = np.stack([_parquet_column(path, name, table.column(name).to_pylist()) for name in names], axis=1)
    return Table(names, columns[at], features, spelled)


def _parquet_column(path: Path, name: str, cells: list[object]) -> npt.NDArray[np.float32]:
    for row, cell in enumerate(cells, start=1):
        if not isinstance(cell, (int, float)) or not math.isfinite(cell) or abs(cell) > np.finfo(np.float32).max:
            seen = "the cell is empty" if cell is None else repr(cell)
            raise DataError(f"{path}: row {row}, column {name!r}: {seen}; a finite number is wanted")
    return np.array(cells, np.float32)


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
