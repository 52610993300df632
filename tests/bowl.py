"""Two small honest clients in numpy: a quadratic bowl whose answers are known by hand, and softmax regression.

Both train by one rule: decay, correction, momentum, step; a fresh optimiser per job.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    Contrast,
    DataSplit,
    GradientCorrection,
    Local,
    SampleIndices,
    Training,
    TrainingResult,
)

Array = npt.NDArray[Any]
NO_CORRECTION = GradientCorrection()


def flat(*values: float) -> Vector:
    return np.array(values, np.float32)


def bowl_layout(size: int = 2, head: int = 1) -> Layout:
    """`size` parameters, the last `head` of which are the final layer."""
    return Layout((Tensor("body.weight", (size - head,)), Tensor("head.weight", (head,))), 2)


@dataclass(frozen=True)
class Trainer(Local, ABC):
    """LocalTrain over any client that knows its samples' gradients. The driver sets `training` and `seed`."""

    training: Training = field(default=Training(), kw_only=True)
    seed: int = field(default=0, kw_only=True)

    @abstractmethod
    def _batch(self, model: Array, rows: Array, weights: Array) -> tuple[float, Array]:
        """Mean of the weighted losses of these samples, and its gradient."""

    def loss(self, model: Vector) -> float:
        return float(np.mean(self.losses(model)))

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        if rows is None:
            rows = np.arange(self.examples)
            if batch is not None and batch < self.examples:
                rows = generator(self.seed, "gradient").choice(self.examples, batch, replace=False)
        return self._batch(model.astype(np.float64), rows, np.ones(len(rows)))[1].astype(np.float32)

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        for epoch in range(epochs or self.training.epochs):
            order = generator(self.seed, "shuffle", epoch).permutation(self.examples)
            yield np.array_split(
                order, range(self.training.batch, self.examples, self.training.batch)
            )

    def train(
        self,
        start: Vector,
        correction: GradientCorrection = NO_CORRECTION,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        weights: npt.NDArray[np.float32] | None = None,
        contrast: Contrast
        | None = None,  # no part of these models has to do with clusters: its gradient is 0
        frozen: int = 0,
        velocity: Vector | None = None,
    ) -> TrainingResult:
        t, w = self.training, start.astype(np.float64)
        each = np.ones(self.examples) if weights is None else weights
        v, losses = np.zeros_like(w) if velocity is None else velocity.astype(np.float64), []
        if steps is not None:
            epochs = math.ceil(steps / math.ceil(self.examples / t.batch))
        for rows in islice(chain.from_iterable(self.batches(epochs)), steps):
            loss, g = self._batch(w, rows, each[rows])
            g = g + t.weight_decay * w
            if correction.anchor is not None:
                g = g + correction.mu * (w - correction.anchor)
            if correction.drift is not None:
                g = g + correction.drift
            g[:frozen] = 0
            v = t.momentum * v + g
            w = w - t.lr * v
            losses.append(loss)
        kept = v.astype(np.float32) if t.momentum else None
        return TrainingResult(
            w.astype(np.float32), len(losses), math.fsum(losses) / len(losses), kept
        )

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        """A head that is fixed: it cuts the targets into ranges of equal width."""
        targets = self.targets("train")
        top = float(getattr(self, "classes", 1))
        return np.bincount(
            (targets / top * clusters).astype(np.int64).clip(0, clusters - 1), minlength=clusters
        )


@dataclass(frozen=True)
class Bowl(Trainer):
    """F(w) = curvature / 2 * |w - minimum|^2: every one of the n samples is the same bowl."""

    minimum: Vector
    examples: int = 10
    curvature: float = 1.0

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        value = self.curvature / 2 * float(np.sum((model.astype(np.float64) - self.minimum) ** 2))
        return np.full(self.examples, value, np.float32)

    def _batch(self, model: Array, rows: Array, weights: Array) -> tuple[float, Array]:
        gap, weight = model - self.minimum, float(np.mean(weights))
        return weight * self.curvature / 2 * float(gap @ gap), weight * self.curvature * gap

    def inputs(self) -> npt.NDArray[np.float32]:
        return np.tile(self.minimum, (self.examples, 1))

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        return np.full((self.examples, 1), model[0], np.float32)

    def targets(self, split: DataSplit) -> Array:
        return np.full(self.examples, self.minimum[0], np.float32)


@dataclass(frozen=True)
class Softmax(Trainer):
    """Multinomial logistic regression: features (n, f), labels (n,); the test split is the training split."""

    x: Array
    y: Array
    classes: int
    names: tuple[str, str] = (
        "out.weight",
        "out.bias",
    )  # of the tensors: different modules make two layers

    @property
    def examples(self) -> int:
        return len(self.y)

    @property
    def layout(self) -> Layout:
        shapes = (self.classes, self.x.shape[1]), (self.classes,)
        return Layout(tuple(map(Tensor, self.names, shapes)), 2)

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        chances = self._chances(model.astype(np.float64), self.x)
        return -np.log(chances[np.arange(self.examples), self.y]).astype(np.float32)

    def inputs(self) -> npt.NDArray[np.float32]:
        return np.asarray(self.x, np.float32)

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        weight, bias = self.layout.named(model).values()
        return np.asarray(self.x @ weight.T + bias, np.float32)

    def targets(self, split: DataSplit) -> Array:
        return self.y

    def _batch(self, model: Array, rows: Array, weights: Array) -> tuple[float, Array]:
        chances = self._chances(model, self.x[rows])
        losses = -np.log(chances[np.arange(len(rows)), self.y[rows]])
        slope = (chances - np.eye(self.classes)[self.y[rows]]) * weights[:, None] / len(rows)
        return float(np.mean(weights * losses)), np.concatenate(
            [(slope.T @ self.x[rows]).ravel(), slope.sum(axis=0)]
        )

    def _chances(self, model: Array, x: Array) -> Array:
        cut = self.classes * self.x.shape[1]
        logits = x @ model[:cut].reshape(self.classes, -1).T + model[cut:]
        return _softmax(logits)


@dataclass(frozen=True)
class Perceptron(Softmax):
    """Softmax regression on hidden layers of tanh units, `hidden` wide."""

    hidden: tuple[int, ...] = (4, 3)

    @property
    def layout(self) -> Layout:
        widths = (self.x.shape[1], *self.hidden, self.classes)
        names = [*(f"fc{i + 1}" for i in range(len(self.hidden))), "out"]
        shapes = [(name, (b, a)) for name, a, b in zip(names, widths, widths[1:], strict=False)]
        tensors = [
            (Tensor(f"{name}.weight", shape), Tensor(f"{name}.bias", shape[:1]))
            for name, shape in shapes
        ]
        return Layout(tuple(tensor for pair in tensors for tensor in pair), 2 * len(shapes))

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        chances = _softmax(self._forward(model.astype(np.float64), self.x)[-1])
        return -np.log(chances[np.arange(self.examples), self.y]).astype(np.float32)

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        return np.asarray(self._forward(model, self.x)[-1], np.float32)

    def _forward(self, model: Array, x: Array) -> list[Array]:
        """What each layer reads, and the logits."""
        weights = list(self.layout.named(model).values())
        reads = [x]
        for weight, bias in zip(weights[::2], weights[1::2], strict=True):
            out = reads[-1] @ weight.T + bias
            reads.append(np.tanh(out))
        return [*reads[:-1], out]

    def _batch(self, model: Array, rows: Array, weights: Array) -> tuple[float, Array]:
        *reads, logits = self._forward(model, self.x[rows])
        chances = _softmax(logits)
        losses = -np.log(chances[np.arange(len(rows)), self.y[rows]])
        slope = (chances - np.eye(self.classes)[self.y[rows]]) * weights[:, None] / len(rows)
        kernels = list(self.layout.named(model).values())[::2]
        parts: list[Array] = []
        for read, kernel in zip(reversed(reads), reversed(kernels), strict=True):
            parts = [(slope.T @ read).ravel(), slope.sum(axis=0), *parts]
            slope = (slope @ kernel) * (1 - read**2)
        return float(np.mean(weights * losses)), np.concatenate(parts)


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def perceptron_client(labels: tuple[int, ...], *, seed: int, n: int = 24) -> Perceptron:
    """The same client with hidden units."""
    plain = softmax_client(labels, seed=seed, n=n)
    return Perceptron(plain.x, plain.y, plain.classes)


def softmax_client(
    labels: tuple[int, ...], *, seed: int, n: int = 24, classes: int = 4, features: int = 5
) -> Softmax:
    """A client that owns only these labels: each class is a Gaussian around a point that all clients share."""
    points = generator(0, "classes").normal(0, 2, (classes, features))
    draw = generator(seed, "client")
    y = draw.choice(labels, n)
    return Softmax(points[y] + draw.normal(0, 1, (n, features)), y.astype(np.int64), classes)


Drop = Callable[[str, int, str], bool]  # (phase, round, client) -> is its report lost?
