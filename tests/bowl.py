"""Two small honest clients in numpy: a quadratic bowl whose answers are known by hand, and softmax regression.

Both train by one rule: decay, correction, momentum, step; a fresh optimiser per job.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared import extras
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import (
    AS_ORDERED,
    Card,
    DataSplit,
    Drill,
    Local,
    SampleIndices,
    TrainingResult,
)

Array = npt.NDArray[Any]


def flat(*values: float) -> Vector:
    return np.array(values, np.float32)


def bowl_layout(size: int = 2, head: int = 1) -> Layout:
    """`size` parameters, the last `head` of which are the final layer."""
    body_tensor = Tensor("body.weight", (size - head,))
    head_tensor = Tensor("head.weight", (head,))
    return Layout((body_tensor, head_tensor), 2)


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
                draw = generator(self.seed, "gradient")
                rows = draw.choice(self.examples, batch, replace=False)
        point = model.astype(np.float64)
        weights = np.ones(len(rows))
        _, gradient = self._batch(point, rows, weights)
        return gradient.astype(np.float32)

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        for epoch in range(epochs or self.training.epochs):
            draw = generator(self.seed, "shuffle", epoch)
            order = draw.permutation(self.examples)
            size = self.training.batch
            cuts = range(size, self.examples, size)
            yield np.array_split(order, cuts)

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        t = self.training
        w = start.astype(np.float64)
        v = np.zeros_like(w)
        if drill.velocity is not None:
            v = drill.velocity.astype(np.float64)
        sample_weights: Array = np.ones(self.examples)
        if drill.weights is not None:
            sample_weights = drill.weights
        losses: list[float] = []
        epochs = drill.epochs
        if drill.steps is not None:
            steps_per_epoch = math.ceil(self.examples / t.batch)
            epochs = math.ceil(drill.steps / steps_per_epoch)
        all_batches = chain.from_iterable(self.batches(epochs))
        for rows in islice(all_batches, drill.steps):
            loss, g = self._batch(w, rows, sample_weights[rows])
            g = g + t.weight_decay * w
            if drill.correction.anchor is not None:
                pull = drill.correction.mu * (w - drill.correction.anchor)
                g = g + (pull if drill.correction.on is None else pull * drill.correction.on)
            if drill.correction.drift is not None:
                g = g + drill.correction.drift
            if drill.trained is not None:
                g[~drill.trained] = 0
            v = t.momentum * v + g
            w = w - t.lr * v
            losses.append(loss)
        end = w.astype(np.float32)
        mean_loss = math.fsum(losses) / len(losses)
        last_velocity = v.astype(np.float32) if t.momentum else None
        return TrainingResult(end, len(losses), mean_loss, last_velocity)

    def card(self, seed: int, client: str, min_cell: int, blocks: int | None = None) -> Card:
        """Each sample is a unit; targets of a regression are one class."""
        kinship = extras.part("cards", "kinship")
        targets = self.targets("train")
        labels = np.zeros(len(targets), np.int64) if targets.dtype.kind == "f" else targets
        units = np.arange(len(labels))
        classes = getattr(self, "classes", kinship.LEVELS)
        pieces = [self.inputs()]
        found: Card = kinship.card(
            pieces,
            labels,
            classes,
            units=units,
            seed=seed,
            client=client,
            min_cell=min_cell,
            blocks=blocks,
        )
        return found

    def units(self) -> npt.NDArray[np.int64]:
        return np.arange(self.examples)

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        """Samples per cluster, by a fixed head that cuts the targets into ranges of equal width: (clusters,)."""
        targets = self.targets("train")
        top = float(getattr(self, "classes", 1))
        positions = targets / top * clusters
        indices = positions.astype(np.int64).clip(0, clusters - 1)
        return np.bincount(indices, minlength=clusters)


@dataclass(frozen=True)
class Bowl(Trainer):
    """F(w) = curvature / 2 * |w - minimum|^2: every one of the n samples is the same bowl."""

    minimum: Vector
    examples: int = 10
    curvature: float = 1.0

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        gap = model.astype(np.float64) - self.minimum
        squared_distance = float(np.sum(gap**2))
        value = self.curvature / 2 * squared_distance
        return np.full(self.examples, value, np.float32)

    def _batch(self, model: Array, rows: Array, weights: Array) -> tuple[float, Array]:
        gap = model - self.minimum
        weight = float(np.mean(weights))
        loss = weight * self.curvature / 2 * float(gap @ gap)
        gradient = weight * self.curvature * gap
        return loss, gradient

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
    # of the tensors: names of different modules make two layers
    names: tuple[str, str] = ("out.weight", "out.bias")

    @property
    def examples(self) -> int:
        return len(self.y)

    @property
    def layout(self) -> Layout:
        weight_name, bias_name = self.names
        features = self.x.shape[1]
        weight = Tensor(weight_name, (self.classes, features))
        bias = Tensor(bias_name, (self.classes,))
        return Layout((weight, bias), 2)

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        chances = self._chances(model.astype(np.float64), self.x)
        return _cross_entropy(chances, self.y).astype(np.float32)

    def inputs(self) -> npt.NDArray[np.float32]:
        return np.asarray(self.x, np.float32)

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        weight, bias = self.layout.named(model).values()
        return np.asarray(self.x @ weight.T + bias, np.float32)

    def targets(self, split: DataSplit) -> Array:
        return self.y

    def features(self, model: Vector, split: DataSplit) -> Array:
        return self.x

    def _batch(self, model: Array, rows: Array, weights: Array) -> tuple[float, Array]:
        x = self.x[rows]
        y = self.y[rows]
        chances = self._chances(model, x)
        losses = _cross_entropy(chances, y)
        loss = float(np.mean(weights * losses))
        slope = _slope(chances, y, weights)
        weight_gradient = (slope.T @ x).ravel()
        bias_gradient = slope.sum(axis=0)
        return loss, np.concatenate([weight_gradient, bias_gradient])

    def _chances(self, model: Array, x: Array) -> Array:
        cut = self.classes * self.x.shape[1]
        weight = model[:cut].reshape(self.classes, -1)
        bias = model[cut:]
        logits = x @ weight.T + bias
        return _softmax(logits)


@dataclass(frozen=True)
class Perceptron(Softmax):
    """Softmax regression on hidden layers of tanh units, `hidden` wide."""

    hidden: tuple[int, ...] = (4, 3)

    @property
    def layout(self) -> Layout:
        names = [f"fc{number}" for number in range(1, len(self.hidden) + 1)]
        names.append("out")
        widths = [*self.hidden, self.classes]
        width_before = self.x.shape[1]
        tensors = []
        for name, width in zip(names, widths, strict=True):
            tensors.append(Tensor(f"{name}.weight", (width, width_before)))
            tensors.append(Tensor(f"{name}.bias", (width,)))
            width_before = width
        return Layout(tuple(tensors), len(tensors))

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        *_, logits = self._forward(model.astype(np.float64), self.x)
        chances = _softmax(logits)
        return _cross_entropy(chances, self.y).astype(np.float32)

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        *_, logits = self._forward(model, self.x)
        return np.asarray(logits, np.float32)

    def features(self, model: Vector, split: DataSplit) -> Array:
        return self._forward(model.astype(np.float64), self.x)[-2]

    def _forward(self, model: Array, x: Array) -> list[Array]:
        """What each layer reads, and the logits."""
        tensors = list(self.layout.named(model).values())
        weights = tensors[::2]
        biases = tensors[1::2]
        reads = [x]
        for weight, bias in zip(weights, biases, strict=True):
            out = reads[-1] @ weight.T + bias
            reads.append(np.tanh(out))
        reads[-1] = out  # the last layer has no tanh
        return reads

    def _batch(self, model: Array, rows: Array, weights: Array) -> tuple[float, Array]:
        y = self.y[rows]
        *reads, logits = self._forward(model, self.x[rows])
        chances = _softmax(logits)
        losses = _cross_entropy(chances, y)
        loss = float(np.mean(weights * losses))
        slope = _slope(chances, y, weights)
        tensors = list(self.layout.named(model).values())
        kernels = tensors[::2]
        parts: list[Array] = []
        for read, kernel in zip(reversed(reads), reversed(kernels), strict=True):
            weight_gradient = (slope.T @ read).ravel()
            bias_gradient = slope.sum(axis=0)
            parts = [weight_gradient, bias_gradient, *parts]
            tanh_slope = 1 - read**2
            slope = (slope @ kernel) * tanh_slope
        return loss, np.concatenate(parts)


def _softmax(logits: Array) -> Array:
    largest = logits.max(axis=1, keepdims=True)
    powers = np.exp(logits - largest)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _cross_entropy(chances: Array, labels: Array) -> Array:
    """The loss of each sample: (n,)."""
    samples = np.arange(len(labels))
    chances_of_labels = chances[samples, labels]
    return np.asarray(-np.log(chances_of_labels))


def _slope(chances: Array, labels: Array, weights: Array) -> Array:
    """The gradient of the mean weighted loss with respect to the logits: (n, classes)."""
    identity = np.eye(chances.shape[1])
    error = chances - identity[labels]
    return np.asarray(error * weights[:, None] / len(labels))


def perceptron_client(labels: tuple[int, ...], *, seed: int, n: int = 24) -> Perceptron:
    """The same client with hidden units."""
    plain = softmax_client(labels, seed=seed, n=n)
    return Perceptron(plain.x, plain.y, plain.classes)


def normed_client(labels: tuple[int, ...], *, seed: int, n: int = 24) -> Softmax:
    """The same client, whose bias has the name of a statistic of batch norm."""
    plain = softmax_client(labels, seed=seed, n=n)
    return replace(plain, names=("out.weight", "norm.running_mean"))


def softmax_client(
    labels: tuple[int, ...], *, seed: int, n: int = 24, classes: int = 4, features: int = 5
) -> Softmax:
    """A client that owns only these labels: each class is a Gaussian around a point that all clients share."""
    points = generator(0, "classes").normal(0, 2, (classes, features))
    draw = generator(seed, "client")
    y = draw.choice(labels, n)
    return Softmax(points[y] + draw.normal(0, 1, (n, features)), y.astype(np.int64), classes)


Drop = Callable[[str, int, str], bool]  # (phase, round, client) -> is its report lost?
