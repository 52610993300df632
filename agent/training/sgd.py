"""Stochastic gradient descent on a flat module."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from covey.agent.training.flat_module import FlatModule
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import GradientCorrection, Training


class Sgd:
    """v = momentum * v + g, w -= lr * v, where g already holds weight decay and the correction.

    One optimiser serves one training. It starts at rest unless it is given a velocity.

    Args:
        net: the module to train; its gradient (P,) is changed in place by each step.
        training: rate, momentum and weight decay.
        correction: terms that bend the gradient; its vectors are (P,) or (d,).
        frozen: the first `frozen` parameters never change.
        velocity: (P - frozen,) float32 from an earlier training, or None.
    """

    _weights: Tensor  # (P - frozen,) view of the net's parameters
    _gradient: Tensor  # (P - frozen,) view of the net's gradient
    _anchor: Tensor | None  # (P - frozen,); None without a proximal term
    _drift: Tensor | None  # (P - frozen,); None without a control variate
    _velocity: Tensor | None  # (P - frozen,); None without momentum

    def __init__(
        self,
        net: FlatModule,
        training: Training,
        correction: GradientCorrection,
        frozen: int,
        velocity: Vector | None,
    ) -> None:
        trained = slice(frozen, len(net.parameters))
        self._training = training
        self._weights = net.parameters[trained]
        self._gradient = net.gradient[trained]
        device = self._weights.device
        self._mu = correction.mu
        self._anchor = None
        if correction.mu and correction.anchor is not None:
            self._anchor = _copied(correction.anchor[trained], device)
        self._drift = None
        if correction.drift is not None:
            self._drift = _copied(correction.drift[trained], device)
        self._velocity = None
        if training.momentum:
            self._velocity = torch.zeros_like(self._weights)
            if velocity is not None:
                self._velocity = _copied(velocity, device)

    @property
    def velocity(self) -> Vector | None:
        """(P - frozen,) float32 on the CPU; None without momentum."""
        if self._velocity is None:
            return None
        return cast(Vector, self._velocity.cpu().numpy())

    def step(self) -> None:
        """Change the parameters by the gradient that the last backward pass left."""
        weights = self._weights
        gradient = self._gradient
        training = self._training
        if training.weight_decay:
            gradient.add_(weights, alpha=training.weight_decay)
        if self._anchor is not None:
            gradient.add_(weights - self._anchor, alpha=self._mu)
        if self._drift is not None:
            gradient.add_(self._drift)
        direction = gradient
        if self._velocity is not None:
            direction = self._velocity.mul_(training.momentum).add_(gradient)
        weights.add_(direction, alpha=-training.lr)


def _copied(vector: Vector, device: torch.device) -> Tensor:
    """A float32 copy of a vector on the device."""
    return torch.from_numpy(np.array(vector, np.float32)).to(device)
