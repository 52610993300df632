"""Does this data fit the task? Either it does, after renaming classes and reshaping, or a DataError names the difference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from covey.agent.data.cells import LEAVES_OUT
from covey.agent.data.dataset import Array, Dataset, take
from covey.agent.data.values import spelled
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task
from covey.shared.sentences import some

MAX_NAMES = 10  # in a message
FLAGS = {"0": False, "1": True, "false": False, "true": True}  # how cells spell labels

Shape = tuple[int, ...]
Names = tuple[str, ...]
ClassTable = dict[int, int]  # from a target of the data to the task's class index


@dataclass(frozen=True)
class UnknownClass:
    """A class of the data that the task does not have."""

    name: str
    samples: int
    row: int  # of its first sample, from 1

    def __str__(self) -> str:
        noun = "sample" if self.samples == 1 else "samples"
        return f"{self.name!r} ({self.samples} {noun}, the first in row {self.row})"


def fit(data: Dataset, task: Task) -> Dataset:
    """The data with the task's feature shape and targets. Columns that the task names become inputs later (`prepared`).

    Targets become the task's class indices int64, float32 values if `task.classes` is null, or bool of labels and anomalies.
    Features keep their type: the learner multiplies by `task.scale` and standardises batch by batch.

    Raises:
        DataError: samples of another shape, an unknown class, or classes where values are expected and vice versa.
    """
    if data.targets.dtype == np.bool_:
        return data  # fits already
    shape = fitting_form(data, task)
    if LEAVES_OUT.get() and task.kind in ("classes", "anomalies") and not data.regression:
        data = _of_known_classes(data, _class_table(data, task))
    match task.kind:
        case "values":
            targets, test_targets = _values(data)
        case "labels":
            targets, test_targets = _flags(data.targets, data), _flags(data.test_targets, data)
        case _:
            targets, test_targets = _class_indices(data, task)
    if task.kind == "anomalies":
        targets, test_targets = targets > 0, test_targets > 0
        if data.has_test:  # otherwise `with_test` makes unusual samples test
            data, targets = take(data, np.flatnonzero(~targets)), targets[~targets]
    class_names: Names = ()
    if isinstance(task.classes, tuple):
        class_names = task.classes
    if task.kind == "anomalies":
        usual, *others = class_names
        class_names = (usual, " or ".join(others))
    return replace(
        data,
        features=data.features.reshape(-1, *shape),
        test_features=data.test_features.reshape(-1, *shape),
        targets=targets,
        test_targets=test_targets,
        labels=class_names,
        ordered=True,
    )


def fitting_form(data: Dataset, task: Task) -> Shape:
    """The shape of samples in the task, as far as it follows from columns and shapes, and not from cells. DataError if there is none."""
    _check_table(data, task)
    shape = data.shape if task.has_own_columns else _fitting_shape(data, task)
    _check_targets(data, task)
    return shape


def _of_known_classes(data: Dataset, table: ClassTable) -> Dataset:
    """The data without samples of other classes."""
    known = np.isin(data.test_targets, list(table))
    return replace(
        take(data, np.flatnonzero(np.isin(data.targets, list(table)))),
        test_features=data.test_features[known],
        test_targets=data.test_targets[known],
        test_groups=None if data.test_groups is None else data.test_groups[known],
    )


def _check_table(data: Dataset, task: Task) -> None:
    """DataError if the task names columns of a table and the data is something else."""
    if not task.has_own_columns:
        return
    if data.columns is None and len(data.targets):
        fault = (
            "task.columns names the columns of a table, and the data is none: give a CSV or Parquet "
            "file"
        )
        raise DataError(f"{data.source}: {fault}", public=fault)


def _fitting_shape(data: Dataset, task: Task) -> Shape:
    """The task's shape, if the data's differs from it only in axes of length one, or is a flat row of as many numbers."""
    seen = data.shape
    expected = task.features
    if _without_single_axes(seen) == _without_single_axes(expected):
        return expected
    one_is_flat = len(seen) == 1 or len(expected) == 1
    numbers = math.prod(seen)
    expected_numbers = math.prod(expected)
    if one_is_flat and numbers == expected_numbers:
        return expected
    hint = _shape_hint(seen, expected)
    fault = f"samples have shape {list(seen)}, the task expects {list(expected)}; {hint}"
    raise DataError(f"{data.source}: {fault}", public=fault)


def _without_single_axes(shape: Shape) -> Shape:
    return tuple(length for length in shape if length != 1)


def _shape_hint(seen: Shape, expected: Shape) -> str:
    """What the difference of two shapes probably means, and what to do."""
    if sorted(seen) == sorted(expected):
        return "the axes are in another order: put the channels first"
    match seen, expected:
        case (columns,), (expected_columns,):
            return (
                f"the table has {columns} feature columns instead of {expected_columns}: remove or "
                "add columns, or name the label column"
            )
        case (channels, height, width), (expected_channels, expected_height, expected_width):
            if height == expected_height and width == expected_width:
                return (
                    f"the images have {channels} colour channels instead of {expected_channels}: "
                    "convert them"
                )
            return (
                f"the images are {width}x{height} instead of {expected_width}x{expected_height}: "
                "resize them, or set task.resize"
            )
    numbers = math.prod(seen)
    expected_numbers = math.prod(expected)
    return f"that is {numbers} numbers per sample instead of {expected_numbers}"


def _check_targets(data: Dataset, task: Task) -> None:
    """DataError for another number of targets in a sample."""
    expected = task.outputs if task.kind in ("values", "labels") else 1
    seen = math.prod(data.targets.shape[1:])
    if seen != expected:
        fault = f"a sample has {seen} targets, the task expects {expected}"
        raise DataError(f"{data.source}: {fault}", public=fault)


def _values(data: Dataset) -> tuple[Array, Array]:
    """Training and test targets of a regression task (n,), or of forecasts (n, steps), float32."""
    if data.labels:
        names = some(data.labels, MAX_NAMES)
        expected = "the task expects numbers (task.classes is null): name a numeric label column"
        raise DataError(
            f"{data.source}: the targets are class names ({names}), {expected}",
            public=f"the targets are class names, {expected}",
        )
    return data.targets.astype(np.float32), data.test_targets.astype(np.float32)


def _flags(targets: Array, data: Dataset) -> Array:
    """Whether each sample has each label (n, labels), from 0 and 1, or false and true."""
    names = data.labels or ("0", "1")
    flags = {place: FLAGS.get(name.lower()) for place, name in enumerate(names)}
    known = [place for place, flag in flags.items() if flag is not None]
    wrong = np.argwhere(~np.isin(targets, known))
    if len(wrong):
        fault = f"row {wrong[0][0] + 1}: a target is not a label; expected 0 or 1, or false or true"
        raise DataError(f"{data.source}: {fault}", public=fault)
    return np.isin(targets, [place for place in known if flags[place]])


def _class_indices(data: Dataset, task: Task) -> tuple[Array, Array]:
    """Training and test targets of a classification task, int64."""
    if data.regression:
        value = _first_fraction(data)
        expected = f"the task has {task.outputs} classes; for regression leave task.classes out"
        raise DataError(
            f"{data.source}: a target is {value:g}, {expected}",
            public=f"a target is not a class index, {expected}",
        )
    table = _class_table(data, task)
    _check_classes(data, table, task)
    return _mapped(data.targets, table), _mapped(data.test_targets, table)


def _first_fraction(data: Dataset) -> float:
    """The first target that is no whole number; regression data has at least one."""
    targets = np.concatenate([data.targets, data.test_targets])
    is_fraction = targets != np.trunc(targets)
    return float(targets[is_fraction][0])


def _class_table(data: Dataset, task: Task) -> ClassTable:
    """The task's index of each class that the data and the task share."""
    names = data.labels
    if isinstance(task.classes, tuple):
        return _table_of_named_classes(names, task.classes)
    if names and all(map(_is_index, names)):  # folders called 0, 1, 2
        table: ClassTable = {}
        for target, name in enumerate(names):
            index = int(name)
            if index < task.outputs:
                table[target] = index
        return table
    if names and not data.ordered:
        expected = (
            f"the task only counts {task.classes} classes; devices may know different ones: "
            "name them all in task.classes"
        )
        raise DataError(
            f"{data.source}: the classes are names ({some(names, MAX_NAMES)}), {expected}",
            public=f"the classes are names, {expected}",
        )
    return {index: index for index in range(task.outputs)}


def _table_of_named_classes(names: Names, classes: Names) -> ClassTable:
    """By name if the data has names, else by the numbers that the task's names spell, else by position."""
    index_of = {spelled(name): index for index, name in enumerate(classes)}
    table: ClassTable = {}
    if names:
        for target, name in enumerate(names):
            if spelled(name) in index_of:
                table[target] = index_of[spelled(name)]
        return table
    for name, index in index_of.items():
        if name.lstrip("-").isdecimal():
            table[int(name)] = index
    if table:
        return table
    return {index: index for index in range(len(classes))}


def _is_index(name: str) -> bool:
    return name.isdecimal() and name.isascii()


def _mapped(targets: Array, table: ClassTable) -> Array:
    """Targets (n,) through the table, which has all of them, int64."""
    seen, inverse = np.unique(targets, return_inverse=True)
    return np.array([table[int(value)] for value in seen], np.int64)[inverse.reshape(-1)]


def _check_classes(data: Dataset, table: ClassTable, task: Task) -> None:
    """DataError if targets are not in the table. One message names all these classes."""
    unknown = _unknown_classes(data.targets, table, data)
    if not unknown:
        unknown = _unknown_classes(data.test_targets, table, data)
    if not unknown:
        return
    classes = f"0 to {task.outputs - 1}"
    if isinstance(task.classes, tuple):
        classes = some(task.classes, MAX_NAMES)
    expected = f"unknown to the task; its classes are {classes}"
    first = unknown[0]
    if len(unknown) == 1:
        raise DataError(
            f"{data.source}: row {first.row}: class {first.name!r} is {expected}",
            public=f"row {first.row}: its class is {expected}",
        )
    found = some([str(one) for one in unknown], MAX_NAMES)
    count = len(unknown)
    raise DataError(
        f"{data.source}: {count} classes are {expected}; the unknown ones are {found}: rename or remove them",
        public=f"row {first.row}: its class is {expected}; {count} classes are unknown",
    )


def _unknown_classes(targets: Array, table: ClassTable, data: Dataset) -> list[UnknownClass]:
    """The classes of targets (n,) that are not in the table, by index."""
    found: list[UnknownClass] = []
    seen, first, counts = np.unique(targets, return_index=True, return_counts=True)
    for place, value in enumerate(seen.tolist()):
        target = int(value)
        if target not in table:
            name = _class_name(target, data)
            found.append(UnknownClass(name, int(counts[place]), int(first[place]) + 1))
    return found


def _class_name(target: int, data: Dataset) -> str:
    """The name of a class as the data has it, else its number."""
    if 0 <= target < len(data.labels):
        return data.labels[target]
    return str(target)
