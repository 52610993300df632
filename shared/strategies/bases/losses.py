"""Comparing losses: the loss of a model that diverged is not a number, and must never win."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# finite, so that a message can carry it and a sum can hold it
_limits = np.finfo(np.float32)
LARGEST_LOSS = float(_limits.max)


def comparable(losses: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The losses in float64, in the shape given. NaN and infinity become `LARGEST_LOSS`."""
    values = np.asarray(losses, np.float64)
    return np.where(np.isfinite(values), values, LARGEST_LOSS)


def lowest(losses: Sequence[float]) -> int:
    """The index of the smallest loss, ties to the lowest. A loss that is not finite never wins."""
    return int(np.argmin(comparable(losses)))
