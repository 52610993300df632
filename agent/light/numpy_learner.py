"""The learner `numpy`: trains the models `linear` and `mlp` on the processor, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset
from covey.agent.data.local import CHUNK, DataOfLocal, Float32, chunks
from covey.agent.data.scaling import Scaling
from covey.agent.kept.privacy_account import DeviceAccount
from covey.agent.learning import check_layout
from covey.agent.light.dense_net import DebiasedNet, DenseNet, layout_of_task
from covey.agent.policy import NO_CODE_RULES, OwnersRules
from covey.shared.errors import PublicError
from covey.shared.numerics.split import Mask
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.consent import AllowedCode
from covey.shared.privacy.noise import Noise
from covey.shared.privacy.settings import Budget, LocalPrivacy
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import (
    AS_ORDERED,
    Drill,
    GradientCorrection,
    SampleIndices,
    Training,
    TrainingResult,
)
from covey.shared.wire.messages import DeviceKind


class NumpySgd:
    """v = momentum * v + g, w -= lr * v, where g already holds weight decay and the correction.

    One optimiser serves one training. It starts at rest unless it is given a velocity.

    Args:
        net: the model to train; its gradient is changed in place by each step.
        training: rate, momentum and weight decay.
        correction: terms that bend the gradient; its vectors are (d,).
        trained: the values that may change (d,); None: all.
        velocity: (d,) from an earlier training, or None.
    """

    velocity: Vector | None  # (d,); None without momentum

    def __init__(
        self,
        net: DenseNet,
        training: Training,
        correction: GradientCorrection,
        trained: Mask | None,
        velocity: Vector | None,
    ) -> None:
        self._weights = net.state
        self._gradient = net.gradient
        self._fixed = None if trained is None else ~trained
        # float32 scalars: a Python float is cast in the same way, but the intent is easier to see
        self._lr = np.float32(training.lr)
        self._momentum = np.float32(training.momentum)
        self._decay = np.float32(training.weight_decay)
        self._mu = np.float32(correction.mu)
        self._anchor = None
        if correction.mu and correction.anchor is not None:
            self._anchor = correction.anchor.astype(np.float32)
        self._on = correction.on
        self._drift = None
        if correction.drift is not None:
            self._drift = correction.drift.astype(np.float32)
        self.velocity = None
        if training.momentum:
            self.velocity = np.zeros_like(self._weights)
            if velocity is not None:
                np.copyto(self.velocity, velocity)

    def step(self) -> None:
        """Change the parameters by the gradient that the net holds."""
        gradient = self._gradient
        if self._decay:
            gradient += self._decay * self._weights
        if self._anchor is not None:
            pull = self._mu * (self._weights - self._anchor)
            gradient += pull if self._on is None else pull * self._on
        if self._drift is not None:
            gradient += self._drift
        if self._fixed is not None:
            gradient[self._fixed] = 0
        direction = gradient
        if self.velocity is not None:
            self.velocity *= self._momentum
            self.velocity += gradient
            direction = self.velocity
        self._weights -= self._lr * direction


Targets = npt.NDArray[Any]
LossesAndSlopes = tuple[Float32, Float32]


def cross_entropy(outputs: Float32, targets: Targets) -> LossesAndSlopes:
    """Softmax cross-entropy.

    Args:
        outputs: (n, classes) logits.
        targets: (n,) int64 class indices.

    Returns:
        The loss of each sample (n,), and its derivative by the outputs (n, classes).
    """
    largest = outputs.max(1)
    shifted = outputs - _column(largest)  # so that no exponential overflows
    powers = np.exp(shifted)
    sums = powers.sum(1)
    own_class = (np.arange(len(targets)), targets)
    losses = np.log(sums)
    losses -= shifted[own_class]
    slopes = powers
    slopes /= _column(sums)
    slopes[own_class] -= 1
    return losses, slopes


def squared_error(outputs: Float32, targets: Targets) -> LossesAndSlopes:
    """The mean squared error of outputs (n, steps) against values (n,) or (n, steps) float32; returns what `cross_entropy` does."""
    errors = outputs - targets.reshape(outputs.shape)
    return (errors**2).mean(axis=1), 2 * errors / np.float32(outputs.shape[1])


def logistic(outputs: Float32, targets: Targets) -> LossesAndSlopes:
    """The mean cross-entropy of logits (n, labels) against labels (n, labels) bool; returns what `cross_entropy` does."""
    own = np.where(targets, outputs, -outputs)  # large where the decision is right
    losses = np.maximum(-own, 0) + np.log1p(np.exp(-np.abs(own)))
    slopes = np.exp(-np.logaddexp(0, -outputs)) - targets
    return losses.mean(axis=1), (slopes / np.float32(outputs.shape[1])).astype(np.float32)


def loss_of(task: Task) -> Callable[[Float32, Targets], LossesAndSlopes]:
    """The loss of a task's samples."""
    return {"values": squared_error, "labels": logistic}.get(task.kind, cross_entropy)


def _column(values: Float32) -> Float32:
    """(n,) as (n, 1)."""
    return values.reshape(-1, 1)


WITH_TORCH = "start the agent with --learner torch"


class NumpyLocal(DataOfLocal):
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
    _net: DenseNet  # the task's model; each call loads the vector that it needs

    def __init__(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        training: Training,
        rng: np.random.Generator,
        *,
        scaling: Mapping[str, Sequence[float]] | None = None,
        rules: OwnersRules = NO_CODE_RULES,
    ) -> None:
        super().__init__(dataset, task, training, rng, rules)
        self._loss = loss_of(task)
        self._scaling = Scaling.of(task, scaling)
        check_layout(layout_of_task(task), layout)  # before the model takes memory
        self._net = DenseNet(layout)

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

    # -- evaluation -----------------------------------------------------------------------------------------

    def losses(self, model: Vector) -> Float32:
        """Loss of each training sample (n_i,), in data order."""
        outputs = self._computed(model, self._samples["train"].features)
        with np.errstate(all="ignore"):  # a loss that is not finite is reported as such
            losses, _ = self._loss(outputs, self._samples["train"].targets)
        return losses

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
            for chunk in chunks(rows, CHUNK):
                inputs, targets = self._gathered(chunk)
                _, slopes = self._loss(net.outputs(inputs), targets)
                net.add_gradient(slopes / count)
        return net.gradient.copy()

    def _computed(self, model: Vector, features: Array) -> Float32:
        self._net.load(model)
        found = [np.empty((0, self._task.outputs), np.float32)]
        with np.errstate(all="ignore"):
            for raw in chunks(features, CHUNK):
                found.append(self._net.outputs(self._scaled(raw)))
        return np.concatenate(found)

    def _last_inputs(self, model: Vector, features: Array) -> Float32:
        self._net.load(model)
        found: list[Float32] = []
        with np.errstate(all="ignore"):
            for raw in chunks(features, CHUNK):
                self._net.outputs(self._scaled(raw))
                found.append(self._net.last_inputs)
        return np.concatenate(found)

    # -- training -------------------------------------------------------------------------------------------

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        """LocalTrain. No step at all gives the start and its loss.

        Raises:
            PolicyError: the owner of this device allows fewer epochs or steps.
            PublicError: the method asks for a contrastive loss, or the scenario for changed images.
        """
        if drill.contrast is not None:
            raise PublicError(
                "this method adds a contrastive loss of augmented images, which the learner of this device (numpy) "
                f"lacks; {WITH_TORCH}"
            )
        if self._training.augment != "none":
            raise PublicError(
                f"training.augment is {self._training.augment}, and the learner of this device (numpy) changes no images; "
                f"set it to none, or {WITH_TORCH}"
            )
        if self._training.precision != "fp32":
            raise PublicError(
                f"training.precision is {self._training.precision}, and the learner of this device (numpy) has float32 only; "
                f"set it to fp32, or {WITH_TORCH}"
            )
        epochs, steps = self._batching.begin(drill.epochs, drill.steps)
        correction, weights = drill.correction, self._weights(drill.weights)
        net = self._net
        net.load(start)
        sgd = NumpySgd(net, self._training, correction, drill.trained, drill.velocity)
        debiased = None if correction.debias is None else DebiasedNet(net, correction.debias)
        batches = chain.from_iterable(self._batching.batches(epochs))
        losses: list[float] = []
        with np.errstate(all="ignore"):  # a diverged model is reported as such
            for rows in islice(batches, steps):
                losses.append(self._batch_gradient(debiased or net, rows, weights))
                sgd.step()
                if debiased is not None:
                    debiased.step(self._training.lr)
        if not losses:
            return TrainingResult(start.copy(), 0, self.loss(start), drill.velocity)
        own = None if debiased is None else debiased.own
        mean_loss = float(np.mean(losses))
        return TrainingResult(net.state.copy(), len(losses), mean_loss, sgd.velocity, own)

    def _batch_gradient(
        self, net: DenseNet | DebiasedNet, rows: SampleIndices, weights: Float32 | None
    ) -> float:
        """Leave the gradient of a batch's mean loss in the net. Returns that loss."""
        inputs, targets = self._gathered(rows)
        losses, slopes = self._loss(net.outputs(inputs), targets)
        if weights is not None:
            own = weights[rows].astype(np.float32)
            losses = losses * own
            slopes = slopes * own[:, None]
        self._net.gradient.fill(0)
        net.add_gradient(slopes / np.float32(len(rows)))
        return float(losses.mean())

    def _gathered(self, rows: SampleIndices) -> tuple[Float32, Array]:
        """Scaled inputs and targets of training samples."""
        samples = self._samples["train"]
        return self._scaled(samples.features[rows]), samples.targets[rows]

    def _scaled_rows(self, raw: Array) -> Float32:
        return self._scaled(raw).reshape(len(raw), -1)

    def _scaled(self, raw: Array) -> Float32:
        """Inputs from features of a file."""
        return self._scaling.apply(raw.astype(np.float32, copy=False))


class NumpyLearner:
    """A `covey.agent.learning.Learner`."""

    def prepare(self, threads: int = 1) -> None:
        """Do nothing: this module has imported numpy, and the environment of a worker sets the threads."""

    def device(self, wish: str, setting: str) -> DeviceKind:
        """Always the processor. Raises PublicError for a wish for another device."""
        if wish in ("auto", "cpu"):
            return "cpu"
        raise PublicError(
            f"{setting}: the learner of this device (numpy) can use no {wish}; set auto or cpu, or start the agent "
            "with --learner torch"
        )

    def layout(self, task: Task, allowed: AllowedCode) -> Layout:
        """The layout of the task's model. Raises PublicError for a model other than `linear` and `mlp`."""
        return layout_of_task(task)

    def local(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        *,
        training: Training,
        rng: np.random.Generator,
        rules: OwnersRules,
    ) -> NumpyLocal:
        """See `Learner.local`."""
        rules.device(training.device, self.device)
        return NumpyLocal(dataset, task, layout, training, rng, rules=rules)


LEARNER = NumpyLearner()
