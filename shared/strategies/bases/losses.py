"""Losses that are compared: a model that diverged has a loss that is not a number, and must never win."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LARGEST_LOSS = float(
    np.finfo(np.float32).max
)  # finite, so that a message can carry it and a sum can hold it


def comparable(losses: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The losses in float64, in the shape given. NaN and infinity count as `LARGEST_LOSS`."""
    values = np.asarray(losses, np.float64)
    return np.where(np.isfinite(values), values, LARGEST_LOSS)


def lowest(losses: Sequence[float]) -> int:
    """Index of the smallest loss; ties go to the lowest index. A loss that is not finite never wins."""
    return int(np.argmin(comparable(losses)))
