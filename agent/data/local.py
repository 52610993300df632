"""A device's data as a learner trains on it, as far as it does not depend on the library that computes. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from covey.agent.data.batching import Batching
from covey.agent.data.dataset import Array, Dataset
from covey.agent.data.inputs import prepared
from covey.agent.data.kin import card_of, units_of
from covey.agent.data.scaling import in_units_of_the_data, standardised_targets
from covey.agent.policy import Rules
from covey.shared.errors import DataError, PublicError
from covey.shared.numerics.kinship import Card
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import DataSplit, GradientCorrection, SampleIndices, Training

CHUNK = 256  # samples per forward pass outside of training
NO_CORRECTION = GradientCorrection()

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Samples:
    """One part of the data."""

    features: Array  # (n, *task.features), in the type of their file
    targets: Array  # (n,) int64 class indices, float32 values (n,) or (n, steps), standardised if the task is, or bool
    values: Array  # of the same shape: the targets in the units of the data

    @classmethod
    def of(cls, features: Array, targets: Array, task: Task) -> Samples:
        """The arrays of a data set, shared if their types allow it."""
        dtype = {"values": np.float32, "classes": np.int64}.get(task.kind, np.bool_)
        values = np.ascontiguousarray(targets, dtype)
        return cls(features, standardised_targets(values, task), values)

    def __len__(self) -> int:
        return len(self.targets)


class DataOfLocal(ABC):
    """The half of a `shared.strategy.Local` that all learners have in common, over data that `agent.data.fit` has passed.

    Args:
        dataset: samples of shape `task.features`, or columns of a table, which become inputs here.
        task: resolved: it has the fleet's statistics.
        training: settings of local SGD.
        rng: draws the order of samples.
        rules: how much may be trained.
        skips_single: whether a batch of one sample is left out, because batch norm cannot take it.

    Raises:
        DataError: there are no training samples.
    """

    device: str  # the kind of device that computes: "cpu", "cuda" or "mps"
    _samples: Mapping[DataSplit, Samples]
    _batching: Batching  # draws the mini-batches and counts the steps of this order

    def __init__(
        self,
        dataset: Dataset,
        task: Task,
        training: Training,
        rng: np.random.Generator,
        rules: Rules,
        *,
        skips_single: bool = False,
    ) -> None:
        if not len(dataset.targets):
            raise DataError(f"{dataset.source}: no training samples", public="no training samples")
        self._units = partial(units_of, dataset)
        dataset = prepared(dataset, task)
        self._task = task
        self._training = training
        self._samples = {
            "train": Samples.of(dataset.features, dataset.targets, task),
            "test": Samples.of(dataset.test_features, dataset.test_targets, task),
        }
        self._shared_tests = dataset.shared_tests
        self._batching = Batching(self.examples, training, rng, rules, skips_single=skips_single)

    def __repr__(self) -> str:
        model = self._task.model.name
        return f"<{type(self).__name__} {model}: {self.examples} training samples on {self.device}>"

    @property
    def examples(self) -> int:
        """n_i, the number of training samples."""
        return len(self._samples["train"])

    def inputs(self) -> Float32:
        """Training samples (n_i, values of one) as their file has them."""
        features = self._samples["train"].features
        return features.reshape(len(features), -1).astype(np.float32, copy=False)

    def targets(self, split: DataSplit) -> Array:
        """Class indices (n,) int64, values (n,) float32 in the units of the data, labels (n, labels) or anomalies (n,) bool."""
        return self._samples[split].values

    def card(self, seed: int, client: str, min_cell: int, blocks: int | None = None) -> Card:
        """The summary of the training samples by which a fleet is tested for shifts."""
        samples = self._samples["train"]
        pieces = (self._scaled_rows(raw) for raw in chunks(samples.features, CHUNK))
        units = self._units()
        return card_of(pieces, samples.values, units, self._task, seed, client, min_cell, blocks)

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        """For each epoch the rows of its mini-batches, in a fresh order; the short last batch is kept."""
        return self._batching.batches(epochs)

    def loss(self, model: Vector) -> float:
        """F_i(model), evaluation mode, summed in float64."""
        return float(self.losses(model).mean(dtype=np.float64))

    def predict(self, model: Vector, split: DataSplit) -> Float32:
        """Logits (n, classes) or (n, labels), predicted values (n, 1) in the units of the data, or thresholds and errors (n, 2)."""
        features = self._samples[split].features
        if split == "train" or self._shared_tests is None:
            outputs = self._computed(model, features)
        else:
            outputs = self._shared_tests.outputs(
                f"{type(self).__name__} {self.device} {self._task.model_dump_json()}",
                model,
                lambda rows: self._computed(model, features[rows]),
            )
        return in_units_of_the_data(outputs, self._task)

    def features(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float64]:
        """What the model's last layer reads (n, width), for each sample of a part of the data.

        Raises:
            PublicError: the training is code of the user's own, which names no last layer.
        """
        found = self._last_inputs(model, self._samples[split].features)
        return found.reshape(len(found), -1).astype(np.float64)

    def _last_inputs(self, model: Vector, features: Array) -> Float32:
        raise PublicError(
            "evaluation.knn and the method feddbe need a model with a last layer, and the training is a loop of the user's own"
        )

    def _weights(self, of_method: Float32 | None) -> Float32 | None:
        """What the loss of each training sample (n_i,) weighs: by the method, times `training.weights`; None: all alike."""
        if self._training.weights == "none":
            return of_method
        classes, of_sample, counts = np.unique(
            self.targets("train"), return_inverse=True, return_counts=True
        )
        balanced = (self.examples / (len(classes) * counts[of_sample])).astype(np.float32)
        return balanced if of_method is None else balanced * of_method

    @abstractmethod
    def losses(self, model: Vector) -> Float32:
        """Loss of each training sample (n_i,), in data order."""

    @abstractmethod
    def _computed(self, model: Vector, features: Array) -> Float32:
        """The model's outputs (n, k) on features of a file (n, ...)."""

    @abstractmethod
    def _scaled_rows(self, raw: Array) -> Float32:
        """Inputs of the model (n, values of one) from features of a file."""


def chunks(rows: Array, size: int) -> Iterator[Array]:
    """Views of at most `size` rows each."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
