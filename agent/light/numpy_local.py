"""Numpy behind `Local`: local training of the models `linear` and `mlp` without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from covey.agent.data import Dataset
from covey.agent.data.batching import Batching
from covey.agent.data.inputs import prepared
from covey.agent.data.kin import card_of, units_of
from covey.agent.data.scaling import Scaling
from covey.agent.data.survey import SAMPLES_AT_ONCE, Moments, moments_of
from covey.agent.data.target_scale import in_units_of_the_data, standardised_targets
from covey.agent.kept.privacy_account import DeviceAccount
from covey.agent.learning import SAME_VERSION
from covey.agent.light.dense_net import DenseNet, layout_of_task
from covey.agent.light.sgd import NumpySgd
from covey.agent.light.task_loss import cross_entropy, squared_error
from covey.agent.policy import NO_CODE_RULES, Rules
from covey.shared.errors import DataError, PublicError
from covey.shared.numerics.kinship import Card
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.privacy.noise import Noise
from covey.shared.privacy.settings import Budget, LocalPrivacy
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import (
    Contrast,
    DataSplit,
    GradientCorrection,
    SampleIndices,
    Training,
    TrainingResult,
)

CHUNK = 256  # samples per forward pass outside of training
NO_CORRECTION = GradientCorrection()
WITH_TORCH = "start the agent with --learner torch"

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Samples:
    """One part of the data."""

    features: Array  # (n, *task.features), in the type of their file
    targets: Array  # (n,) int64 class indices, or float32 values, standardised if the task is
    values: Array  # (n,) the targets in the units of the data

    @classmethod
    def of(cls, features: Array, targets: Array, task: Task) -> _Samples:
        """The arrays of a data set, shared if their types allow it."""
        dtype = np.float32 if task.classes is None else np.int64
        values = np.ascontiguousarray(targets, dtype)
        return cls(features, standardised_targets(values, task), values)

    def __len__(self) -> int:
        return len(self.targets)


class NumpyLocal:
    """A `shared.strategy.Local` over data that `agent.data.fit` has passed, without torch.

    With the same generator state it trains on the same batches as a device with torch, and its vectors differ from that
    device's by the rounding of float32 only. The same generator state, start and data give the same bytes here.

    Args:
        dataset: samples of shape `task.features`, or columns of a table, which become inputs here.
        task: its model is `linear` or `mlp`.
        layout: of the coordinator's model.
        training: settings of local SGD.
        rng: draws the order of samples, nothing else.
        scaling: `mean` and `std` per channel; None: the task's own fixed values, if it has any.
        rules: how much may be trained.

    Raises:
        PublicError: another model, or model and layout differ.
        DataError: there are no training samples.
    """

    device = "cpu"
    _samples: Mapping[DataSplit, _Samples]
    _net: DenseNet  # the task's model; each call loads the vector that it needs

    def __init__(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        training: Training,
        rng: np.random.Generator,
        scaling: Mapping[str, Sequence[float]] | None = None,
        *,
        rules: Rules = NO_CODE_RULES,
    ) -> None:
        if not len(dataset.targets):
            raise DataError(f"{dataset.source}: no training samples")
        self._units = partial(units_of, dataset)
        dataset = prepared(dataset, task)
        self._task = task
        self._training = training
        self._samples = {
            "train": _Samples.of(dataset.features, dataset.targets, task),
            "test": _Samples.of(dataset.test_features, dataset.test_targets, task),
        }
        self._loss = squared_error if task.classes is None else cross_entropy
        self._scaling = Scaling.of(task, scaling)
        _check_layout(task, layout)
        self._net = DenseNet(layout)
        self._batching = Batching(self.examples, training, rng, rules)

    def __repr__(self) -> str:
        return f"<NumpyLocal {self._task.model.name}: {self.examples} training samples>"

    def enable_privacy(
        self,
        privacy: LocalPrivacy,
        budget: Budget,
        noise: Noise,
        ledger: npt.NDArray[np.float64] | None,
        account: DeviceAccount | None,
    ) -> NoReturn:
        """Refuse DP-SGD: a device must not train without the noise that its order asks for."""
        raise PublicError(
            "privacy.local: the learner of this device (numpy) has no DP-SGD; remove privacy.local, or "
            f"{WITH_TORCH}"
        )

    # -- data -----------------------------------------------------------------------------------------------

    @property
    def examples(self) -> int:
        """n_i, the number of training samples."""
        return len(self._samples["train"])

    def inputs(self) -> Float32:
        """Training samples (n_i, values of one) as their file has them."""
        features = self._samples["train"].features
        return features.reshape(len(features), -1).astype(np.float32)

    def targets(self, split: DataSplit) -> Array:
        """Class indices (n,) int64, or values (n,) float32 in the units of the data for a regression task."""
        return self._samples[split].values

    def card(self, seed: int, client: str) -> Card:
        """The summary of the training samples by which a fleet is tested for shifts."""
        samples = self._samples["train"]
        chunks = _chunks(samples.features, CHUNK)
        pieces = (self._scaled(raw).reshape(len(raw), -1) for raw in chunks)
        return card_of(pieces, samples.values, self._units(), self._task, seed, client)

    def moments(self) -> Moments:
        """Sums over the training set after `task.scale` and before standardisation, for federated scaling."""
        features = self._samples["train"].features
        starts = range(0, len(features), SAMPLES_AT_ONCE)
        parts = [features[start : start + SAMPLES_AT_ONCE] for start in starts]
        return moments_of(self._task, parts)

    # -- evaluation -----------------------------------------------------------------------------------------

    def loss(self, model: Vector) -> float:
        """F_i(model), summed in float64."""
        return float(self.losses(model).mean(dtype=np.float64))

    def losses(self, model: Vector) -> Float32:
        """Loss of each training sample (n_i,), in data order."""
        outputs = self._outputs(model, "train")
        with np.errstate(all="ignore"):  # a loss that is not finite is reported as such
            losses, _ = self._loss(outputs, self._samples["train"].targets)
        return losses

    def predict(self, model: Vector, split: DataSplit) -> Float32:
        """Logits (n, classes), or predicted values (n, 1) in the units of the data for a regression task."""
        return in_units_of_the_data(self._outputs(model, split), self._task)

    def memberships(self, model: Vector, clusters: int) -> NoReturn:
        """Refuse to count by a projection head: `linear` and `mlp` have none here."""
        raise PublicError(
            f"this method needs a projection head, which the learner of this device (numpy) lacks; {WITH_TORCH}"
        )

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        """Gradient of F_i at the model (d,).

        Args:
            model: (d,) float32.
            batch: that many samples are drawn; None or more than there are: all of them.
            rows: the samples to use, instead of `batch`.
        """
        net = self._net
        net.load(model)
        net.gradient.fill(0)
        if rows is None:
            rows = self._batching.drawn(batch)
        count = np.float32(len(rows))
        with np.errstate(all="ignore"):
            for chunk in _chunks(rows, CHUNK):
                inputs, targets = self._gathered(chunk)
                _, slopes = self._loss(net.outputs(inputs), targets)
                net.add_gradient(slopes / count)
        return net.gradient.copy()

    def _outputs(self, model: Vector, split: DataSplit) -> Float32:
        """The model's outputs for a part (n, outputs), in chunks that bound the memory."""
        self._net.load(model)
        found = [np.empty((0, self._task.outputs), np.float32)]
        with np.errstate(all="ignore"):
            for raw in _chunks(self._samples[split].features, CHUNK):
                found.append(self._net.outputs(self._scaled(raw)))
        return np.concatenate(found)

    # -- training -------------------------------------------------------------------------------------------

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        """For each epoch the rows of its mini-batches, in a fresh order; the short last batch is kept."""
        return self._batching.batches(epochs)

    def train(
        self,
        start: Vector,
        correction: GradientCorrection = NO_CORRECTION,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        weights: Float32 | None = None,
        contrast: Contrast | None = None,
        frozen: int = 0,
        velocity: Vector | None = None,
        at_home: bool = False,
    ) -> TrainingResult:
        """LocalTrain. No step at all gives the start and its loss.

        Raises:
            PolicyError: the owner of this device allows fewer epochs or steps.
            PublicError: the method asks for a contrastive loss, or the scenario for changed images.
        """
        if contrast is not None:
            raise PublicError(
                "this method adds a contrastive loss of augmented images, which the learner of this device (numpy) "
                f"lacks; {WITH_TORCH}"
            )
        if self._training.augment != "none":
            raise PublicError(
                f"training.augment is {self._training.augment}, and the learner of this device (numpy) changes no images; "
                f"set it to none, or {WITH_TORCH}"
            )
        epochs, steps = self._batching.begin(epochs, steps)
        net = self._net
        net.load(start)
        sgd = NumpySgd(net, self._training, correction, frozen, velocity)
        batches = chain.from_iterable(self._batching.batches(epochs))
        losses: list[float] = []
        with np.errstate(all="ignore"):  # a diverged model is reported as such
            for rows in islice(batches, steps):
                losses.append(self._batch_gradient(rows, weights))
                sgd.step()
        if not losses:
            return TrainingResult(start.copy(), 0, self.loss(start), velocity)
        mean_loss = float(np.mean(losses))
        return TrainingResult(net.state.copy(), len(losses), mean_loss, sgd.velocity)

    def _batch_gradient(self, rows: SampleIndices, weights: Float32 | None) -> float:
        """Leave the gradient of a batch's mean loss in the net. Returns that loss."""
        net = self._net
        inputs, targets = self._gathered(rows)
        losses, slopes = self._loss(net.outputs(inputs), targets)
        if weights is not None:
            own = weights[rows].astype(np.float32)
            losses = losses * own
            slopes = slopes * own[:, None]
        net.gradient.fill(0)
        net.add_gradient(slopes / np.float32(len(rows)))
        return float(losses.mean())

    def _gathered(self, rows: SampleIndices) -> tuple[Float32, Array]:
        """Scaled inputs and targets of training samples."""
        samples = self._samples["train"]
        return self._scaled(samples.features[rows]), samples.targets[rows]

    def _scaled(self, raw: Array) -> Float32:
        """Inputs from features of a file."""
        return self._scaling.apply(raw.astype(np.float32, copy=False))


def _check_layout(task: Task, layout: Layout) -> None:
    """Raises PublicError if the task's model has another layout than the coordinator's, before it takes memory."""
    own = layout_of_task(task)
    if own.digest != layout.digest:
        raise PublicError(
            f"task.model: built here it has {own.parameters} parameters in {len(own.tensors)} tensors, the "
            f"coordinator's has {layout.parameters} in {len(layout.tensors)}; {SAME_VERSION}"
        )


def _chunks(rows: Array, size: int) -> Iterator[Array]:
    """Views of at most `size` rows each."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
