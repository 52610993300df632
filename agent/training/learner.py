"""Torch behind `Local`: the one local training loop of the project.

All parameters are views into one flat tensor and all gradients into another, so a step of SGD is a few
vector operations whatever the number of layers, and a model comes and goes as one copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from covey.agent.data import Dataset
from covey.agent.policy import NO_CODE_RULES, Rules
from covey.agent.training.augment import views_for
from covey.agent.training.contrastive import contrastive_loss
from covey.agent.training.learner_device import chosen, opened
from covey.agent.training.models import BATCH_NORMS, build, headed, layout_of, tensors_of
from covey.shared.errors import DataError, PublicError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.privacy.noise import Noise
from covey.shared.privacy.settings import LocalPrivacy
from covey.shared.scenario.task import Standardise, Task
from covey.shared.strategies.base import (
    Contrast,
    DataSplit,
    GradientCorrection,
    SampleIndices,
    Training,
    TrainingResult,
)

if TYPE_CHECKING:
    from covey.agent.training.learner_private import PrivateSgd

CHUNK = 256  # samples per forward pass outside of training
GATHERED = 64  # batches that are gathered and converted at once
NO_CORRECTION = GradientCorrection()

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Objective = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Moments:
    """Per channel (first axis of the features), float64 (channels,): number of values, their sum, sum of squares."""

    count: Float64
    total: Float64
    square: Float64


class TorchLocal:
    """A `shared.strategy.Local` over data that `agent.data.fit` has passed.

    `rng` gives the order of samples and the seed of dropout, nothing else: the same generator state, start
    and data give the same bytes. `scaling` holds `mean` and `std` per channel; without it the task's own
    fixed values count, if it has any. `rules`: models of the user's own that may
    be imported, how much may be trained, and the kind of device where the owner has set one. Models and batches lie on that
    device; vectors come and go on the CPU. Raises PublicError where model and layout differ or the device is not there,
    DataError where there is nothing to train on.
    """

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
        self._rules = rules
        self._steps = 0  # of SGD, in all trainings of this order
        if not len(dataset.targets):
            raise DataError(f"{dataset.source}: no training samples")
        self._task, self._training, self._rng = task, training, rng
        self._layout = layout
        self._inputs = {
            "train": torch.from_numpy(dataset.features),
            "test": torch.from_numpy(dataset.test_features),
        }
        self._numbers = {
            "train": _values(dataset.targets, task),
            "test": _values(dataset.test_targets, task),
        }
        self._wanted = {split: torch.from_numpy(values) for split, values in self._numbers.items()}
        self.device = rules.device(training.device, chosen)
        self._device = opened(self.device)
        self._shift, self._factor = (
            None if values is None else values.to(self._device) for values in affine(task, scaling)
        )
        self._net = _Flat(self._built(), layout, self._device)
        self._private: PrivateSgd | None = None

    def _built(self) -> nn.Module:
        """The task's module, on the device."""
        return build(self._task, 0, self._rules.allowed, values=self._layout.size).to(self._device)

    def train_privately(
        self,
        privacy: LocalPrivacy,
        rounds: int,
        noise: Noise,
        ledger: npt.NDArray[np.float64] | None,
    ) -> None:
        """From now on `train` is DP-SGD, on top of what the ledger says was spent. Raises PublicError."""
        from covey.agent.training.learner_private import PrivateSgd

        module = self._built()  # on the device before Opacus, which holds on to its parameters
        self._private = PrivateSgd(
            privacy,
            module,
            self.examples,
            self._training,
            rounds=rounds,
            noise=noise,
            ledger=ledger,
        )
        self._private_net = _Flat(
            module, self._layout, self._device
        )  # Opacus has hooks in it: everything else uses the other

    @property
    def ledger(self) -> npt.NDArray[np.float64] | None:
        """The steps of DP-SGD so far, of earlier orders too; None: it trains without noise."""
        return self._private.ledger if self._private is not None else None

    def spent(self) -> float:
        """Epsilon of the ledger."""
        return self._private.spent() if self._private is not None else 0.0

    @property
    def examples(self) -> int:
        """n_i, the number of training samples."""
        return len(self._numbers["train"])

    def inputs(self) -> Float32:
        """Training samples (n_i, values of one) as their file has them."""
        return self._inputs["train"].flatten(1).to(torch.float32).numpy()

    def targets(self, split: DataSplit) -> npt.NDArray[Any]:
        """Class indices (n,) int64, or values (n,) float32 for a regression task."""
        return self._numbers[split]

    def loss(self, model: Vector) -> float:
        """F_i(model), evaluation mode, summed in float64."""
        return float(self.losses(model).mean(dtype=np.float64))

    def losses(self, model: Vector) -> Float32:
        """Loss of each training sample (n_i,), in data order."""
        wanted = _cut(self._wanted["train"].to(self._device), CHUNK)
        with torch.inference_mode():
            parts = [
                self._sample_losses(out, y)
                for out, y in zip(self._outputs(model, "train"), wanted, strict=True)
            ]
        return torch.cat(parts).cpu().numpy()

    def predict(self, model: Vector, split: DataSplit) -> Float32:
        """Logits (n, classes), or predicted values (n, 1) for a regression task."""
        with torch.inference_mode():
            parts = list(self._outputs(model, split))
        return (
            torch.cat(parts).cpu().numpy()
            if parts
            else np.empty((0, self._task.outputs), np.float32)
        )

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        """Gradient of F_i at the model (d,), over all samples, `batch` drawn ones or those at `rows`; 0 in the buffers."""
        net = self._net
        net.load(model)
        net.module.eval()
        net.gradient.zero_()
        if rows is None:
            drawn = batch is not None and batch < self.examples
            rows = (
                self._rng.permutation(self.examples)[:batch] if drawn else np.arange(self.examples)
            )
        for chunk in _cut(torch.from_numpy(rows), CHUNK):
            x, y = self._gathered(chunk)
            (self._sample_losses(net.module(x), y).sum() / len(rows)).backward()  # type: ignore[no-untyped-call]
        result = np.zeros(self._layout.size, np.float32)
        result[: self._layout.parameters] = net.gradient.cpu().numpy()
        return result

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        """For each epoch the rows of its mini-batches, in a fresh order; the short last batch is kept."""
        size = self._training.batch
        for _ in range(self._training.epochs if epochs is None else epochs):
            order = self._rng.permutation(self.examples)
            yield [order[at : at + size] for at in range(0, self.examples, size)]

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
    ) -> TrainingResult:
        """LocalTrain. No step at all (one sample under batch norm) gives the start and its loss.

        Under `train_privately` this is DP-SGD; its loss is no figure to send. Raises PublicError for what it cannot do.
        """
        epochs = self._training.epochs if epochs is None else epochs
        if steps is not None:
            steps = max(steps, 0)
            epochs = math.ceil(steps / self._batches_of_an_epoch)
        self._spend(epochs, steps)
        if self._private is not None:
            if weights is not None or contrast is not None:
                raise PublicError(
                    "privacy.local: this method weighs examples or compares them, which DP-SGD cannot"
                )
            steps = self._private.steps(epochs) if steps is None else steps
            return self._train_privately(self._private, start, correction, steps, frozen, velocity)
        net = self._net
        net.load(start)
        net.module.train()
        sgd = _Sgd(net, self._training, correction, frozen, velocity)
        objective = self._objective(contrast)
        losses: list[Tensor] = []
        with torch.random.fork_rng(devices=[], enabled=net.random):
            if net.random:
                torch.manual_seed(int(self._rng.integers(2**63)))
            batches = chain.from_iterable(self._batches(weights) for _ in range(epochs))
            for x, y, w in islice(batches, steps):
                net.gradient.zero_()
                loss = objective(x, y, w)
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
                sgd.step()
        if not losses:
            return TrainingResult(start.copy(), 0, self.loss(start), velocity)
        mean = float(torch.stack(losses).cpu().double().mean())  # not every device has doubles
        return TrainingResult(net.vector(), len(losses), mean, sgd.velocity)

    @property
    def _batches_of_an_epoch(self) -> int:
        """Those that are trained on: batch norm takes no batch of one sample. 1 at the least, so that epochs are finite."""
        size = self._training.batch
        skipped = self._net.batch_norm and self.examples % size == 1
        return max(math.ceil(self.examples / size) - skipped, 1)

    def _spend(self, epochs: int, steps: int | None) -> None:
        """Count the steps of a training that is about to begin. Raises PolicyError where this device allows no more."""
        self._rules.check_epochs(epochs)
        self._steps += (
            epochs * math.ceil(self.examples / self._training.batch) if steps is None else steps
        )
        self._rules.check_steps(self._steps)

    def _train_privately(
        self,
        private: PrivateSgd,
        start: Vector,
        correction: GradientCorrection,
        steps: int,
        frozen: int,
        velocity: Vector | None,
    ) -> TrainingResult:
        """DP-SGD: each batch is a Poisson sample; what bends the gradient afterwards does not see the data."""
        net = self._private_net
        net.load(start)
        net.module.train()
        sgd = _Sgd(net, self._training, correction, frozen, velocity)
        private.spend(steps)
        with torch.random.fork_rng(devices=[], enabled=net.random):
            if net.random:
                torch.manual_seed(int(self._rng.integers(2**63)))
            for _ in range(steps):
                x, y = self._gathered(torch.from_numpy(private.sample()))
                loss = partial(self._summed_loss, y)
                gradients = private.gradients(loss, x)
                for view, gradient in zip(net.gradients, gradients, strict=True):
                    view.copy_(gradient)
                sgd.step()
        return TrainingResult(net.vector(), steps, 0.0, sgd.velocity)

    def _summed_loss(self, y: Tensor, outputs: Tensor) -> Tensor:
        return self._sample_losses(outputs, y).sum()

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        """Training samples in each cluster (K,): hard counts by the head, evaluation mode, no views."""
        net = headed(self._net.module, clusters)
        self._net.load(model)
        net.eval()
        with torch.inference_mode():
            found = [net.head(net.features(x)).argmax(dim=1) for x in self._chunks("train")]
        return np.bincount(torch.cat(found).cpu().numpy(), minlength=clusters)

    def moments(self) -> Moments:
        """Sums over the training set after `task.scale` and before standardisation, for federated scaling."""
        channels = self._task.features[0]
        sums, squares = [], []
        for part in _cut(self._inputs["train"], CHUNK):
            own = part.numpy().reshape(len(part), channels, -1).swapaxes(0, 1).reshape(channels, -1)
            values = np.ascontiguousarray(own, np.float64) * self._task.scale
            sums.append(values.sum(axis=1))
            squares.append((values**2).sum(axis=1))
        # as exact as can be: the spread of a channel that hardly changes is what these two differ by
        total, square = (
            np.array([math.fsum(own) for own in zip(*parts, strict=True)])
            for parts in (sums, squares)
        )
        count = self._inputs["train"].numel() / channels
        return Moments(np.full(channels, count), total, square)

    def _batches(self, weights: Float32 | None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """One epoch in a fresh order; the short last batch is kept, unless batch norm cannot take it."""
        size = self._training.batch
        w = None if weights is None else torch.from_numpy(np.ascontiguousarray(weights, np.float32))
        order = torch.from_numpy(self._rng.permutation(self.examples))
        for block in _cut(order, size * GATHERED):
            x, y = (_cut(tensor, size) for tensor in self._gathered(block))
            each = (
                [None] * len(x)
                if w is None
                else _cut(w.index_select(0, block).to(self._device), size)
            )
            for batch in zip(x, y, each, strict=True):
                if not (self._net.batch_norm and len(batch[1]) == 1):
                    yield batch

    def _gathered(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        x, y = (split["train"].index_select(0, rows) for split in (self._inputs, self._wanted))
        return self._scaled(x), y.to(self._device)

    def _chunks(self, split: DataSplit) -> Iterator[Tensor]:
        return map(self._scaled, _cut(self._inputs[split], CHUNK))

    def _outputs(self, model: Vector, split: DataSplit) -> Iterator[Tensor]:
        self._net.load(model)
        self._net.module.eval()
        if len(self._numbers[split]):
            yield from map(self._net.module, self._chunks(split))

    def _scaled(self, raw: Tensor) -> Tensor:
        x = raw.to(self._device).to(torch.float32)  # in this order: bytes travel faster than floats
        if self._factor is None:
            return x
        return (
            x * self._factor if self._shift is None else torch.addcmul(self._shift, x, self._factor)
        )

    def _objective(self, contrast: Contrast | None) -> Objective:
        """The loss of a batch (inputs, targets, weights): supervised alone, or with that of two views beside it."""
        if contrast is None:
            return lambda x, y, w: self._batch_loss(self._net.module(x), y, w)
        net, views = headed(self._net.module, contrast.clusters), views_for(self._task.features)
        draw = torch.Generator().manual_seed(int(self._rng.integers(2**63)))
        low, high = self._range()

        def view(x: Tensor) -> Tensor:
            raw = x if self._shift is None else x - self._shift
            raw = raw if self._factor is None else raw / self._factor
            return self._scaled(views((raw - low) / (high - low), draw) * (high - low) + low)

        def both(x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
            own, first, second = net.features(torch.cat([x, view(x), view(x)])).chunk(3)
            a, b = (functional.softmax(net.head(one), dim=1) for one in (first, second))
            return self._batch_loss(net.classify(own), y, w) + contrast.beta * contrastive_loss(
                a, b, contrast
            )

        return both

    def _range(self) -> tuple[float, float]:
        """Least and largest raw feature, in any case 0 and what `task.scale` makes 1."""
        raw = self._inputs["train"]
        return min(0.0, float(raw.min())), max(1 / self._task.scale, float(raw.max()))

    def _batch_loss(self, outputs: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        if w is not None:
            return (self._sample_losses(outputs, y) * w).mean()
        if self._task.classes is None:
            return functional.mse_loss(outputs.squeeze(1), y)
        return functional.cross_entropy(outputs, y)

    def _sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self._task.classes is None:
            return functional.mse_loss(outputs.squeeze(1), y, reduction="none")
        return functional.cross_entropy(outputs, y, reduction="none")


class _Flat:
    """A module whose float32 state lives in one tensor (d,) and whose gradients live in another (P,)."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        own = layout_of(module)
        if own.digest != layout.digest:
            raise PublicError(
                f"task.model: built here it has {own.parameters} parameters in {len(own.tensors)} tensors, the "
                f"coordinator's has {layout.parameters} in {len(layout.tensors)}; bring both to one version"
            )
        self.module = module
        self.state = torch.empty(layout.size, device=device)
        self.parameters = self.state[: layout.parameters]
        self.gradient = torch.zeros(layout.parameters, device=device)
        modules = list(module.modules())
        self.batch_norm = any(isinstance(m, BATCH_NORMS) for m in modules)
        # a module of the user's own may draw random numbers: give those a seed too
        self.random = any(
            "dropout" in type(m).__name__.lower() or not _from_torch(m) for m in modules
        )
        tensors = tensors_of(module)
        self.gradients: list[
            Tensor
        ] = []  # views of `gradient`, one for each parameter in their order
        for entry, span in layout.spans():
            tensor = tensors[entry.name]
            tensor.data = self.state[span].view(entry.shape)
            if isinstance(tensor, nn.Parameter):
                tensor.grad = self.gradient[span].view(entry.shape)
                self.gradients.append(tensor.grad)

    def load(self, model: Vector) -> None:
        if model.shape != tuple(self.state.shape):
            raise ValueError(
                f"model has shape {model.shape}, the layout wants {tuple(self.state.shape)}"
            )
        if self.state.device.type == "cpu":
            np.copyto(self.state.numpy(), model)
        else:
            self.state.copy_(torch.from_numpy(np.array(model, np.float32)))

    def vector(self) -> Vector:
        return cast(Vector, self.state.cpu().numpy().copy())


class _Sgd:
    """v = momentum * v + g, w -= lr * v, where g already holds weight decay and the pull. Made anew for every job, at
    rest unless it is given a velocity.

    The first `frozen` parameters are out of its sight.
    """

    def __init__(
        self,
        net: _Flat,
        training: Training,
        correction: GradientCorrection,
        frozen: int,
        velocity: Vector | None,
    ) -> None:
        part = slice(frozen, len(net.parameters))
        self._w, self._g, self._training = net.parameters[part], net.gradient[part], training
        device = self._w.device
        self._anchor = _part(correction.anchor, part, device) if correction.mu else None
        self._drift = _part(correction.drift, part, device)
        self._mu = correction.mu
        at_rest = torch.zeros_like(self._w) if velocity is None else _tensor(velocity, device)
        self._velocity = at_rest if training.momentum else None

    @property
    def velocity(self) -> Vector | None:
        return None if self._velocity is None else cast(Vector, self._velocity.cpu().numpy())

    def step(self) -> None:
        w, g, settings = self._w, self._g, self._training
        if settings.weight_decay:
            g.add_(w, alpha=settings.weight_decay)
        if self._anchor is not None:
            g.add_(w - self._anchor, alpha=self._mu)
        if self._drift is not None:
            g.add_(self._drift)
        if self._velocity is not None:
            g = self._velocity.mul_(settings.momentum).add_(g)
        w.add_(g, alpha=-settings.lr)


def _cut(tensor: Tensor, size: int) -> tuple[Tensor, ...]:
    """Views of at most `size` rows each."""
    return tensor.split(size)  # type: ignore[no-untyped-call, no-any-return]


def _part(vector: Vector | None, part: slice, device: torch.device) -> Tensor | None:
    return None if vector is None else _tensor(vector[part], device)


def _tensor(vector: Vector, device: torch.device) -> Tensor:
    """A copy of a vector on the device."""
    return torch.from_numpy(np.array(vector, np.float32)).to(device)


def _from_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.", "covey.agent.training.models"))


def _values(targets: npt.NDArray[Any], task: Task) -> npt.NDArray[Any]:
    return np.ascontiguousarray(targets, np.float32 if task.classes is None else np.int64)


def affine(
    task: Task, scaling: Mapping[str, Sequence[float]] | None
) -> tuple[Tensor | None, Tensor | None]:
    """(shift, factor) so that x * factor + shift is the scaled and standardised input; None leaves a term out."""
    if scaling is None and isinstance(task.standardise, Standardise):
        scaling = {"mean": task.standardise.mean, "std": task.standardise.std}
    if scaling is None:
        return None, (torch.tensor(task.scale, dtype=torch.float32) if task.scale != 1 else None)
    mean, std = (np.asarray(scaling[key], np.float64) for key in ("mean", "std"))
    channels = task.features[0]
    for name, values in (("mean", mean), ("std", std)):
        if values.shape != (channels,):
            raise PublicError(
                f"task.standardise.{name} has {values.size} values, the features have {channels} channels"
            )
    std = np.where(std > 0, std, 1.0)  # a channel that never changes is only shifted
    shape = (channels, *[1] * (len(task.features) - 1))
    return tuple(  # type: ignore[return-value]
        torch.from_numpy(values.astype(np.float32).reshape(shape))
        for values in (-mean / std, task.scale / std)
    )
