"""The data of a device as it takes part: read, compared with the task, and what of it leaves the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data import fit, load, with_test
from covey.agent.data.dataset import Dataset
from covey.shared.errors import DataError
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.task import Task


@dataclass(frozen=True)
class Disclosure:
    """All that leaves the device about its data."""

    samples: int
    test_samples: int
    labels: tuple[str, ...]  # the task's names of the classes that occur in the training part
    problem: str | None  # kind and place of what keeps the data out, without any of its values

    def to_json(self) -> dict[str, Any]:
        """The form in which an agent sends it."""
        return {
            "samples": self.samples,
            "test_samples": self.test_samples,
            "labels": list(self.labels),
            "problem": self.problem,
        }


def disclosed(dataset: Dataset, task: Task) -> Disclosure:
    """What leaves the device of data that it has for a task; of data that does not fit, only the public part of the problem."""
    try:
        data = fit(dataset, task)
    except DataError as error:
        return Disclosure(0, 0, (), error.public)
    return disclosure_of(data, regression=data.regression or task.classes is None)


def disclosure_of(data: Dataset, *, regression: bool) -> Disclosure:
    """What leaves the device of data that fits."""
    labels = () if regression else _labels(data)
    return Disclosure(len(data.targets), len(data.test_targets), labels, None)


def _labels(data: Dataset) -> tuple[str, ...]:
    """The names of the classes that occur in the training part, in the order of their indices."""
    several = data.targets.ndim > 1
    indices = np.flatnonzero(data.targets.sum(axis=0)) if several else np.unique(data.targets)
    return tuple(name_of(data, index) for index in indices.tolist())


def name_of(data: Dataset, index: int) -> str:
    """The name of a class."""
    return data.labels[index] if 0 <= index < len(data.labels) else str(index)


def load_local(
    path: str | Path, label: str | None = None, task: Task | None = None, seed: int = 0
) -> Dataset:
    """The data of `agent start --data`.

    Args:
        path: a file, a folder, `module:function[:PATH]` or an installed data source.
        label: the label column of a table.
        task: the data is fitted to it, if it is given.
        seed: draws the 20 % that test, for data without a test part of its own.

    Raises:
        DataError: the data cannot be read, or does not fit the task.
    """
    data = read_local(path, label, task)
    if task is not None:
        data = fit(data, task)
    return with_test(data, seed=seed)


def read_local(path: str | Path, label: str | None = None, task: Task | None = None) -> Dataset:
    """The data of `agent start --data` before it is compared with a task, which only names the columns of a table.

    Raises:
        DataError: the data cannot be read.
    """
    typed_by_its_owner = AllowedCode.for_data(str(path))
    return load(path, label, typed_by_its_owner, task)
