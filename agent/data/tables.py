"""Tables: CSV and Parquet. One column is the label, the others are features, as the task names them or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.data.cells import LEAVES_OUT, BadCell, BadCells, quoted
from covey.agent.data.dataset import Array, Dataset, RawColumns, dataset, encode
from covey.agent.data.fit import FLAGS
from covey.agent.data.limits import check_size, unpacked_limit
from covey.agent.data.table_columns import (
    MAX_FLOAT32,
    CellPlace,
    Words,
    days_elapsed,
    instants,
    labels,
    numbers,
    seconds_of_week,
    series_names,
)
from covey.agent.data.table_files import USUAL, open_table
from covey.agent.data.table_rows import Block, TableFile, listed
from covey.agent.data.table_selection import Selection, selected
from covey.agent.data.values import number_written, spelled
from covey.agent.data.windows import labels_of, longest_series, window_rows, windows_of
from covey.agent.data_place import Source
from covey.shared.errors import DataError
from covey.shared.scenario.columns import Window
from covey.shared.scenario.task import Task


def _is_target_of(task: Task) -> Callable[[str], bool]:
    """Decides whether a label is one of the task, whatever the other rows have."""
    known = frozenset(map(spelled, task.classes if isinstance(task.classes, tuple) else ()))

    def is_target(text: str) -> bool:
        number = number_written(text)
        match task.kind:
            case "values":
                return number is not None and abs(number) <= MAX_FLOAT32
            case "labels":
                return text.lower() in FLAGS
        is_index = number is not None and number.is_integer() and 0 <= number < task.outputs
        return text in known or is_index

    return is_target


def add_unknown_classes(
    place: CellPlace, rows: Sequence[int], labels: Sequence[str], task: Task, faults: BadCells
) -> None:
    """Add a fault for each label that the task does not know. A table without other faults is compared by `fit`.

    Args:
        place: the label column.
        rows: (n,) numbers of the rows, from 1.
        labels: (n,) words; empty ones are missing.
        task: only class names are compared: numbers may count them.
        faults: get the cells.
    """
    if not isinstance(task.classes, tuple) or all(
        number_written(one) is not None for one in labels
    ):
        return
    known = frozenset(map(spelled, task.classes))
    advice = f"correct the label; the classes of the task are {listed(task.classes)}"
    for row, text in zip(rows, labels, strict=True):
        if not text or text in known:
            continue
        fault = f"{quoted(text)} is not a class of the task"
        kind = "is not a class of the task"
        faults.add(BadCell(row, place.position, 0, place.name, fault, kind, advice))


Float64 = npt.NDArray[np.float64]
Vocabularies = dict[str, Words]  # by categorical column: the words that occur in it


@dataclass(frozen=True)
class FileTable:
    """The contents of a file."""

    selection: Selection
    features: (
        Float64  # (n, columns): numbers, or indices into the words of a category; NaN: missing
    )
    spelled: list[str]  # (n * width,) labels as words; empty without a label
    rows: list[int]  # (n,) numbers of the rows in the file, from 1
    vocabularies: Vocabularies = field(default_factory=dict)
    left_out: int = 0  # samples with missing cells
    unlabelled: int = 0  # samples without their target, which are left out too
    groups: list[str] = field(default_factory=list)  # (n,) series; empty if the rows are one
    overlap: int | None = None  # of windows: how many before a window share rows with it
    moments: list[float] = field(default_factory=list)  # (n,) if the latest rows test; else empty
    width: int = 1  # labels of a sample

    @property
    def raw_columns(self) -> RawColumns:
        """What the features mean."""
        words = {name: tuple(vocabulary.words) for name, vocabulary in self.vocabularies.items()}
        moments = np.array(self.moments) if self.moments else None
        return RawColumns(words, self.left_out, moments, self.unlabelled)

    @property
    def samples_spelled(self) -> list[list[str]]:
        """The labels of each sample; none of a table without labels."""
        count, width = len(self.rows), self.width
        if not self.spelled:
            return [[]] * count
        return [self.spelled[width * at : width * (at + 1)] for at in range(count)]

    def taken(self, kept: Sequence[int]) -> FileTable:
        """Some samples alone."""
        spelled = self.samples_spelled
        return replace(
            self,
            features=self.features[kept],
            spelled=[one for at in kept for one in spelled[at]],
            rows=[self.rows[at] for at in kept],
            groups=[self.groups[at] for at in kept] if self.groups else [],
            moments=[self.moments[at] for at in kept] if self.moments else [],
        )

    def labels_for(self, task: Task | None) -> list[str]:
        """The labels. A table without any, in which a task looks for anomalies, has usual samples."""
        if self.spelled or task is None or task.anomalies is None:
            return self.spelled
        assert isinstance(task.classes, tuple)  # noqa: S101 - the task has checked it
        return [task.classes[0]] * len(self.rows)

    @property
    def series(self) -> Array | None:
        """The series of each sample, (n,); None if there is only one."""
        if not self.groups:
            return None
        return np.array(self.groups)


def load_table(
    path: Path, label: str | None = None, test: Path | None = None, task: Task | None = None
) -> Dataset:
    """A `.csv`, `.tsv` or `.parquet` file.

    Args:
        path: the training samples, or all of them.
        label: the label column; None: the task's, else the one called label, class, target or y, else the last.
        test: a second file with the same columns as test part.
        task: if it names columns, these are the features, in its order; else all columns but the label are.

    Raises:
        DataError: the file cannot be read, its columns are not the task's, or cells are not what their column needs;
            it names rows and columns.
    """
    try:
        train_table = read_table(path, label, task)
    except DataError as fault:
        if test is not None:
            raise _with_faults_of(test, label, task, fault) from None
        raise
    source = str(path)
    if train_table.selection.labels:
        source += f", label column {listed(train_table.selection.labels)}"
    test_table: FileTable | None = None
    if test is not None:
        if len(train_table.selection.labels) == 1:
            [label] = train_table.selection.labels
        test_table = read_table(test, label, task, vocabularies=train_table.vocabularies)
        _check_same_columns(train_table, test_table, path, test)
    test_spelled = test_table.labels_for(task) if test_table else []
    targets, test_targets, names = encode(train_table.labels_for(task), test_spelled)
    if train_table.width > 1:
        targets = targets.reshape(-1, train_table.width)
        test_targets = test_targets.reshape(-1, train_table.width)
    test_part = (test_table.features, test_targets) if test_table else None
    columns = train_table.raw_columns if task is not None and task.has_own_columns else None
    return dataset(
        train_table.features,
        targets,
        test_part,
        source=source,
        labels=names,
        groups=train_table.series,
        test_groups=test_table.series if test_table else None,
        columns=columns,
        overlap=train_table.overlap,
    )


def _with_faults_of(
    test: Path, label: str | None, task: Task | None, fault: DataError
) -> DataError:
    """The fault of a training table, together with those of its test table."""
    try:
        read_table(test, label, task)
    except DataError as other:
        text = f"{fault}\n{other}"
        return DataError(text, public=f"{fault.public}; in the test table: {other.public}")
    return fault


@contextmanager
def opened(
    path: Path, label: str | None, task: Task | None, *, label_needed: bool = True
) -> Iterator[tuple[TableFile, Selection]]:
    """A table while it is open, and which of its columns are read. The arguments and errors are those of `read_table`."""
    wishes: tuple[str, ...] = () if label is None else (label,)
    expected: list[str] = []
    if task is not None:
        if label is not None and task.kind == "labels":
            raise DataError(
                f"{path}: --label {label} names one column, and the task has several targets: {listed(task.targets)}; "
                "leave it out",
                public="--label names one column, and the task has several targets",
            )
        wishes = wishes or task.targets
        expected += task.columns
    expected += wishes
    may_lack = task is not None and task.anomalies is not None
    least = 1 if may_lack or not label_needed else 2
    with open_table(path, expected, least, USUAL if task is None else task.read) as file:
        selection = selected(
            path, file.columns, wishes, task, label_needed=label_needed and not may_lack
        )
        if not label_needed or (may_lack and not wishes):  # a label's cells may hold anything
            selection = replace(selection, labels=())
        yield file, selection


def read_table(
    path: Path,
    label: str | None = None,
    task: Task | None = None,
    *,
    label_needed: bool = True,
    vocabularies: Vocabularies | None = None,
) -> FileTable:
    """The rows of a file, before missing cells and categories are resolved.

    Args:
        path: the file.
        label: the label column; None: as `load_table` finds it.
        task: names the feature columns, or none.
        label_needed: whether a table without the label column is refused; if not, its cells are not read.
        vocabularies: words of an earlier part of the same data, which are extended.

    Raises:
        DataError: as `load_table`.
    """
    if vocabularies is None:
        vocabularies = {}

    def read(part: Path) -> FileTable:
        with opened(part, label, task, label_needed=label_needed) as (file, selection):
            return _read(part, file, selection, vocabularies, task)

    table: FileTable
    if isinstance(path, Source):
        words = None if task is None else task.model_dump_json()
        settings = (label, words, label_needed, LEAVES_OUT.get())
        has_times = task is not None and bool(task.times)
        table = path.read(read, settings, vocabularies, has_times=has_times)
    else:
        table = read(path)
    _check_not_empty(table, path)
    selection = table.selection
    if task is not None and task.window is not None:
        window = task.window
        if not label_needed:  # nothing has to come after the newest window
            window = window.model_copy(update={"horizon": None})
        table = _windowed(table, window, path)
    drops = task is not None and task.drop_unlabelled
    if selection.leaves_out or drops:
        return _complete_samples(table, path, cells=selection.leaves_out, targets=drops)
    return table


def _check_same_columns(train: FileTable, test: FileTable, path: Path, test_path: Path) -> None:
    """DataError unless two files have the same columns in the same order."""
    columns = train.selection.names
    test_columns = test.selection.names
    if test_columns != columns:
        raise DataError(
            f"{test_path}: columns {listed(test_columns)} differ from {path.name}: "
            f"{listed(columns)}; give both files the same columns in the same order",
            public="the columns of the test table differ from those of the training table",
        )


# -- their cells ---------------------------------------------------------------------------------------------


def _read(
    path: Path, file: TableFile, selection: Selection, vocabularies: Vocabularies, task: Task | None
) -> FileTable:
    """All rows below the header. DataError names columns that do not fit, and the first faulty cells, and counts all."""
    faults = BadCells(path)
    features: list[Float64] = []
    spelled: list[str] = []
    rows: list[int] = []
    groups: list[str] = []
    if not selection.features:
        faults.check(selection.faults)
    places = [CellPlace(name, file.positions[name]) for name in selection.labels]
    group: CellPlace | None = None
    if selection.group is not None:
        group = CellPlace(selection.group, file.positions[selection.group])
    moments: list[float] = []
    time = task.times[0] if task is not None and task.times else ""
    for block in file.blocks(selection.names, faults):
        if task is not None and task.tests_latest:
            moments += instants(block.cells.get(time, ())) or map(float, block.rows)
        features.append(_features(file, selection, block, faults, vocabularies))
        rows += block.rows
        drops = task is not None and task.drop_unlabelled
        columns = [labels(place, block, faults, missing=drops) for place in places]
        spelled += chain.from_iterable(zip(*columns, strict=True))
        if group is not None:
            groups += series_names(group, block, faults)
        faults.close_block()
    is_refused = bool(selection.faults) or faults.count > 0
    leaves_out = LEAVES_OUT.get()
    if is_refused and not leaves_out and len(places) == 1 and task is not None:
        add_unknown_classes(places[0], rows, spelled, task, faults)
    (BadCells(path) if leaves_out else faults).check(selection.faults)
    all_features = np.concatenate([np.empty((0, len(selection.features))), *features])
    table = FileTable(
        selection,
        all_features,
        spelled,
        rows,
        vocabularies,
        groups=groups,
        moments=moments,
        width=max(len(places), 1),
    )
    if not leaves_out or task is None:
        return table
    drops, is_target = task.drop_unlabelled, _is_target_of(task)
    fits = [
        row not in faults.rows and all(is_target(one) or (drops and not one) for one in own)
        for row, own in zip(rows, table.samples_spelled, strict=True)
    ]
    return table.taken(np.flatnonzero(fits).tolist())


def _check_not_empty(table: FileTable, path: Path) -> None:
    if not table.rows:
        raise DataError(
            f"{path}: no samples below the header; add one line per sample",
            public="the table has no samples below its header",
        )


def no_window(path: Path, longest: int, window: Window) -> DataError:
    """The fault of a table whose longest series has this many rows, too few for a window."""
    fault = f"no window: the longest series has {longest} rows, task.window.rows is {window.rows}"
    if window.horizon is not None:
        fault += f" and task.window.horizon {window.horizon}"
    return DataError(f"{path}: {fault}; use shorter windows", public=f"the table gives {fault}")


def _windowed(table: FileTable, window: Window, path: Path) -> FileTable:
    """The table with windows over its rows as samples. DataError if no series is long enough for one."""
    count = len(table.rows)
    rows = window_rows(table.groups, count, window)
    if not len(rows):
        raise no_window(path, longest_series(table.groups, count), window)
    check_size(path, rows.size * table.features.shape[1] * 8, unpacked_limit(path))
    own_rows = rows[:, : window.rows]
    last_rows = own_rows[:, -1].tolist()
    return replace(
        table,
        features=windows_of(table.features, own_rows),
        spelled=labels_of(table.spelled, rows, window, table.width) if table.spelled else [],
        rows=[table.rows[row] for row in last_rows],
        groups=[table.groups[row] for row in last_rows] if table.groups else [],
        overlap=window.overlap,
        moments=[],
        width=window.targets * table.width,
    )


def _complete_samples(table: FileTable, path: Path, *, cells: bool, targets: bool) -> FileTable:
    """The rows, or windows, without missing cells and with all their targets. DataError if there are none."""
    complete = np.ones(len(table.rows), np.bool_)
    if cells:
        complete &= ~np.isnan(table.features).any(axis=tuple(range(1, table.features.ndim)))
    unlabelled = 0
    if targets and table.spelled:
        own = np.reshape([bool(one) for one in table.spelled], (len(table.rows), table.width))
        unlabelled = int((~own.all(axis=1)).sum())
        complete &= own.all(axis=1)
    kept = np.flatnonzero(complete).tolist()
    if not kept:
        fault = "every sample has a missing cell, and task.impute is drop"
        advice = "set task.impute to mean or median"
        if unlabelled:
            fault = "no sample has its target and all its cells"
            advice = "fill in targets"
        raise DataError(f"{path}: {fault}; {advice}", public=f"in the table {fault}")
    left_out = len(table.rows) - len(kept) - unlabelled
    return replace(table.taken(kept), unlabelled=unlabelled, left_out=left_out)


def _features(
    file: TableFile,
    selection: Selection,
    block: Block,
    faults: BadCells,
    vocabularies: Vocabularies,
) -> Float64:
    """The features (n, columns) of a block of rows."""
    found: list[npt.NDArray[Any]] = []
    for column in selection.features:
        if column.name in selection.absent:
            found.append(np.full(len(block.rows), np.nan))
            if column.kind == "category":
                vocabularies.setdefault(column.name, Words())
            continue
        place = CellPlace(column.name, file.positions[column.name])
        missing = column.name in selection.may_miss
        match column.kind:
            case "category":
                words = vocabularies.setdefault(column.name, Words())
                values = words.codes(place, block, faults, missing=missing)
            case "time":
                values = seconds_of_week(
                    place, block, faults, missing=missing, seasonal=column.seasonal
                )
            case "number" if column.elapsed:
                found.append(days_elapsed(place, block, faults, missing=missing))
                continue
            case "number":
                found.append(numbers(place, block, faults, missing=missing))
                continue
        found.append(values)
    return np.stack(found, axis=1).astype(np.float64, copy=False)
