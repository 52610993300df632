"""A device's data as a learner trains on it: inputs, mini-batches, samples. Pure, and the same for every learner.

`prepared` is the one way from the rows of a table to inputs, for training, evaluation and prediction, and the same seed
gives the same batches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset, Indices, units_of
from covey.agent.data.scaling import centres_of, in_units_of_the_data, standardised_targets
from covey.agent.data.values import spelled
from covey.agent.policy import OwnersRules
from covey.shared import extras
from covey.shared.errors import DataError, PublicError
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.columns import DAY_S, WEEK_S, YEAR_S, TableColumn, width_of
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import GATE, Card, DataSplit, SampleIndices

# -- from the rows of a table to the inputs of a model ---------------------------------------------
# A task with columns is resolved first (`covey.shared.scenario.fleet_statistics`): it then has every value that this needs.


Float32 = npt.NDArray[np.float32]
Words = Mapping[
    str, Sequence[str]
]  # by categorical column: the words that its features are indices into


def prepared(data: Dataset, task: Task) -> Dataset:
    """The data as inputs of the model of a resolved task. Data whose features are inputs already stays as it is."""
    if data.columns is None:
        return data
    words = data.columns.words
    return replace(
        data,
        features=inputs(data.features, words, task),
        test_features=inputs(data.test_features, words, task),
        columns=None,
    )


def circular(seconds: Float32, *, seasonal: bool = False) -> Float32:
    """Seconds of the week (n, ...) as inputs (n, 4 or 6, ...): sine and cosine in the day, the week, and with `seasonal` the
    year; zeros for NaN."""
    exact = seconds.astype(np.float64)
    periods = (DAY_S, WEEK_S, YEAR_S) if seasonal else (DAY_S, WEEK_S)
    angles = [2 * np.pi * exact / period for period in periods]
    inputs = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    stacked: Float32 = np.stack(inputs, axis=1).astype(np.float32)
    stacked[np.isnan(stacked)] = 0.0
    return stacked


def inputs(raw: Array, words: Words, task: Task) -> Float32:
    """Numbers with missing cells filled in, flags of these cells, and an input per word of each category.

    Args:
        raw: (n, columns, ...) in the order of `task.columns`: numbers, indices into the column's words, or seconds
            of the week. NaN is a missing cell.
        words: the words of the data, by categorical column.
        task: resolved.

    Raises:
        PublicError: cells are missing, and the task has no value for them.

    Returns:
        Inputs (n, width, ...) float32; numbers less their centre (`centres_of`). Of a category exactly one input is 1, the last one for words that the task does not
        know and for missing cells.
    """
    found: list[Array] = []
    centres = centres_of(task)
    for place, column in enumerate(task.table_columns):
        values = raw[:, place]
        match column.kind:
            case "category":
                found.append(_one_hot(values, words.get(column.name, ()), column))
            case "time":
                found.append(circular(values, seasonal=column.seasonal))
            case "number":
                centre = centres[sum(one.shape[1] for one in found)] if len(centres) else 0.0
                found.append((_filled(values, column, task) - centre)[:, None])
                if column.flagged:
                    found.append(np.isnan(values)[:, None].astype(np.float32))
    return np.ascontiguousarray(np.concatenate(found, axis=1), np.float32)


def _filled(values: Array, column: TableColumn, task: Task) -> Array:
    """The column (n, ...) with `task.impute` in place of missing cells."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    imputed = task.impute
    if not isinstance(imputed, dict) or column.name not in imputed:
        raise PublicError(
            f"missing cells in column {column.name!r}, and task.impute has no value for it; fill the cells, or add one to task.impute"
        )
    filled = values.copy()
    filled[missing] = imputed[column.name]
    return filled


def _one_hot(values: Array, words: Sequence[str], column: TableColumn) -> Float32:
    """Indices of words (n, ...) as inputs (n, room + 1, ...)."""
    input_of = dict(zip(map(spelled, column.words), range(column.room), strict=False))
    other = column.room
    input_of_code = [input_of.get(spelled(word), other) for word in words]
    input_of_code.append(other)  # for missing cells
    codes = np.nan_to_num(values, nan=len(words))
    codes = codes.astype(np.int64)
    places = np.array(input_of_code)[codes]
    found = np.zeros((len(values), column.width, *values.shape[1:]), np.float32)
    for place in range(column.width):
        found[:, place] = places == place
    return found


# -- mini-batches ----------------------------------------------------------------------------------


class Batching:
    """Draws the mini-batches of one order's trainings, and counts their steps, which the owner's rules bound.

    Args:
        examples: n_i, the number of training samples.
        training: sets the size of a batch and the number of epochs.
        rng: draws the order of samples, nothing else.
        rules: bound epochs and steps.
        skips_single: whether a batch of one sample is left out, because batch norm cannot take it.
        stated: the samples of which the rules bound epochs and steps, for a refusal names them; None: `examples`.
    """

    _steps: int  # of SGD, in all trainings of this order

    def __init__(
        self,
        examples: int,
        training: Training,
        rng: np.random.Generator,
        rules: OwnersRules,
        *,
        skips_single: bool = False,
        stated: int | None = None,
    ) -> None:
        self._examples = examples
        self._stated = examples if stated is None else stated
        self._training = training
        self._rng = rng
        self._rules = rules
        self._skips_single = skips_single
        self._steps = 0

    def __repr__(self) -> str:
        size = self._training.batch
        return f"<Batching of {self._examples} samples by {size}: {self._steps} steps counted>"

    def order(self) -> SampleIndices:
        """All training samples in a new order."""
        return self._rng.permutation(self._examples)

    def drawn(self, count: int | None) -> SampleIndices:
        """`count` samples without replacement; None, or more than there are: all of them."""
        if count is None or count >= self._examples:
            return np.arange(self._examples)
        return self.order()[:count]

    def batches(self, epochs: int | None) -> Iterator[list[SampleIndices]]:
        """For each epoch the rows of its mini-batches, in a fresh order; the short last batch is kept."""
        size = self._training.batch
        if epochs is None:
            epochs = self._training.epochs
        for _ in range(epochs):
            order = self.order()
            starts = range(0, self._examples, size)
            yield [order[start : start + size] for start in starts]

    def begin(self, epochs: int | None, steps: int | None) -> tuple[int, int | None]:
        """Settle the length of a training that is about to begin, and count its steps.

        Args:
            epochs: None: that of the training settings.
            steps: overrides epochs.

        Returns:
            The epochs to draw, and the steps after which to stop; None: after these epochs.

        Raises:
            PolicyError: the owner of this device allows fewer epochs or steps.
        """
        if epochs is None:
            epochs = self._training.epochs
        if steps is None:
            self._rules.check_epochs(epochs)
            self._steps += epochs * math.ceil(self._stated / self._training.batch)
        else:
            steps = max(steps, 0)
            self._rules.check_epochs(math.ceil(steps / self._batches_per_epoch(self._stated)))
            epochs = math.ceil(steps / self._batches_per_epoch(self._examples))
            self._steps += steps
        self._rules.check_steps(self._steps)
        return epochs, steps

    def _batches_per_epoch(self, examples: int) -> int:
        """Batches that are trained on; at least 1, so that any number of steps takes finitely many epochs."""
        size = self._training.batch
        batches = math.ceil(examples / size)
        last_has_one_sample = examples % size == 1
        if self._skips_single and last_has_one_sample:
            batches -= 1
        return max(batches, 1)


# -- the data of a learner --------------------------------------------------------------------------


CHUNK = 256  # samples per forward pass outside of training


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
        rules: OwnersRules,
        *,
        skips_single: bool = False,
    ) -> None:
        if not len(dataset.targets):
            raise DataError(f"{dataset.source}: no training samples", public="no training samples")
        self._dataset = dataset
        dataset = prepared(dataset, task)
        self._task = task
        self._training = training
        self._samples = {
            "train": Samples.of(dataset.features, dataset.targets, task),
            "test": Samples.of(dataset.test_features, dataset.test_targets, task),
        }
        self._batching = Batching(
            self.examples, training, rng, rules, skips_single=skips_single, stated=dataset.stated
        )

    def __repr__(self) -> str:
        model = self._task.model.name
        return f"<{type(self).__name__} {model}: {self.examples} training samples on {self.device}>"

    @property
    def examples(self) -> int:
        """n_i, the number of training samples."""
        return len(self._samples["train"])

    def units(self) -> Indices:
        """The unit (n_i,) of each training sample."""
        return units_of(self._dataset)

    def scaled(self, split: DataSplit) -> tuple[Float32, Array]:
        """Inputs as the model gets them (n, values of one), and targets as it is trained on them (n,)."""
        samples = self._samples[split]
        return self._scaled_rows(samples.features), samples.targets

    def unscaled(self, outputs: Array) -> Array:
        """Outputs (n, 1) of what was trained on such targets, in the units of the data."""
        return in_units_of_the_data(outputs, self._task)

    def inputs(self) -> Float32:
        """Training samples (n_i, values of one) as their file has them."""
        return self.rows("train")

    def rows(self, split: DataSplit) -> Float32:
        """The samples of a part of the data (n, values of one) as their file has them."""
        features = self._samples[split].features
        return features.reshape(len(features), -1).astype(np.float32, copy=False)

    def last_values(self, split: DataSplit) -> npt.NDArray[np.float64] | None:
        """Of a forecast: the last value of the target in each window, for each step (n, steps); None of a task whose columns do
        not have it, and of others."""
        task = self._task
        forecasts = task.window is not None and task.window.horizon is not None
        if not forecasts or task.target not in task.columns:
            return None
        place = width_of(task.table_columns[: task.columns.index(task.target)])
        last = self._samples[split].features[:, place, -1].astype(np.float64)
        return np.tile(last[:, None], (1, task.outputs))

    def targets(self, split: DataSplit) -> Array:
        """Class indices (n,) int64, values (n,) float32 in the units of the data, labels (n, labels) or anomalies (n,) bool."""
        return self._samples[split].values

    def card(self, seed: int, client: str, min_cell: int, blocks: int | None = None) -> Card:
        """The summary of the training samples by which a fleet is tested for shifts."""
        samples = self._samples["train"]
        pieces = (self._scaled_rows(raw) for raw in chunks(samples.features, CHUNK))
        found: Card = extras.part("cards", "on_device", GATE).card_of(
            pieces,
            samples.values,
            self.units(),
            task=self._task,
            seed=seed,
            client=client,
            min_cell=min_cell,
            blocks=blocks,
        )
        return found

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        """For each epoch the rows of its mini-batches, in a fresh order; the short last batch is kept."""
        return self._batching.batches(epochs)

    def loss(self, model: Vector) -> float:
        """F_i(model), evaluation mode, summed in float64."""
        return float(self.losses(model).mean(dtype=np.float64))

    def predict(self, model: Vector, split: DataSplit) -> Float32:
        """Logits (n, classes) or (n, labels), predicted values (n, 1) in the units of the data, or thresholds and errors (n, 2)."""
        features = self._samples[split].features
        if split == "train" or self._dataset.shared_tests is None:
            outputs = self._computed(model, features)
        else:
            outputs = self._dataset.shared_tests.outputs(
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
            "the method feddbe needs a model with a last layer, and the training is a loop of the user's own; choose another method"
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
