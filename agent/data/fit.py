"""Does this data fit the task? Either it does, after renaming classes and reshaping, or a DataError says what differs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from covey.agent.data.dataset import Array, Dataset
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task


def fit(data: Dataset, task: Task) -> Dataset:
    """The data with the task's feature shape and class indices (or float32 values where `classes` is null).

    Features keep their type: the learner multiplies by `task.scale` and standardises batch by batch.
    """
    shape = _shape(data, task)
    targets, test_targets = _targets(data, task)
    return replace(
        data,
        features=data.features.reshape(-1, *shape),
        test_features=data.test_features.reshape(-1, *shape),
        targets=targets,
        test_targets=test_targets,
        labels=task.classes if isinstance(task.classes, tuple) else (),
        ordered=True,
    )


def _shape(data: Dataset, task: Task) -> tuple[int, ...]:
    """The task's shape, if the data's differs from it in nothing but axes of length one, or is a flat row."""
    have, want = data.shape, task.features
    if [n for n in have if n != 1] == [n for n in want if n != 1]:
        return want
    flat = len(have) == 1 or len(want) == 1
    if flat and np.prod(have) == np.prod(want):
        return want
    fault = f"samples have shape {list(have)}, the task expects {list(want)}; {_hint(have, want)}"
    raise DataError(f"{data.source}: {fault}", public=fault)


def _hint(have: tuple[int, ...], want: tuple[int, ...]) -> str:
    if sorted(have) == sorted(want):
        return "the axes are in another order: channels come first"
    if len(have) == 1 and len(want) == 1:
        return f"the table has {have[0]} feature columns, {want[0]} are wanted"
    if len(have) == len(want) == 3 and have[1:] == want[1:]:
        return f"the images have {have[0]} colour channels, {want[0]} are wanted: convert them beforehand"
    if len(have) == len(want) == 3:
        return f"the images are {have[2]}x{have[1]}, wanted is {want[2]}x{want[1]}: resize them beforehand"
    return f"that is {int(np.prod(have))} numbers per sample, {int(np.prod(want))} are wanted"


def _targets(data: Dataset, task: Task) -> tuple[Array, Array]:
    if task.classes is None:
        if data.labels:
            expected = "the task expects numbers: classes is null, so this is regression"
            raise DataError(
                f"{data.source}: the targets are class names ({_few(data.labels)}), {expected}",
                public=f"the targets are class names, {expected}",
            )
        return data.targets.astype(np.float32), data.test_targets.astype(np.float32)
    if data.regression:
        value = next(
            v for part in (data.targets, data.test_targets) for v in part.tolist() if v != int(v)
        )
        expected = f"the task has {task.outputs} classes; for regression leave task.classes out"
        raise DataError(
            f"{data.source}: a target is {value:g}, {expected}",
            public=f"a target is no class index, {expected}",
        )
    table = _table(data, task)
    return _mapped(data.targets, table, data, task), _mapped(data.test_targets, table, data, task)


def _table(data: Dataset, task: Task) -> dict[int, int]:
    """From the data's target to the task's class index."""
    names = data.labels
    if isinstance(task.classes, tuple):
        index = {name: i for i, name in enumerate(task.classes)}
        if names:
            return {i: index[name] for i, name in enumerate(names) if name in index}
        spelled = {int(name): i for name, i in index.items() if name.lstrip("-").isdecimal()}
        return spelled or {i: i for i in range(len(task.classes))}
    if names and all(name.isdecimal() and name.isascii() for name in names):
        return {
            i: int(name) for i, name in enumerate(names) if int(name) < task.outputs
        }  # folders called 0, 1, 2
    if names and not data.ordered:
        expected = (
            f"the task only counts {task.classes} classes; "
            "devices may know different ones: name them all in task.classes"
        )
        raise DataError(
            f"{data.source}: the classes are names ({_few(names)}), {expected}",
            public=f"the classes are names, {expected}",
        )
    return {i: i for i in range(task.outputs)}


def _mapped(targets: Array, table: dict[int, int], data: Dataset, task: Task) -> Array:
    """Targets through the table; the first class that is not in it is named."""
    seen, inverse = np.unique(targets, return_inverse=True)
    strange = [int(value) for value in seen if int(value) not in table]
    if strange:
        name = data.labels[strange[0]] if 0 <= strange[0] < len(data.labels) else str(strange[0])
        row = int(np.flatnonzero(targets == strange[0])[0]) + 1
        wanted = (
            _few(task.classes) if isinstance(task.classes, tuple) else f"0 to {task.outputs - 1}"
        )
        expected = f"unknown to the task; its classes are {wanted}"
        raise DataError(
            f"{data.source}: row {row}: class {name!r} is {expected}",
            public=f"row {row}: its class is {expected}",
        )
    return np.array([table[int(value)] for value in seen], np.int64)[inverse.reshape(-1)]


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more
