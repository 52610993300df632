"""What local training minimises: the supervised loss, alone or with a contrastive loss of two augmented views.

Both can be computed on images that `training.augment` changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from covey.agent.training.architectures import Headed
from covey.agent.training.augment import Augmentation
from covey.agent.training.contrastive import contrastive_loss
from covey.agent.training.image_views import Change, ImageViews, unchanged
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
            return functional.mse_loss(outputs.squeeze(1), targets, reduction=reduction)
        return functional.cross_entropy(outputs, targets, reduction=reduction)


def supervised(module: nn.Module, loss: TaskLoss, change: Change = unchanged) -> Objective:
    """The task's loss alone."""

    def objective(inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        return loss.of_batch(module(change(inputs)), targets, weights)

    return objective


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
        first_logits = net.head(first_features)
        first = functional.softmax(first_logits, dim=1)
        second_logits = net.head(second_features)
        second = functional.softmax(second_logits, dim=1)
        supervised_loss = self.loss.of_batch(net.classify(own), targets, weights)
        clustering_loss = contrastive_loss(first, second, self.contrast)
        weighted = self.contrast.beta * clustering_loss
        return supervised_loss + weighted
