"""Stochastic gradient descent on a flat module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from covey.shared.numerics.split import Mask
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import GradientCorrection


class Trainable(Protocol):
    """One module, or several that take their steps together."""

    parameters: Tensor  # (P,), or (models, P)
    gradient: Tensor  # of the same shape


class Sgd:
    """v = momentum * v + g, w -= lr * v, where g already holds weight decay and the correction.

    One optimiser serves one training. It starts at rest unless it is given a velocity. For several models that take their steps
    together all vectors have one more axis, the first.

    Args:
        net: the module to train; its gradient (P,) is changed in place by each step.
        training: rate, momentum and weight decay.
        correction: terms that bend the gradient; its vectors are (P,) or (d,).
        trained: the values that may change (d,); None: all.
        velocity: (P,) float32 from an earlier training, or None.
    """

    _weights: Tensor  # (P,) the net's parameters
    _gradient: Tensor  # (P,) the net's gradient
    _anchor: Tensor | None  # (P,); None without a proximal term
    _on: Tensor | None  # (P,) bool, what the proximal term pulls; None: all
    _drift: Tensor | None  # (P,); None without a control variate
    _fixed: Tensor | None  # (P,) bool, what never changes; None: nothing
    _velocity: Tensor | None  # (P,); None without momentum

    def __init__(
        self,
        net: Trainable,
        training: Training,
        correction: GradientCorrection,
        trained: Mask | None,
        velocity: Vector | None,
    ) -> None:
        size = net.parameters.shape[-1]
        self._training = training
        self._weights = net.parameters
        self._gradient = net.gradient
        device = self._weights.device
        self._mu = correction.mu
        self._anchor = None
        if correction.mu and correction.anchor is not None:
            self._anchor = _copied(correction.anchor[..., :size], device)
        self._on = None
        if correction.on is not None:
            self._on = torch.from_numpy(correction.on[..., :size]).to(device)
        self._fixed = None
        if trained is not None:
            self._fixed = torch.from_numpy(~trained[..., :size]).to(device)
        self._drift = None
        if correction.drift is not None:
            self._drift = _copied(correction.drift[..., :size], device)
        self._velocity = None
        if training.momentum:
            self._velocity = torch.zeros_like(self._weights)
            if velocity is not None:
                self._velocity = _copied(velocity, device)
        self._velocity_of_all = self._velocity

    @property
    def velocity(self) -> Vector | None:
        """(P,) float32 on the CPU; None without momentum."""
        if self._velocity_of_all is None:
            return None
        return cast(Vector, self._velocity_of_all.cpu().numpy())

    def keep_first(self, models: int) -> None:
        """Of several models, change the first ones only from now on."""
        for name in ("_weights", "_gradient", "_anchor", "_on", "_drift", "_fixed", "_velocity"):
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, tensor[:models])

    def step(self) -> None:
        """Change the parameters by the gradient that the last backward pass left."""
        weights = self._weights
        gradient = self._gradient
        training = self._training
        if training.weight_decay:
            gradient.add_(weights, alpha=training.weight_decay)
        if self._anchor is not None:
            pull = weights - self._anchor
            if self._on is not None:
                pull.mul_(self._on)
            gradient.add_(pull, alpha=self._mu)
        if self._drift is not None:
            gradient.add_(self._drift)
        if self._fixed is not None:
            gradient.masked_fill_(self._fixed, 0)
        direction = gradient
        if self._velocity is not None:
            direction = self._velocity.mul_(training.momentum).add_(gradient)
        weights.add_(direction, alpha=-training.lr)


class ScaledSteps:
    """Steps of a loss that is computed in float16, of whose gradient the smallest values would be lost.

    torch's `GradScaler` multiplies the loss, divides the gradient, and leaves out a step whose gradient overflows. To it this is
    an optimiser.

    Args:
        leaves: tensors with a gradient.
        step: changes them by their gradients.
        device: where they lie.
    """

    def __init__(
        self, leaves: Sequence[Tensor], step: Callable[[], None], device: torch.device
    ) -> None:
        self.param_groups = [{"params": leaves}]
        self.step = step
        self._scaler = torch.amp.GradScaler(device.type)

    def take(self, loss: Tensor) -> None:
        """One step, from the loss () of a batch."""
        scaler = self._scaler
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(cast(torch.optim.Optimizer, self))
        scaler.update()


def _copied(vector: Vector, device: torch.device) -> Tensor:
    """A float32 copy of a vector on the device."""
    return torch.from_numpy(np.array(vector, np.float32)).to(device)
