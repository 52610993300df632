"""Boosted trees on the device's own table: the candidate that four lines of scikit-learn are.

They are fitted again from the rows wherever they are needed: nothing is unpickled. Behind a door: scikit-learn is imported when
the first are fitted, and only where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from covey.agent.data.local import DataOfLocal
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import DataSplit, Local

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trees:
    """Boosted trees with the defaults of scikit-learn, one thread and a fixed seed; of classes, values, or nothing."""

    model: Any  # of scikit-learn; None: all targets are of one class
    classes: npt.NDArray[np.int64]  # by column of what it answers; empty: values
    outputs: int

    def answers(self, local: Local, split: DataSplit) -> Float64:
        rows = cast(DataOfLocal, local).rows(split)
        if not len(self.classes):
            return np.asarray(self.model.predict(rows), np.float64).reshape(-1, 1)
        found = np.zeros((len(rows), self.outputs))
        if len(rows):
            found[:, self.classes] = 1.0 if self.model is None else self.model.predict_proba(rows)
        return found


def trees_for(task: Task) -> Callable[[Local], Trees] | None:
    """What makes trees of a device's samples; None where they do not suit the task, or scikit-learn is not installed.

    They suit tables with one class or value for each row.
    """
    is_table = len(task.features) == 1
    if not is_table or task.kind not in ("classes", "values") or find_spec("sklearn") is None:
        return None
    if task.kind == "values" and task.outputs != 1:
        return None
    return lambda local: _fitted(local, task.outputs)


def _fitted(local: Local, outputs: int) -> Trees:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    rows, targets = cast(DataOfLocal, local).rows("train"), local.targets("train")
    if targets.dtype.kind == "f":
        model = HistGradientBoostingRegressor(random_state=0).fit(rows, targets)
        return Trees(model, np.empty(0, np.int64), 1)
    classes = np.unique(targets)
    if len(classes) == 1:
        return Trees(None, classes, outputs)
    return Trees(
        HistGradientBoostingClassifier(random_state=0).fit(rows, targets), classes, outputs
    )
