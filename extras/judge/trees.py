"""Boosted trees on the device's own table: the candidate that four lines of scikit-learn are.

They are fitted again from the rows wherever they are needed: nothing is unpickled. Behind a door: scikit-learn is imported when
the first are fitted, and only where it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from covey.agent.data.local import DataOfLocal
from covey.shared.scenario.task import Task
from covey.shared.strategies.client_half import DataSplit, Local

Float64 = npt.NDArray[np.float64]
MOST_KEPT = 64  # trees of a process: in three folds and of all rows, those of sixteen devices
LARGE = 1 << 20  # bytes of rows: trees of more are not kept


def least_in_leaf(rows: int) -> int:
    """How many of these rows a leaf has at least: scikit-learn's 20, with which fewer than 40 rows are never split, or fewer."""
    return max(3, min(20, rows // 4))


@dataclass(frozen=True)
class Trees:
    """Boosted trees with the defaults of scikit-learn, smaller leaves on few rows, and a fixed seed; of classes, values, or nothing."""

    model: Any  # of scikit-learn; None: all targets are of one class
    classes: npt.NDArray[np.int64]  # by column of what it answers; empty: values
    outputs: int
    rows: npt.NDArray[np.float32]  # that they were fitted to
    targets: npt.NDArray[Any]

    @classmethod
    def of(cls, rows: npt.NDArray[np.float32], targets: npt.NDArray[Any], outputs: int) -> Self:
        """Those of some rows: the same rows always give the same trees."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        chosen = {"random_state": 0, "min_samples_leaf": least_in_leaf(len(rows))}
        is_value = targets.dtype.kind == "f"
        classes = np.empty(0, np.int64) if is_value else np.unique(targets)
        kind = HistGradientBoostingRegressor if is_value else HistGradientBoostingClassifier
        if len(classes) == 1:
            return cls(None, classes, outputs, rows, targets)
        # with several threads each level waits for all of them: on a busy machine many times as long. A worker has its own number
        with threadpool_limits(None if "OMP_NUM_THREADS" in os.environ else 1):
            model = kind(**chosen).fit(rows, targets)
        return cls(model, classes, outputs, rows, targets)

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
    suits = task.kind == "classes" or (task.kind == "values" and task.outputs == 1)
    if len(task.features) != 1 or not suits or find_spec("sklearn") is None:
        return None

    def made(local: Local) -> Trees:
        rows, targets = cast(DataOfLocal, local).rows("train"), local.targets("train")
        if rows.nbytes > LARGE:
            return Trees.of(rows, targets, task.outputs)
        kind = targets.dtype.str
        return _kept(rows.tobytes(), rows.shape[1], targets.tobytes(), kind, task.outputs)

    return made


@lru_cache(MOST_KEPT)
def _kept(rows: bytes, columns: int, targets: bytes, kind: str, outputs: int) -> Trees:
    """Fitted once for all methods of a comparison, and for a device whose rows have not changed since it last judged."""
    table = np.frombuffer(rows, np.float32).reshape(-1, columns)
    return Trees.of(table, np.frombuffer(targets, kind), outputs)
