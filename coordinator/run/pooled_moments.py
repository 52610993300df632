"""Feature scaling for all agents, from the moments that each of them reports. Pure.

A moment is a count, a sum or a sum of squares of one channel's values. Nothing here trusts them: agents that claim more
values than the cohort's cap count less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.averages import largest_weight, lower_median
from covey.shared.scenario.aggregation import Aggregation, MaxSamples

Float64 = npt.NDArray[np.float64]
Moments = Mapping[str, Any]  # of one agent: "count", "sum" and "square", each a list per channel
Scaling = dict[str, list[float]]  # "mean" and "std", each a list per channel
ROUNDING = 1e-13  # of a mean square: less spread than this may be the rounding of sums


def pooled(moments: Sequence[Moments], settings: Aggregation | None = None) -> Scaling:
    """Means and deviations per channel from counts, sums and sums of squares (each a list per channel).

    Counts are capped like examples. A rule other than the mean takes medians over the agents instead of sums. A
    channel without any spread gets deviation 1, so that it becomes 0 and not infinity.
    """
    settings = settings or Aggregation()
    rows = [_moments_of(one) for one in moments]
    table = np.array(rows)  # (agents, 3, channels)
    table = _capped_moments(table, settings.max_samples)
    if settings.average.single:
        return _median_moments(table)
    count = _exact_sums(table[:, 0])
    total = _exact_sums(table[:, 1])
    square = _exact_sums(table[:, 2])
    mean = total / count
    size = square / count
    return _scaling(mean, size - mean**2, size)


def _moments_of(numbers: Moments) -> list[Float64]:
    """Count, sum and square of one agent, each (channels,)."""
    count = _flat(numbers["count"])
    total = _flat(numbers["sum"])
    square = _flat(numbers["square"])
    return [np.broadcast_to(count, total.shape), total, square]


def _flat(values: Any) -> Float64:
    """A number or a list of them as an array of one dimension."""
    return np.ravel(np.asarray(values, np.float64))


def _exact_sums(column: Float64) -> Float64:
    """Sums over the agents, correctly rounded: they do not depend on the order. (agents, channels) -> (channels,)"""
    return np.array([math.fsum(values) for values in column.T])


def most_values(counts: Sequence[float], cap: MaxSamples) -> float:
    """The largest number of values of a column that an agent may count with."""
    limits = [math.inf]
    if cap.times_median is not None:
        limits.append(cap.times_median * lower_median(counts))
    if cap.share is not None:
        limits.append(largest_weight(counts, cap.share))
    return min(limits)


def _capped_moments(table: Float64, cap: MaxSamples) -> Float64:
    """Moments (agents, 3, channels) of agents that count more values than the cap are scaled down, by channel."""
    counts = table[:, 0]
    limit = np.array([most_values(channel, cap) for channel in counts.T.tolist()])
    fair_table = table.copy()
    for place, count in enumerate(counts):
        if (count > limit).any():
            fair_share = np.minimum(1.0, limit / count)
            fair_table[place] = table[place] * fair_share
    return fair_table


def _median_moments(table: Float64) -> Scaling:
    """The median of the agents' means, and of their mean squared distances to it."""
    count = table[:, 0]
    total = table[:, 1]
    square = table[:, 2]
    means = total / count
    sizes = square / count
    mean = np.median(means, axis=0)
    distances = sizes - 2 * mean * means + mean**2
    distances = np.maximum(distances, 0.0)  # rounding may have made them negative
    return _scaling(mean, np.median(distances, axis=0), np.median(sizes, axis=0))


def _scaling(mean: Float64, spread: Float64, size: Float64) -> Scaling:
    """Means and deviations. A spread that may be nothing but the rounding of sums counts as none."""
    has_spread = spread > ROUNDING * size
    std = np.sqrt(np.where(has_spread, spread, 1.0))
    return {"mean": mean.tolist(), "std": std.tolist()}
