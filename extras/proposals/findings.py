"""What local data holds before it takes part, what keeps it out, and what would leave the device, for its owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from covey.agent.data import fit
from covey.agent.data.cells import quoted
from covey.agent.data.check import Disclosure, disclosure_of, name_of
from covey.agent.data.dataset import Array, Dataset, windows_in
from covey.agent.data.survey import DataSurvey, present_cells, words_that_stay
from covey.agent.data.values import spelled
from covey.shared.errors import DataError
from covey.shared.scenario.classes import are_amounts
from covey.shared.scenario.columns import TableColumn
from covey.shared.scenario.task import Task
from covey.shared.sentences import some

# -- remarks on a table whose columns a task names -------------------------------------------------


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
        elif column.kind == "category":
            known = data.columns.words.get(column.name, ())
            if reason := words_that_stay(present_cells(data, place), known, column):
                yield (
                    f"the words of column {column.name!r} stay here: {reason}; if they are classes of things, list them in "
                    "task.categories"
                )
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
        if count and word not in map(spelled, column.words):
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
        if not words:
            continue
        parts.append(
            f"the words {some([repr(word) for word in words], len(words))} of column {name!r}"
        )
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


# -- the check --------------------------------------------------------------------------------------


FEW = 10  # training samples of a class; with fewer, its learning is a matter of luck
MAX_SINGLY = 3  # such classes that have a note each
SMALL = 0.2  # features after a task.scale that was chosen to bring them to 1
LARGE = 100  # features after task.scale; larger ones make training diverge


@dataclass(frozen=True)
class ClassCount:
    """A class that occurs in the data."""

    name: str
    train: int  # samples
    test: int


@dataclass(frozen=True)
class DataFinding:
    """What `agent check` shows."""

    source: str
    samples: int
    test_samples: int
    shape: tuple[int, ...]  # of one sample
    dtype: str  # of the features
    classes: tuple[ClassCount, ...]  # empty for a regression
    value_range: tuple[float, float]  # the smallest and the largest feature, before `task.scale`
    problems: tuple[str, ...]  # these keep the data out
    notes: tuple[str, ...]  # these do not
    disclosure: Disclosure

    def to_json(self) -> dict[str, Any]:
        """The form for other programs (`agent check --json`)."""
        content = asdict(self)
        del content["disclosure"]
        content["classes"] = [(one.name, one.train, one.test) for one in self.classes]
        content["told"] = self.disclosure.to_json()
        return content


def inspect(dataset: Dataset, task: Task | None = None) -> DataFinding:
    """Describe the data, as the task sees it if it fits. A DataError becomes a problem in the finding."""
    data = dataset
    misfit: DataError | None = None
    if task is not None:
        try:
            data = fit(dataset, task)
        except DataError as error:
            misfit = error
    classes: tuple[ClassCount, ...] = ()
    is_regression = data.regression or (task is not None and task.classes is None)
    if task is None and not data.labels:
        targets = np.concatenate([data.targets, data.test_targets])
        is_regression = is_regression or are_amounts(len(np.unique(targets)), len(targets))
    if not is_regression:
        classes = _classes(data)
    smallest, largest = _extremes(numbers_of(data, task))
    shape = data.shape
    if task is not None and data.columns is not None:
        shape = task.features
    return DataFinding(
        source=data.source,
        samples=len(data.targets),
        test_samples=len(data.test_targets),
        shape=shape,
        dtype=data.features.dtype.name,
        classes=classes,
        value_range=(smallest, largest),
        problems=() if misfit is None else (str(misfit),),
        notes=_notes(data, classes, task),
        disclosure=(
            Disclosure(0, 0, (), misfit.public)
            if misfit
            else disclosure_of(data, regression=is_regression)
        ),
    )


def _classes(data: Dataset) -> tuple[ClassCount, ...]:
    """The classes that occur, in the order of their indices."""
    train = _counts(data.targets)
    test = _counts(data.test_targets)
    found: list[ClassCount] = []
    for index in sorted({*train, *test}):
        found.append(ClassCount(name_of(data, index), train.get(index, 0), test.get(index, 0)))
    return tuple(found)


def _counts(targets: Array) -> Mapping[int, int]:
    """Samples of each class index, or with each label."""
    if targets.ndim > 1:
        return dict(enumerate(targets.sum(axis=0).tolist()))
    indices, counts = np.unique(targets, return_counts=True)
    return dict(zip(indices.tolist(), counts.tolist(), strict=True))


def _extremes(data: Dataset) -> tuple[float, float]:
    """The smallest and the largest feature; missing cells do not count."""
    present = data.features
    if data.columns is not None:
        present = present[np.isfinite(present)]
    if not present.size:
        return 0.0, 0.0
    return float(present.min()), float(present.max())


def note_on_testing(data: Dataset) -> str:
    """Which samples will test, of data without a test part."""
    which = "drawn on a seed"
    if windows_in(data)[1] is not None:
        which = "the latest windows of each series"
    elif data.columns is not None and data.columns.moments is not None:
        which = "the latest rows (task.test: random draws them)"
    return f"no test part: 20 % of the samples, {which}, will be held back for testing"


def _notes(data: Dataset, classes: tuple[ClassCount, ...], task: Task | None) -> tuple[str, ...]:
    """Unusual properties of the data that do not keep it out."""
    notes: list[str] = []
    few = {one.name: one.train for one in classes if one.train < FEW}
    if len(few) > MAX_SINGLY:
        notes.append(
            f"{len(few)} classes have fewer than {FEW} training samples: {counted_names(few)}"
        )
    else:
        for name, train in few.items():
            notes.append(f"class {name!r} has only {train} training samples")
    if len(classes) == 1:
        name = classes[0].name
        notes.append(
            f"one class only ({name!r}): alone, this device cannot learn to distinguish classes"
        )
    if task is not None:
        notes += column_notes(data, task)
    if data.columns is not None and data.columns.left_out:
        notes.append(
            f"{data.columns.left_out} samples with missing cells are left out (task.impute is drop)"
        )
    if data.columns is not None and data.columns.unlabelled:
        notes.append(
            f"{data.columns.unlabelled} samples without a target are left out (task.drop_unlabelled)"
        )
    if not data.has_test:
        notes.append(note_on_testing(data))
    if task is not None and task.standardise == "none":
        largest = max(abs(extreme) for extreme in _extremes(numbers_of(data, task))) * task.scale
        if task.scale != 1 and largest < SMALL:
            notes.append(
                f"features reach only {largest:.3g} after task.scale, usual is 1: check that this device's features have "
                "the range of the others'"
            )
        if largest > LARGE:
            notes.append(
                f"features reach {largest:g} after task.scale: set task.standardise, or a smaller "
                "task.scale"
            )
    return tuple(notes)
