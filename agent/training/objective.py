"""What local training minimises: the supervised loss, alone or with a contrastive loss of two augmented views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from covey.agent.training.architectures import Headed
from covey.agent.training.augment import Augmentation
from covey.agent.training.contrastive import contrastive_loss
from covey.agent.training.input_scaling import InputScaling
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Contrast

# (inputs (B, *features), targets (B,), sample weights (B,) or None) -> loss ()
Objective = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class TaskLoss:
    """The task's loss: cross-entropy for classes, squared error for values."""

    regression: bool

    @classmethod
    def of(cls, task: Task) -> TaskLoss:
        """Without classes the task is a regression."""
        return cls(regression=task.classes is None)

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses (B,) of outputs (B, classes or 1)."""
        return self._loss(outputs, targets, "none")

    def of_batch(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Mean loss () of a batch. `weights` (B,) multiply the losses; the mean still divides by B."""
        if weights is None:
            return self._loss(outputs, targets, "mean")
        losses = self.per_sample(outputs, targets)
        weighted = losses * weights
        return weighted.mean()

    def _loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        if self.regression:
            values = outputs.squeeze(1)
            return functional.mse_loss(values, targets, reduction=reduction)
        return functional.cross_entropy(outputs, targets, reduction=reduction)


def supervised(module: nn.Module, loss: TaskLoss) -> Objective:
    """The task's loss alone."""

    def objective(inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        outputs = module(inputs)
        return loss.of_batch(outputs, targets, weights)

    return objective


@dataclass(frozen=True)
class ContrastiveObjective:
    """The task's loss plus beta * contrastive loss of two augmented views of the batch (Tang et al. 2024, equation 2)."""

    net: Headed
    loss: TaskLoss
    contrast: Contrast
    augment: Augmentation
    scaling: InputScaling  # that made the inputs from raw features
    low: float  # the raw feature that augmentation takes for 0
    high: float  # the raw feature that augmentation takes for 1
    draw: torch.Generator  # of the numbers by which views are changed

    def __call__(self, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        first_view = self._view(inputs)
        second_view = self._view(inputs)
        net = self.net
        # one pass for all three: batches of B would cost more than one of 3 B
        all_inputs = torch.cat([inputs, first_view, second_view])
        all_features = net.features(all_inputs)
        own, first_features, second_features = all_features.chunk(3)
        first_logits = net.head(first_features)
        first = functional.softmax(first_logits, dim=1)
        second_logits = net.head(second_features)
        second = functional.softmax(second_logits, dim=1)
        outputs = net.classify(own)
        supervised_loss = self.loss.of_batch(outputs, targets, weights)
        clustering_loss = contrastive_loss(first, second, self.contrast)
        return supervised_loss + self.contrast.beta * clustering_loss

    def _view(self, inputs: Tensor) -> Tensor:
        """Inputs of changed images: augmentation works on images with values in [0, 1]."""
        span = self.high - self.low
        raw = self.scaling.undo(inputs)
        images = (raw - self.low) / span
        changed = self.augment(images, self.draw)
        changed_raw = changed * span + self.low
        return self.scaling.apply(changed_raw)
