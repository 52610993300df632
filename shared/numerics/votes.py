"""Votes: losses of agents under two models, on data that they hold back from training. Pure.

In a vote of the fleet each agent sends a mean difference and its variance, and `counted` has the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST = 5  # samples: with fewer the variance of a mean is a guess
SURE = 2.33  # standard deviations: one-sided, 1 %
LIMIT = 3.0  # times the median, the most that one agent counts in a decision of the fleet
LARGEST_LOSS = (
    1e50  # in place of larger losses and of those that are not finite; its square is finite
)
MOST = 1e6  # standard deviations, in place of more

Losses = npt.NDArray[np.float32]
Errors = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def difference(one: Errors, other: Errors, units: npt.NDArray[np.int64]) -> tuple[float, float]:
    """How much lower the mean loss of samples is under the other model, and the variance of that mean over their units.

    Args:
        one: losses of single samples (n,) under one model.
        other: of the same samples under the other.
        units: of the samples (n,), two at least: samples of one are not independent.
    """
    apart = _bounded(one) - _bounded(other)
    gain = float(apart.mean())
    sums = np.bincount(np.unique(units, return_inverse=True)[1], apart - gain)
    count = len(sums)
    return gain, count / (count - 1) * float(sums @ sums) / len(apart) ** 2


@dataclass(frozen=True)
class VoteOutcome:
    """The outcome of a vote of the fleet on whether one model serves it better than another."""

    voters: int
    better: int  # of them have a lower loss
    gain: float  # the sum of the differences
    z: float  # the sum in standard deviations; the agents are given, their samples drawn
    least: float = 0.0  # z of the group that loses most; 0: none loses

    @property
    def harms(self) -> bool:
        """Whether a group loses beyond chance."""
        return self.least < -SURE


def counted(
    differences: Sequence[tuple[float, float]], groups: Sequence[Hashable] = ()
) -> VoteOutcome:
    """The outcome from what `difference` gave each agent.

    One liar has one vote: differences and errors beyond `LIMIT` times the median of all are cut off, and a group loses only if
    two of its agents do.

    Args:
        differences: of each agent.
        groups: of each agent; empty: there are none.
    """
    d = np.array([gain for gain, _ in differences], np.float64)
    e = np.sqrt(np.array([max(variance, 0.0) for _, variance in differences], np.float64))
    if not len(d):
        return VoteOutcome(0, 0, 0.0, 0.0)
    most = LIMIT * float(np.median(np.abs(d)))
    clipped = np.clip(d, -most, most)
    squares = np.minimum(e, LIMIT * float(np.median(e))) ** 2
    least = 0.0
    for group in set(groups):
        own = np.array([one == group for one in groups])
        if (d[own] < 0).sum() >= 2:
            least = min(least, _deviations(clipped[own], squares[own]))
    gain = math.fsum(clipped.tolist())
    return VoteOutcome(len(d), int((d > 0).sum()), gain, _deviations(clipped, squares), least)


def _deviations(gains: npt.NDArray[np.float64], variances: npt.NDArray[np.float64]) -> float:
    """The sum of gains in its standard deviations."""
    gain = math.fsum(gains.tolist())
    error = math.sqrt(math.fsum(variances.tolist()))
    if gain == 0:
        return 0.0
    return min(max(gain / error if error else math.copysign(MOST, gain), -MOST), MOST)


def _bounded(losses: Errors) -> npt.NDArray[np.float64]:
    wide = np.nan_to_num(
        losses.astype(np.float64), nan=LARGEST_LOSS, posinf=LARGEST_LOSS, neginf=LARGEST_LOSS
    )
    return np.minimum(wide, LARGEST_LOSS)
