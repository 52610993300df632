"""A deadline that follows from durations: a percentile of them, times a factor, between two bounds. Pure.

Work that was not finished when its step closed counts as slower than all work that was. It raises the percentile by at most
half of the way to 1, so that agents which never answer do not stretch every deadline.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

ROUNDING = 1e-9  # of a rank: less than this above an integer is no further one


@dataclass(frozen=True)
class DeadlineRule:
    """How a deadline follows from durations: `factor` times their percentile, within the bounds."""

    percentile: float  # between 0 and 1
    factor: float  # at least 1
    least_s: float
    most_s: float  # at least `least_s`

    def deadline_s(self, finished: Collection[float], unfinished: int) -> float | None:
        """Seconds from the opening of a step; None if no work was finished.

        Args:
            finished: durations of finished work (s), in any order.
            unfinished: how many steps closed while an agent was at work.
        """
        if not finished:
            return None
        ordered = sorted(finished)
        together = len(ordered) + unfinished
        halfway = (1.0 + self.percentile) / 2.0
        rank = _rank(self.percentile, together)
        highest = _rank(halfway, len(ordered))
        duration = ordered[min(rank, highest) - 1]
        deadline = self.factor * duration
        return min(max(deadline, self.least_s), self.most_s)


def _rank(share: float, count: int) -> int:
    """The nearest rank of a percentile among this many values, from 1."""
    return max(math.ceil(share * count - ROUNDING), 1)
