"""A vote: an agent's losses under two models on data that it held back from training. Pure.

The agent and the coordinator come to the same verdict from the same numbers, so that the agent can act on it at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

LEAST = 5  # samples: with fewer the variance of a mean is a guess
SURE = 2.33  # standard deviations: one-sided, 1 %
MUCH = 0.5  # of the loss of a model that knows nothing
LARGEST_LOSS = (
    1e50  # in place of larger losses and of those that are not finite; its square is finite
)

Losses = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Vote:
    """Mean losses on the same samples."""

    n: int  # samples
    loss: float  # of the model that the agent would be served
    other: float  # of the other model
    variance: float  # of the mean difference between the two
    naught: float  # the loss of a model whose outputs are all 0

    @classmethod
    def of(cls, served: Losses, other: Losses, naught: Losses) -> Self:
        """A vote from the losses of single samples (n,), n >= 2."""
        one, two, nothing = (_bounded(losses) for losses in (served, other, naught))
        n = len(one)
        return cls(
            n=n,
            loss=float(one.mean()),
            other=float(two.mean()),
            variance=float((one - two).var(ddof=1)) / n,
            naught=float(nothing.mean()),
        )

    @classmethod
    def from_wire(cls, numbers: Mapping[str, Any]) -> Self:
        return cls(**numbers)

    def to_wire(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def is_against(self) -> bool:
        """Whether the other model is so much better that neither chance nor the course of a training explains it.

        In an honest fleet a model is at times worse for an agent than an earlier one, also beyond chance: chance alone
        is no reason to leave.
        """
        if self.n < LEAST:
            return False
        difference = self.loss - self.other
        return difference > MUCH * self.naught and difference > SURE * math.sqrt(self.variance)


def _bounded(losses: Losses) -> npt.NDArray[np.float64]:
    wide = np.nan_to_num(
        losses.astype(np.float64), nan=LARGEST_LOSS, posinf=LARGEST_LOSS, neginf=LARGEST_LOSS
    )
    return np.minimum(wide, LARGEST_LOSS)
