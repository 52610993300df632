"""A made-up agent, to drive a strategy dry: it trains in no time and needs no memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics import kinship
from covey.shared.numerics.split import Mask
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    Contrast,
    DataSplit,
    GradientCorrection,
    SampleIndices,
    TrainingResult,
)

EXAMPLES = 32  # training samples
NO_CORRECTION = GradientCorrection()


class ConstantClient:
    """Whatever it trains, its model is one number repeated; that number differs between agents.

    It is a `Local`, whose methods are documented there.

    Args:
        value: the number, from 1
        size: length of a model's vector
        outputs: classes, or 1 for regression
        features: numbers in one sample
        width: of what the last layer reads
    """

    def __init__(self, value: int, size: int, outputs: int, features: int, width: int = 1) -> None:
        self._value = value
        self._size = size
        self._outputs = outputs
        self._features = features
        self._width = width

    def __repr__(self) -> str:
        return f"ConstantClient({self._value})"

    @property
    def examples(self) -> int:
        return EXAMPLES

    def loss(self, model: Vector) -> float:
        if not model.size:
            return 0.0
        return abs(float(model[0]) - self._value)

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        return np.full(EXAMPLES, self.loss(model), np.float32)

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        return self._constant()

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        yield [np.arange(EXAMPLES)]

    def train(
        self,
        start: Vector,
        correction: GradientCorrection = NO_CORRECTION,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        weights: npt.NDArray[np.float32] | None = None,
        contrast: Contrast | None = None,
        trained: Mask | None = None,
        velocity: Vector | None = None,
        at_home: bool = False,
    ) -> TrainingResult:
        return TrainingResult(self._constant(), 1, 1.0)

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        return np.bincount([self._value % clusters] * EXAMPLES, minlength=clusters)

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        return np.zeros((EXAMPLES, self._outputs), np.float32)

    def inputs(self) -> npt.NDArray[np.float32]:
        return np.eye(EXAMPLES, self._features, dtype=np.float32) * self._value

    def features(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float64]:
        return np.full((EXAMPLES, self._width), float(self._value))

    def targets(self, split: DataSplit) -> npt.NDArray[Any]:
        return np.zeros(EXAMPLES, np.int64)

    def card(
        self, seed: int, client: str, min_cell: int, blocks: int | None = None
    ) -> kinship.Card:
        units = np.arange(EXAMPLES)
        labels = self.targets("train")
        classes = self._outputs if self._outputs > 1 else kinship.LEVELS
        pieces = [self.inputs()]
        return kinship.card(pieces, labels, classes, units, seed, client, min_cell, blocks)

    def _constant(self) -> Vector:
        """The model: a view of one number, which takes no memory."""
        return np.broadcast_to(np.float32(self._value), (self._size,))
