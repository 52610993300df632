"""Work without data: what an order comes to on a device of which nothing may be seen.

A coordinator can choose models and settings with which the work fails if and only if a row has certain values. So a failure does
not exist if noise or a sum is demanded: an order is tried on rows of ones before the data are read, and a report names what fails
then; what fails with the data is done with such rows instead, of which no model learns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from covey.agent.data.dataset import Dataset
from covey.shared.numerics.figures import Figures
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.settings import Noise
from covey.shared.scenario.task import Task
from covey.shared.strategies.client_half import (
    AS_ORDERED,
    Drill,
    Local,
    Mixture,
    SampleIndices,
    TrainingResult,
)

ROWS = 8


@dataclass(frozen=True)
class Blank:
    """A table of ones in the place of a device's data; its test part has one row."""

    rows: int

    def dataset(self, task: Task) -> Dataset:
        """The table in the form of a task."""
        features = np.ones((1, *task.features), np.float32)
        width = (
            () if task.outputs == 1 or task.kind in ("classes", "anomalies") else (task.outputs,)
        )
        dtype = {"values": np.float32, "classes": np.int64}.get(task.kind, np.bool_)
        targets = np.zeros((1, *width), dtype)
        # one row in the memory of all; torch warns about arrays that cannot be written
        train = as_strided(features, (self.rows, *task.features), (0, *features.strides[1:]))
        labels = np.repeat(targets, self.rows, axis=0)
        if task.kind == "classes":
            labels = np.arange(self.rows) % task.outputs
        return Dataset(train, labels, features, targets, source="no data")


class NoiseAlone(Noise):
    """Draws no sample for DP-SGD."""

    def chosen(self, count: int, rate: float) -> SampleIndices:
        return np.empty(0, np.int64)


class WithoutData:
    """A `Local` whose training leaves a model as it is; all else is that of a blank table.

    Args:
        local: over a blank table.
        tries: whether each training takes a step, for what is wrong with an order.
    """

    def __init__(self, local: Local, *, tries: bool) -> None:
        self._local = local
        self._tries = tries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        """A training that learns nothing; under DP-SGD noise alone."""
        once = replace(drill, steps=1) if drill.epochs != 0 and self._tries else drill
        if getattr(self._local, "ledger", None) is not None and not drill.at_home:
            return self._local.train(start, once)
        if self._tries:
            self._local.train(start, once)
        debias = drill.correction.debias
        own = None if debias is None else debias.own
        steps = int(drill.epochs != 0 and drill.steps != 0)
        return TrainingResult(start.copy(), steps, 0.0, drill.velocity, own)

    def gradient(self, model: Vector, **_: object) -> Vector:
        """None (d,)."""
        return np.zeros_like(model)

    def figures(self, _: Mixture) -> Figures:
        """None: it has no test samples that count."""
        return {"n": 0}

    def statistics(self) -> dict[str, Any]:
        """None."""
        return {}
