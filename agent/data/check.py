"""Looking at local data before taking part: what is there, what hinders, what the coordinator would be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data import Dataset, fit, load, with_test
from covey.shared.consent import AllowedCode
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task

FEW = 10  # training samples of a class below which its learning is a matter of luck


@dataclass(frozen=True)
class Finding:
    """What `agent check` shows. `told` is everything that leaves the device: counts, the task's class names, and of a problem its kind and place.

    `problems` keep the data out; `notes` do not. `classes` gives (name, training samples, test samples) and is
    empty for regression; `value_range` gives the smallest and largest feature, before `task.scale`.
    """

    source: str
    samples: int
    test_samples: int
    shape: tuple[int, ...]
    dtype: str
    classes: tuple[tuple[str, int, int], ...]
    value_range: tuple[float, float]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    told: Mapping[str, Any]


def load_local(
    path: str | Path, label: str | None = None, task: Task | None = None, seed: int = 0
) -> Dataset:
    """The data of `agent start --data`: loaded, fitted to the task if one is given, with a test part.

    Data without a test part of its own has 20 % drawn on `seed`. Raises DataError.
    """
    data = load(path, label, AllowedCode.for_data(str(path)))  # its owner typed it
    return with_test(data if task is None else fit(data, task), seed=seed)


def inspect(dataset: Dataset, task: Task | None = None) -> Finding:
    """Describes the data, as the task sees it where it fits; a DataError becomes a problem in the finding."""
    problems: tuple[str, ...] = ()
    public: str | None = None
    data = dataset
    if task is not None:
        try:
            data = fit(dataset, task)
        except DataError as error:
            problems = (str(error),)
            public = error.public
    classes = _classes(data, task)
    nothing = {"samples": 0, "test_samples": 0, "labels": [], "problem": public}
    told = nothing if problems else _told(data, classes)
    return Finding(
        source=data.source,
        samples=len(data.targets),
        test_samples=len(data.test_targets),
        shape=data.shape,
        dtype=data.features.dtype.name,
        classes=classes,
        value_range=(float(data.features.min()), float(data.features.max())),
        problems=problems,
        notes=_notes(data, classes, task),
        told=told,
    )


def _told(data: Dataset, classes: tuple[tuple[str, int, int], ...]) -> dict[str, Any]:
    labels = [name for name, count, _ in classes if count]
    return {
        "samples": len(data.targets),
        "test_samples": len(data.test_targets),
        "labels": labels,
        "problem": None,
    }


def _classes(data: Dataset, task: Task | None) -> tuple[tuple[str, int, int], ...]:
    """The classes that occur, with their counts."""
    if data.regression or (task is not None and task.classes is None):
        return ()
    seen, counts = np.unique(data.targets, return_counts=True)
    seen_test, counts_test = np.unique(data.test_targets, return_counts=True)
    train, test = (
        dict(zip(values.tolist(), numbers.tolist(), strict=True))
        for values, numbers in ((seen, counts), (seen_test, counts_test))
    )
    return tuple((_name(data, i), train.get(i, 0), test.get(i, 0)) for i in sorted(train | test))


def _name(data: Dataset, index: int) -> str:
    return data.labels[index] if 0 <= index < len(data.labels) else str(index)


def _notes(
    data: Dataset, classes: tuple[tuple[str, int, int], ...], task: Task | None
) -> tuple[str, ...]:
    notes = [
        f"class {name!r} has {train} training samples only"
        for name, train, _ in classes
        if train < FEW
    ]
    if len(classes) == 1:
        notes.append(
            f"one class only ({classes[0][0]!r}): alone, this device cannot learn to tell classes apart"
        )
    if not data.has_test:
        notes.append(
            "no test part: 20 % of the samples, drawn on the seed, will be held back for testing"
        )
    largest = float(np.abs([data.features.min(), data.features.max()]).max())
    if task is not None and task.standardise == "none" and largest * task.scale > 100:
        notes.append(
            f"features reach {largest * task.scale:g} after task.scale: standardise or scale them"
        )
    return tuple(notes)
