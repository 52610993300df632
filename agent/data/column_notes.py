"""Remarks on a table whose columns a task names: missing cells, unknown words, and the statistics that would be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from covey.agent.data.bad_cells import quoted
from covey.agent.data.dataset import Dataset
from covey.agent.data.survey import DataSurvey
from covey.agent.data.table_rows import listed
from covey.shared.scenario.columns import TableColumn
from covey.shared.scenario.task import Task

MAX_NAMED = 8  # columns or words in one remark


def column_notes(data: Dataset, task: Task) -> Iterator[str]:
    """Remarks for the owner of the data. They never leave the device.

    Args:
        data: the training part counts; before it becomes inputs.
        task: the task whose columns it has.
    """
    if data.columns is None:
        return
    missing: dict[str, int] = {}
    for place, column in enumerate(task.table_columns):
        count = int(np.isnan(data.features[:, place]).sum())
        if count:
            missing[column.name] = count
    if missing:
        treatment = "values of the task"
        if isinstance(task.impute, str):
            treatment = task.impute
        counted = counted_names(missing)
        yield f"missing cells: {counted} (task.impute: {treatment})"
    for place, column in enumerate(task.table_columns):
        is_listed = column.name not in task.open_categories
        if column.kind == "category" and is_listed:
            yield from _unknown_words(data, place, column)
    yield from _statistics(data, task)


def numbers_of(data: Dataset, task: Task | None) -> Dataset:
    """The data with the columns of numbers alone, whose range means something; data of other kinds stays as it is."""
    if data.columns is None or task is None:
        return data
    places = [place for place, column in enumerate(task.table_columns) if column.kind == "number"]
    return Dataset(
        data.features[:, places],
        data.targets,
        data.test_features[:, places],
        data.test_targets,
        columns=data.columns,
    )


def _unknown_words(data: Dataset, place: int, column: TableColumn) -> Iterator[str]:
    """The words that have no input of their own."""
    words: Sequence[str] = ()
    if data.columns is not None:
        words = data.columns.words.get(column.name, ())
    cells = data.features[:, place]
    cells_by_code = np.bincount(cells[np.isfinite(cells)].astype(np.int64), minlength=len(words))
    unknown: dict[str, int] = {}
    for word, count in zip(words, cells_by_code.tolist(), strict=True):
        if count and word not in column.words:
            unknown[word] = count
    if unknown:
        where = f"words of column {column.name!r} that the task does not know"
        yield f"{where}: {counted_names(unknown)}; they share one input"


def _statistics(data: Dataset, task: Task) -> Iterator[str]:
    """The statistics that the device sends before round 0."""
    if not task.asks_fleet_for:
        return
    numbers = DataSurvey(data, task).statistics()
    parts: list[str] = []
    for name in ("count", "sum", "square", "quantiles"):
        if name in numbers:
            parts.append(f"{name} per column of numbers")
    for name, words in numbers.get("words", {}).items():
        parts.append(f"the words {listed(words)} of column {name!r}")
    if "target" in numbers:
        parts.append("count, sum and square of the target")
    sent = "; ".join(parts)
    yield f"before round 0 this device sends: {sent}"


def counted_names(counts: dict[str, int]) -> str:
    """Names with their counts, the most frequent first."""
    ranked = Counter(counts).most_common()
    shown: list[str] = [f"{quoted(name)} {count}" for name, count in ranked[:MAX_NAMED]]
    rest = len(ranked) - MAX_NAMED
    if rest > 0:
        shown.append(f"and {rest} more")
    return ", ".join(shown)
