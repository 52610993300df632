"""New samples without targets, read and prepared exactly as training samples are.

A stand-in target is added to each sample, and the samples then pass the loaders and `fit` of training. A target column that
the file has is left out: predictions must not depend on it, and new data may hold values that no class has.
"""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covey.agent.data.arrays import ALIASES, from_arrays, read_npz
from covey.agent.data.dataset import Array, Dataset
from covey.agent.data.fit import fit
from covey.agent.data.tables import LABEL_NAMES, load_table
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task

STAND_IN = "stand-in for the target"  # the name of its column
DELIMITERS = ",;\t"
ACCEPTED = "a table (.csv, .tsv, .parquet) or an .npz with x"

Cells = list[str]


@dataclass(frozen=True)
class Samples:
    """New samples in the form of a task."""

    data: Dataset  # its targets mean nothing; a single sample is in it twice, because a data set has two or more
    count: int


def load_unlabelled(path: Path, task: Task, label: str | None = None) -> Samples:
    """Read the samples of a file.

    Args:
        path: a table or an .npz file, with or without targets.
        task: what the model was trained for.
        label: the column to leave out; None: if the table has more columns than the task has features, the one that is
            called like a target, or else the last one.

    Raises:
        DataError: the file cannot be read, or its samples do not fit the task.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected {ACCEPTED}", public="no such file")
    match path.suffix:
        case ".csv" | ".tsv":
            samples = _table(path, task, label)
        case ".parquet":
            samples = _parquet(path, task, label)
        case ".npz":
            samples = _arrays(path, task)
        case suffix:
            raise DataError(
                f"{path}: unknown kind of file {suffix!r}; expected {ACCEPTED}",
                public="a file of an unknown kind",
            )
    return Samples(fit(samples.data, task), samples.count)


def _stand_in(task: Task) -> str:
    """A target that the task accepts."""
    if isinstance(task.classes, tuple):
        return task.classes[0]
    return "0"


def target_position(
    columns: Sequence[str], task: Task, label: str | None, where: str
) -> int | None:
    """Position of the column that holds targets; None if the table has features only."""
    if label is not None:
        if label not in columns:
            raise DataError(
                f"{where}: no column {label!r}; omit --label if the table has no targets",
                public="no such label column",
            )
        return list(columns).index(label)
    width = math.prod(task.features)
    if len(columns) == width:
        return None
    lowered = [column.strip().lower() for column in columns]
    for name in LABEL_NAMES:
        if name in lowered:
            return lowered.index(name)
    has_one_more = len(columns) == width + 1
    return width if has_one_more else None


def _table(path: Path, task: Task, label: str | None) -> Samples:
    with path.open(newline="", encoding="utf-8-sig") as file:
        first_line = file.readline()
        file.seek(0)
        delimiter = max(DELIMITERS, key=first_line.count)
        lines = csv.reader(file, delimiter=delimiter)
        try:
            rows = [row for row in lines if row]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not a CSV table ({error})", public="no CSV text") from None
    if len(rows) < 2:
        raise DataError(
            f"{path}: no samples; expected a first line with column names and one line per sample",
            public="no samples",
        )
    header = rows[0]
    columns = [cell.strip() for cell in header]
    position = target_position(columns, task, label, str(path))
    complete = [_with_target(columns, position, STAND_IN)]
    samples = rows[1:]
    repeated = [*samples, *samples] if len(samples) == 1 else samples
    for row in repeated:
        complete.append(_with_target(row, position, _stand_in(task)))
    with _written(path, complete) as table:
        return Samples(_named_as(path, table), len(samples))


def _with_target(cells: Cells, position: int | None, target: str) -> Cells:
    """A row whose target is this one: in its own column, or in a new last one."""
    if position is None:
        return [*cells, target]
    replaced = list(cells)
    if position < len(replaced):  # of a short row, the loader names the number of cells
        replaced[position] = target
    return replaced


@contextmanager
def _written(path: Path, rows: list[Cells]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / f"{path.stem}.csv"
        with table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        yield table


def _named_as(path: Path, table: Path) -> Dataset:
    """Load a rewritten table. Errors name the user's own file."""
    try:
        return load_table(table, STAND_IN)
    except DataError as error:
        text = str(error).replace(str(table), str(path))
        raise DataError(text, public=error.public) from None


def _parquet(path: Path, task: Task, label: str | None) -> Samples:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        fault = "reading Parquet needs pyarrow: pip install 'covey[parquet]'"
        raise DataError(f"{path}: {fault}", public=fault) from None
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not a Parquet file ({error})", public="no Parquet") from None
    position = target_position(table.column_names, task, label, str(path))
    if position is not None:
        table = table.remove_column(position)
    count = table.num_rows
    if count == 1:
        table = pa.concat_tables([table, table])
    targets = [_stand_in(task)] * table.num_rows
    table = table.append_column(STAND_IN, pa.array(targets))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        pq.write_table(table, copy)
        return Samples(_named_as(path, copy), count)


def _arrays(path: Path, task: Task) -> Samples:
    arrays = read_npz(path)
    for name in ALIASES["x"]:
        if name in arrays:
            return _samples_of(arrays[name], task, str(path))
    raise DataError(f"{path}: no array x; expected the samples under this name", public="no x")


def _samples_of(x: Array, task: Task, source: str) -> Samples:
    count = len(x)
    repeated = np.concatenate([x, x]) if count == 1 else x
    stand_in = _stand_in(task)
    is_number = stand_in.lstrip("-").isdecimal()
    target = int(stand_in) if is_number else 0
    targets = np.full(len(repeated), target)
    return Samples(from_arrays({"x": repeated, "y": targets}, source), count)
