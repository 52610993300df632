"""Which columns of a table are read, and as what. Every column that does not fit is named, all of them in one message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.agent.data.table_rows import listed
from covey.shared.errors import DataError
from covey.shared.scenario.columns import EVERYTHING_ELSE, LABEL_NAMES, TableColumn
from covey.shared.scenario.task import Task


@dataclass(frozen=True)
class Selection:
    """Which columns of a table are read, and as what."""

    features: tuple[TableColumn, ...]
    labels: tuple[str, ...]  # empty: the table has none, or they are not needed
    group: str | None = None  # names the series of each row; None: the rows are one series
    may_miss: frozenset[str] = frozenset()  # the features whose cells may be missing
    absent: frozenset[str] = frozenset()  # the features that the table lacks, and may lack
    leaves_out: bool = False  # rows with missing cells
    faults: tuple[
        DataError, ...
    ] = ()  # columns that are missing or unknown; the others are read nevertheless

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        names = [column.name for column in self.features if column.name not in self.absent]
        names += self.labels
        if self.group is not None:
            names.append(self.group)
        return tuple(dict.fromkeys(names))


def selected(
    path: Path,
    columns: Sequence[str],
    wishes: Sequence[str],
    task: Task | None,
    *,
    label_needed: bool,
) -> Selection:
    """The columns of a table that a task needs.

    Args:
        path: the file, for messages.
        columns: its header.
        wishes: the label columns that are asked for; empty: the label is found by its name or place.
        task: names the feature columns, or none.
        label_needed: whether a table without a label column is refused.

    Raises:
        DataError: the label column cannot be found, for a task without columns.
    """
    if task is not None and task.columns:
        return _selected_by_task(path, columns, wishes, task, label_needed=label_needed)
    if task is not None and not label_needed:
        return _features_only(path, columns, wishes, task)
    return _all_columns(path, columns, wishes, task)


def label_column(columns: Sequence[str], wish: str | None, where: str) -> str:
    """The label column: the one that is asked for, else by its usual names, else the last.

    Raises:
        DataError: the table has no column of the name that is asked for.
    """
    if wish is not None:
        if wish not in columns:
            raise DataError(
                f"{where}: no label column {wish!r}; the columns are {listed(columns)}: choose "
                "one of them with --label",
                public=f"the label column is not among the {len(columns)} columns of the table",
            )
        return wish
    return _usual_label(columns) or columns[-1]


def _usual_label(columns: Sequence[str]) -> str | None:
    """The column with one of the usual names of a label."""
    for name in LABEL_NAMES:
        for column in columns:
            if column.strip().lower() == name:
                return column
    return None


def _all_columns(
    path: Path, columns: Sequence[str], wishes: Sequence[str], task: Task | None
) -> Selection:
    """Every column but the label and those that the task ignores is a number, in the order of the file."""
    ignored = () if task is None else task.ignore
    used = [column for column in columns if column not in ignored]
    labels = [label_column(used or columns, wish, str(path)) for wish in wishes or (None,)]
    features = [TableColumn(column) for column in used if column not in labels]
    return Selection(tuple(features), tuple(labels))


def _features_only(
    path: Path, columns: Sequence[str], wishes: Sequence[str], task: Task
) -> Selection:
    """Every column that is used, without the labels if the table has any."""
    used = [column for column in columns if column not in task.ignore]
    if len(used) != math.prod(task.features) or {*wishes} & {*used}:
        return _all_columns(path, columns, [wish for wish in wishes if wish in columns], task)
    return Selection(tuple([TableColumn(column) for column in used]), ())


def _selected_by_task(
    path: Path, columns: Sequence[str], wishes: Sequence[str], task: Task, *, label_needed: bool
) -> Selection:
    """The columns that the task names, wherever they are in the file. Missing and unknown ones are its faults."""
    faults: list[DataError] = []
    group = task.window.group if task.window is not None else None
    required = list(task.columns)
    if group is not None:
        required.append(group)
    present, known = frozenset(columns), frozenset((*required, *task.ignore))
    absent = frozenset(task.optional) - present
    missing = [name for name in required if name not in present | absent]
    if missing:
        faults.append(_missing(path, columns, missing))
    others = [name for name in columns if name not in known]
    labels: tuple[str, ...] = ()
    try:
        labels = _task_labels(path, columns, others, wishes, label_needed=label_needed)
    except DataError as fault:
        faults.append(fault)
    unknown = [name for name in others if name not in labels]
    if unknown and EVERYTHING_ELSE not in task.ignore:
        faults.append(_unknown(path, unknown))
    features = [column for column in task.table_columns if column.name in present | absent]
    may_miss = [column.name for column in features if task.may_miss(column)]
    return Selection(
        tuple(features),
        labels,
        None if group in missing else group,
        frozenset(may_miss),
        absent,
        leaves_out=task.impute == "drop",
        faults=tuple(faults),
    )


def _missing(path: Path, columns: Sequence[str], missing: Sequence[str]) -> DataError:
    """The fault of columns that a table lacks."""
    noun = "column" if len(missing) == 1 else "columns"
    fault = f"no {noun} {listed(missing)}, which the task names"
    return DataError(
        f"{path}: {fault}; the table has {listed(columns)}: rename or add columns",
        public=f"the table has {fault}",
    )


def _unknown(path: Path, unknown: Sequence[str]) -> DataError:
    """The fault of columns that have no role in the task."""
    noun, them = ("column", "it") if len(unknown) == 1 else ("columns", "them")
    expected = "expected the columns of the task and its label"
    return DataError(
        f"{path}: {noun} {listed(unknown)} not in task.columns; {expected}: remove {them} from "
        f"the table, or name {them} in task.columns or task.ignore",
        public=f"the table has {len(unknown)} unknown {noun}; {expected}",
    )


def _task_labels(
    path: Path,
    columns: Sequence[str],
    others: Sequence[str],
    wishes: Sequence[str],
    *,
    label_needed: bool,
) -> tuple[str, ...]:
    """The labels among the columns that are no features: those that are asked for, a usual name, or the only one."""
    if wishes:
        return tuple(
            label_column(columns, wish, str(path))
            for wish in wishes
            if wish in columns or label_needed
        )
    label = _usual_label(others)
    if label is None and len(others) == 1:
        label = others[0]
    if label is None and label_needed:
        fault = "no label column: set task.target, or give --label"
        raise DataError(
            f"{path}: {fault}; the columns without a role are {listed(others) or 'none'}",
            public=f"the table has {fault}",
        )
    return () if label is None else (label,)
