"""The learner `numpy`: trains the models `linear` and `mlp` on the processor, without torch.

The built-in models `linear` and `mlp` in numpy: their layout, outputs and gradient.

Names, shapes and order of the tensors are those of the torch modules of the same names, so that both kinds of devices
exchange the same vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset
from covey.agent.data.local import CHUNK, DataOfLocal, Float32, chunks
from covey.agent.data.scaling import Scaling
from covey.agent.kept.privacy_account import DeviceAccount
from covey.agent.learning import check_layout
from covey.agent.policy import NO_CODE_RULES, OwnersRules
from covey.shared.errors import PublicError
from covey.shared.numerics.split import Mask
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.own_code.consent import AllowedCode
from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import (
    AS_ORDERED,
    Debias,
    Drill,
    GradientCorrection,
    SampleIndices,
    TrainingResult,
)
from covey.shared.wire.messages import DeviceKind

MAX_LAYERS = 64
DEFAULT_HIDDEN = 200


def layout_of_task(task: Task) -> Layout:
    """The layout of the task's model. Nothing takes memory for it.

    Raises:
        PublicError: the model is neither `linear` nor `mlp`, or its options are wrong.
    """
    if task.model.adapters is not None:
        raise PublicError(
            "task.model.adapters: the learner of this device (numpy) has none; start the agent with --learner torch"
        )
    inputs = math.prod(task.features)
    hidden = _hidden_widths(task)
    names = _layer_names(task.model.name, len(hidden) + 1)
    widths = [inputs, *hidden, task.outputs]
    tensors: list[Tensor] = []
    for name, (before, after) in zip(names, pairwise(widths), strict=True):
        tensors += [Tensor(f"{name}.weight", (after, before)), Tensor(f"{name}.bias", (after,))]
    return Layout(tuple(tensors), len(tensors))


def _layer_names(model: str, layers: int) -> list[str]:
    if model == "linear":
        return ["fc"]
    return [f"fc{number}" for number in range(1, layers + 1)]


def _hidden_widths(task: Task) -> Sequence[int]:
    """The widths of the hidden layers. Raises PublicError for another model and for wrong options."""
    name = task.model.name
    options = task.model.options
    match name:
        case "linear":
            _check_options(task, [])
            return []
        case "mlp":
            _check_options(task, ["hidden"])
            return _checked_widths(options.get("hidden", DEFAULT_HIDDEN))
    raise PublicError(
        f"task.model {name!r}: the learner numpy trains linear and mlp only; choose one of these, or start "
        "the agent with --learner torch"
    )


def _check_options(task: Task, known: Sequence[str]) -> None:
    """Raises PublicError for an option that is set and not known."""
    takes = ", ".join(known) or "no options"
    for option, value in task.model.options.items():
        if value is not None and option not in known:
            raise PublicError(
                f"task.model {task.model.name!r}: the learner numpy does not know the option {option}; it takes "
                f"{takes}"
            )


def _checked_widths(hidden: Any) -> Sequence[int]:
    """The option `hidden` as a list. Raises PublicError if it is no width, and no list of widths."""
    widths = hidden if isinstance(hidden, list) else [hidden]
    wrong = [width for width in widths if type(width) is not int or width < 1]
    if wrong or len(widths) >= MAX_LAYERS:
        raise PublicError(
            f"task.model.options.hidden: expected a width of 1 or more, or a list of fewer than {MAX_LAYERS}"
        )
    return widths


@dataclass(frozen=True)
class _Layer:
    """One fully connected layer: views of the net's state and of its gradient."""

    weight: Float32  # (after, before)
    bias: Float32  # (after,)
    weight_gradient: Float32  # (after, before)
    bias_gradient: Float32  # (after,)


class DenseNet:
    """Fully connected layers with ReLU between them, whose state and gradient are one vector each.

    Args:
        layout: of the model, as `layout_of_task` makes it.
    """

    state: Vector  # (d,)
    gradient: Vector  # (d,); `add_gradient` adds to it
    _layers: list[_Layer]
    _inputs: list[Float32]  # of each layer in the latest forward pass

    def __init__(self, layout: Layout) -> None:
        self.state = np.zeros(layout.size, np.float32)
        self.gradient = np.zeros(layout.size, np.float32)
        values = layout.named(self.state)
        gradients = layout.named(self.gradient)
        self._inputs = []
        self._layers = []
        for name in layout.modules:
            weight = f"{name}.weight"
            bias = f"{name}.bias"
            layer = _Layer(
                weight=values[weight],
                bias=values[bias],
                weight_gradient=gradients[weight],
                bias_gradient=gradients[bias],
            )
            self._layers.append(layer)

    def __repr__(self) -> str:
        layers = len(self._layers)
        return f"<DenseNet: {self.state.size} values in {layers} layers>"

    def load(self, model: Vector) -> None:
        """Copy a model (d,) into the state. Raises ValueError for another shape."""
        if model.shape != self.state.shape:
            raise ValueError(f"model has shape {model.shape}, the layout has ({self.state.size},)")
        np.copyto(self.state, model)

    def outputs(self, inputs: Float32) -> Float32:
        """Outputs (n, outputs) of inputs (n, *features). `add_gradient` may follow."""
        values = inputs.reshape(len(inputs), -1)
        self._inputs = []
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            self._inputs.append(values)
            values = values @ layer.weight.T
            values += layer.bias
            if number != last:
                np.maximum(values, 0, out=values)
        return values

    @property
    def last_inputs(self) -> Float32:
        """What the last layer read in the latest forward pass (n, width)."""
        return self._inputs[-1]

    @property
    def last_layer(self) -> _Layer:
        """The layer that gives the outputs."""
        return self._layers[-1]

    def add_gradient(self, slopes: Float32, of_features: Float32 | None = None) -> None:
        """Add to `gradient` what the loss of the latest forward pass gives.

        Args:
            slopes: (n, outputs), the derivative of the loss by the outputs.
            of_features: (width,), a further derivative by what the last layer reads, the same for each sample.
        """
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            inputs = self._inputs[number]
            by_weight = layer.weight_gradient
            by_weight += slopes.T @ inputs
            by_bias = layer.bias_gradient
            by_bias += slopes.sum(axis=0)
            if number > 0:
                was_active = inputs > 0  # the derivative of ReLU; at 0 it is 0, as in torch
                slopes = slopes @ layer.weight
                if of_features is not None and number == len(self._layers) - 1:
                    slopes += of_features
                slopes *= was_active


class DebiasedNet:
    """A net with the terms of `Debias`: W (z + z_i) + b is the output of the net, W z + b, and W z_i.

    Args:
        net: that trains.
        debias: the terms.
    """

    def __init__(self, net: DenseNet, debias: Debias) -> None:
        self.own = debias.own.astype(np.float32)
        self._net = net
        self._debias = debias
        self._of_own: Float32  # (width,), the derivative by `own`

    def outputs(self, inputs: Float32) -> Float32:
        """As `DenseNet.outputs`."""
        return self._net.outputs(inputs) + self._net.last_layer.weight @ self.own

    def add_gradient(self, slopes: Float32) -> None:
        """As `DenseNet.add_gradient`, with the derivative of the term."""
        mean = self._net.last_inputs.mean(axis=0)
        pull = np.float32(self._debias.kappa) * (mean - self._debias.mean) / np.float32(mean.size)
        self._net.add_gradient(slopes, pull / np.float32(len(slopes)))
        last = self._net.last_layer
        by_weight = last.weight_gradient
        by_weight += np.outer(slopes.sum(axis=0), self.own)
        self._of_own = slopes.sum(axis=0) @ last.weight

    def step(self, rate: float) -> None:
        """Change the offset by its gradient."""
        self.own = self.own - np.float32(rate) * self._of_own


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
