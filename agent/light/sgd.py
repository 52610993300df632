"""Stochastic gradient descent on vectors, in numpy."""

from __future__ import annotations

import numpy as np

from covey.agent.light.dense_net import DenseNet
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import GradientCorrection, Training


class NumpySgd:
    """v = momentum * v + g, w -= lr * v, where g already holds weight decay and the correction.

    One optimiser serves one training. It starts at rest unless it is given a velocity.

    Args:
        net: the model to train; its gradient is changed in place by each step.
        training: rate, momentum and weight decay.
        correction: terms that bend the gradient; its vectors are (d,).
        frozen: the first `frozen` parameters never change.
        velocity: (d - frozen,) from an earlier training, or None.
    """

    velocity: Vector | None  # (d - frozen,); None without momentum

    def __init__(
        self,
        net: DenseNet,
        training: Training,
        correction: GradientCorrection,
        frozen: int,
        velocity: Vector | None,
    ) -> None:
        self._weights = net.state[frozen:]
        self._gradient = net.gradient[frozen:]
        # float32 scalars: a Python float is cast in the same way, but the intent is easier to see
        self._lr = np.float32(training.lr)
        self._momentum = np.float32(training.momentum)
        self._decay = np.float32(training.weight_decay)
        self._mu = np.float32(correction.mu)
        self._anchor = None
        if correction.mu and correction.anchor is not None:
            self._anchor = correction.anchor[frozen:].astype(np.float32)
        self._drift = None
        if correction.drift is not None:
            self._drift = correction.drift[frozen:].astype(np.float32)
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
            gradient += self._mu * (self._weights - self._anchor)
        if self._drift is not None:
            gradient += self._drift
        direction = gradient
        if self.velocity is not None:
            self.velocity *= self._momentum
            self.velocity += gradient
            direction = self.velocity
        self._weights -= self._lr * direction
