"""The losses of the two kinds of tasks in numpy, with their derivatives by the model's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
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
    """The squared error of outputs (n, 1) against values (n,) float32; returns what `cross_entropy` does."""
    errors = outputs.ravel() - targets
    losses = errors**2
    doubled = 2 * errors
    slopes = _column(doubled)
    return losses, slopes


def _column(values: Float32) -> Float32:
    """(n,) as (n, 1)."""
    return values.reshape(-1, 1)
