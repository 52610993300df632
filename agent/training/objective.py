"""What local training minimises: the supervised loss, alone or with a contrastive loss of two augmented views.

Both can be computed on images that `training.augment` changes. `Debiased` adds the terms of `Debias`: an offset before
the last layer, and a pull of mean features.

Scaling and standardisation of features on the device that computes (`covey.agent.data.scaling`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from covey.agent.data.scaling import Float32, Scaling
from covey.agent.training.architectures import Headed
from covey.agent.training.augment import Augmentation
from covey.shared.numerics.measures import Kind
from covey.shared.scenario.task import Task
from covey.shared.strategies.client_half import Contrast, Debias


@dataclass(frozen=True)
class InputScaling:
    """x * factor + shift turns features of a file into a model's inputs. None leaves a term out.

    Both tensors are float32 of shape (channels, 1, ...), or () for a factor that all channels share.
    """

    shift: Tensor | None
    factor: Tensor | None

    @classmethod
    def of(cls, task: Task, scaling: Mapping[str, Sequence[float]] | None = None) -> InputScaling:
        """The scaling of a task, as `Scaling.of` makes it.

        Raises:
            PublicError: `mean` or `std` has another number of values than the features have channels.
        """
        arrays = Scaling.of(task, scaling)
        return cls(_tensor(arrays.shift), _tensor(arrays.factor))

    def to(self, device: torch.device) -> InputScaling:
        """The same scaling on a device."""
        shift = self.shift
        if shift is not None:
            shift = shift.to(device)
        factor = self.factor
        if factor is not None:
            factor = factor.to(device)
        return InputScaling(shift, factor)

    def apply(self, raw: Tensor) -> Tensor:
        """Inputs (n, *features) from float32 features (n, *features)."""
        if self.factor is None:
            return raw
        if self.shift is None:
            return raw * self.factor
        return torch.addcmul(self.shift, raw, self.factor)

    def undo(self, inputs: Tensor) -> Tensor:
        """Float32 features (n, *features) from inputs."""
        raw = inputs
        if self.shift is not None:
            raw = raw - self.shift
        if self.factor is not None:
            raw = raw / self.factor
        return raw


def _tensor(values: Float32 | None) -> Tensor | None:
    """The array as a tensor that shares its memory."""
    if values is None:
        return None
    return torch.from_numpy(values)


# -- the terms of `Debias` while a torch module trains ---------------------------------------------


class Debiased:
    """The offset that the last layer reads, and the term of the loss.

    Args:
        debias: the terms.
        last: the last layer, which is linear.
        device: where the module computes.
    """

    def __init__(self, debias: Debias, last: nn.Module, device: torch.device) -> None:
        self.own = torch.from_numpy(debias.own.copy()).to(device).requires_grad_()
        self._debias = debias
        self._last = last
        self._consensus = torch.from_numpy(debias.mean.copy()).to(device)
        self._batch: Tensor  # mean features (width,) of the latest forward pass

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The offset is in effect."""
        hook = self._last.register_forward_pre_hook(self._shifted)
        try:
            yield
        finally:
            hook.remove()

    def _shifted(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        self._batch = inputs[0].float().mean(dim=0)
        return (inputs[0] + self.own,)

    def term(self) -> Tensor:
        """The term of the latest batch."""
        self.own.grad = None  # of the step before
        return self._debias.kappa / 2 * (self._batch - self._consensus).square().mean()

    def step(self, rate: float) -> None:
        """Change the offset by its gradient."""
        assert self.own.grad is not None  # noqa: S101 - the last layer reads it in each pass
        with torch.no_grad():
            self.own -= rate * self.own.grad


# -- the objective ----------------------------------------------------------------------------------


# inputs (B, *features) -> inputs of changed images
Change = Callable[[Tensor], Tensor]


def unchanged(inputs: Tensor) -> Tensor:
    """The change that leaves images as they are."""
    return inputs


@dataclass(frozen=True)
class ImageViews:
    """Changes images that are inputs of a model already."""

    scaling: InputScaling  # that made the inputs from raw features
    low: float  # the raw feature that augmentation takes for 0
    span: float  # from there to the raw feature that it takes for 1
    draw: torch.Generator  # of the numbers by which images are changed

    @classmethod
    def of(cls, raw: Tensor, scale: float, scaling: InputScaling, seed: int) -> ImageViews:
        """The views of an agent's images.

        Args:
            raw: all raw features (n, *features). Images span 0 to what `scale` makes 1, or more if the data does.
            scale: the factor `task.scale`.
            scaling: makes inputs of raw features.
            seed: determines the changes.
        """
        smallest = float(raw.min())
        largest = float(raw.max())
        low = min(0.0, smallest)
        span = max(1 / scale, largest) - low
        draw = torch.Generator()
        draw.manual_seed(seed)
        return cls(scaling, low, span, draw)

    def changed(self, inputs: Tensor, augment: Augmentation) -> Tensor:
        """Inputs of changed images: augmentation works on images with values in [0, 1]."""
        from_zero = self.scaling.undo(inputs) - self.low
        changed_raw = augment(from_zero / self.span, self.draw) * self.span + self.low
        return self.scaling.apply(changed_raw)


def contrastive_loss(first: Tensor, second: Tensor, contrast: Contrast) -> Tensor:
    """The contrastive clustering loss () of two views of the same samples.

    Tang et al. 2024, equation 1, as Li et al. 2021 (Contrastive Clustering) have it. Our deviation from the print: we read
    the 1/tau outside of exp and the index that occurs twice as slips, because as printed tau would cancel.

    Args:
        first: soft assignments (B, K) of the first view; rows sum to 1.
        second: soft assignments (B, K) of the same B samples in the second view.
        contrast: temperature, weight of the entropy term, and whose signatures are compared.
    """
    loss = _discrimination(first, second, contrast)
    if contrast.kappa:
        entropy_loss = contrast.kappa * (_entropy_gap(first) + _entropy_gap(second))
        loss = loss + entropy_loss
    return loss


def _discrimination(first: Tensor, second: Tensor, contrast: Contrast) -> Tensor:
    """Cross-entropy of finding each signature's partner in the other view, among all other signatures of both views."""
    pair = [first, second]
    if contrast.by == "columns":  # a cluster's signature: how strongly each sample belongs to it
        pair = [first.T, second.T]
    both_views = torch.cat(pair)
    signatures = functional.normalize(both_views, dim=1)
    count = len(signatures)
    device = signatures.device
    similarity = signatures @ signatures.T / contrast.temperature
    # a signature is no candidate for its own partner
    itself = torch.eye(count, dtype=torch.bool, device=device)
    candidates = similarity.masked_fill(itself, -math.inf)
    # signature i of one view belongs to signature i of the other, half the list further on
    partner = torch.arange(count, device=device).roll(len(pair[0]))
    return functional.cross_entropy(candidates, partner)


def _entropy_gap(assigned: Tensor) -> Tensor:
    """ln K minus the entropy of the mean assignment: 0 if all clusters are used equally."""
    smallest = torch.finfo(assigned.dtype).tiny  # ln 0 would be infinite
    share = assigned.mean(dim=0).clamp(min=smallest)
    clusters = assigned.shape[1]
    negative_entropy = (share * share.log()).sum()
    return math.log(clusters) + negative_entropy


# (inputs (B, *features), targets (B,), sample weights (B,) or None) -> loss ()
Objective = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class TaskLoss:
    """The task's loss: cross-entropy for classes and labels, squared error for values, and for anomalies the error with which
    a model reconstructs a sample, which is its second output."""

    kind: Kind

    @classmethod
    def of(cls, task: Task) -> TaskLoss:
        """The loss of what the task asks for."""
        return cls(task.kind)

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses (B,) of outputs (B, classes, labels or steps)."""
        losses = self._loss(outputs, targets, "none")
        return losses if losses.ndim == 1 else losses.mean(dim=1)

    def of_batch(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Mean loss () of a batch. `weights` (B,) multiply the losses; the mean still divides by B."""
        if weights is None:
            return self._loss(outputs, targets, "mean")
        return (self.per_sample(outputs, targets) * weights).mean()

    def _loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        outputs = outputs.float()  # after layers of lower precision
        match self.kind:
            case "values":
                return functional.mse_loss(outputs.squeeze(1), targets, reduction=reduction)
            case "labels":
                return functional.binary_cross_entropy_with_logits(
                    outputs, targets.float(), reduction=reduction
                )
            case "anomalies":
                return outputs[:, 1].mean() if reduction == "mean" else outputs[:, 1]
        return functional.cross_entropy(outputs, targets, reduction=reduction)


def supervised(module: nn.Module, loss: TaskLoss, change: Change = unchanged) -> Objective:
    """The task's loss alone."""

    def objective(inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        return loss.of_batch(module(change(inputs)), targets, weights)

    return objective


def in_precision(objective: Objective, precision: str, device: torch.device) -> Objective:
    """The same, with layers that compute in `bf16` or `fp16` where torch finds it safe. Losses are float32."""
    if precision == "fp32":
        return objective
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16

    def lower(inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        with torch.autocast(device.type, dtype):
            return objective(inputs, targets, weights)

    return lower


@dataclass(frozen=True)
class ContrastiveObjective:
    """The task's loss plus beta * contrastive loss of two augmented views of the batch (Tang et al. 2024, equation 2)."""

    net: Headed
    loss: TaskLoss
    contrast: Contrast
    augment: Augmentation  # makes the views
    views: ImageViews
    own: Change = unchanged  # of the images of the task's loss

    def __call__(self, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        net = self.net
        first_view = self.views.changed(inputs, self.augment)
        second_view = self.views.changed(inputs, self.augment)
        own_inputs = self.own(inputs)
        # one pass for all three: batches of B would cost more than one of 3 B
        all_inputs = torch.cat([own_inputs, first_view, second_view])
        own, first_features, second_features = net.features(all_inputs).chunk(3)
        first = functional.softmax(net.head(first_features), dim=1)
        second = functional.softmax(net.head(second_features), dim=1)
        supervised_loss = self.loss.of_batch(net.classify(own), targets, weights)
        clustering_loss = contrastive_loss(first, second, self.contrast)
        return supervised_loss + self.contrast.beta * clustering_loss
