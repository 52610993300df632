"""Statistics of the features for all agents, from those that each agent reports. Pure.

A moment is a count, a sum or a sum of squares of one channel's values; a table's columns have quantiles and words too.
Nothing here trusts them. Counts are capped like examples. Under a rule other than the mean every agent counts the same. A
word needs agents that hold it, so that one agent cannot displace the words of others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.averages import largest_weight, lower_median
from covey.shared.scenario.aggregation import Aggregation, MaxSamples
from covey.shared.scenario.columns import TableColumn
from covey.shared.scenario.task import Task

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
    table = np.array([_moments_of(one) for one in moments])  # (agents, 3, channels)
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


Numbers = Mapping[str, Any]  # of one agent's report
Statistics = dict[str, Any]  # as `covey.shared.scenario.fleet_statistics` describes them
Scale = tuple[float, float]  # mean and deviation

NOTHING: Scale = (0.0, 1.0)  # mean and deviation of a column in which no agent has a value


def pooled_statistics(reports: Sequence[Numbers], task: Task, settings: Aggregation) -> Statistics:
    """Everything that the task asks the fleet for.

    Args:
        reports: the numbers of each agent, checked.
        task: not resolved.
        settings: how the influence of single agents is limited.
    """
    asked = task.asks_fleet_for
    found: Statistics = {}
    if task.has_own_columns:
        found |= _columns(reports, task, settings)
    elif "standardise" in asked or not asked:
        found |= pooled(reports, settings)
    if "target_scale" in asked:
        scale = pooled([report["target"] for report in reports], settings)
        [mean] = scale["mean"]
        [std] = scale["std"]
        found["target"] = {"mean": mean, "std": std}
    return found


def _columns(reports: Sequence[Numbers], task: Task, settings: Aggregation) -> Statistics:
    """Statistics of a table's columns."""
    found: Statistics = {}
    is_standardised = task.standardise == "federated"
    columns = [column for column in task.table_columns if column.kind == "number"]
    places = range(len(columns))
    scales: list[Scale] = []
    if is_standardised or task.impute == "mean":
        scales = [_scale(reports, place, settings) for place in places]
    if is_standardised:
        found |= _per_input(task.table_columns, scales)
    match task.impute:
        case "mean":
            found["impute"] = _by_name(columns, [mean for mean, _ in scales])
        case "median":
            medians = [_median(reports, place, settings) for place in places]
            found["impute"] = _by_name(columns, medians)
    if task.open_categories:
        words = {
            name: _vocabulary(reports, name, room) for name, room in task.open_categories.items()
        }
        found["categories"] = words
    return found


def _by_name(columns: Sequence[TableColumn], values: Sequence[float]) -> dict[str, float]:
    return dict(zip([column.name for column in columns], values, strict=True))


def _scale(reports: Sequence[Numbers], place: int, settings: Aggregation) -> Scale:
    """Mean and deviation of one column, over the agents that have values in it."""
    moments: list[Numbers] = []
    for report in reports:
        count = report["count"][place]
        total = report["sum"][place]
        square = report["square"][place]
        if count:
            moments.append({"count": count, "sum": total, "square": square})
    if not moments:
        return NOTHING
    scale = pooled(moments, settings)
    [mean] = scale["mean"]
    [std] = scale["std"]
    return mean, std


def _per_input(columns: Sequence[TableColumn], scales: Sequence[Scale]) -> dict[str, list[float]]:
    """Means and deviations per input of the model. Those of words and flags stay 0 or 1: they are not standardised."""
    remaining = iter(scales)
    means: list[float] = []
    stds: list[float] = []
    for column in columns:
        mean, std = NOTHING
        if column.kind == "number":
            mean, std = next(remaining)
        for place in range(column.width):
            if place > 0:
                mean, std = NOTHING
            means.append(mean)
            stds.append(std)
    return {"mean": means, "std": stds}


def _median(reports: Sequence[Numbers], place: int, settings: Aggregation) -> float:
    """The weighted lower median of all agents' quantiles: each stands for an equal share of its agent's values."""
    counts: list[float] = []
    quantiles: list[Sequence[float]] = []
    for report in reports:
        own = report["quantiles"][place]
        if own:
            counts.append(report["count"][place])
            quantiles.append(own)
    if not counts:
        return 0.0
    weights = _weights(counts, settings)
    points: list[tuple[float, float]] = []
    for own, weight in zip(quantiles, weights, strict=True):
        share = weight / len(own)
        for value in own:
            points.append((value, share))
    points.sort()
    half = math.fsum([share for _, share in points]) / 2
    reached = 0.0
    median = 0.0
    for median, share in points:  # noqa: B007  the value at which half is reached
        reached += share
        if reached >= half:
            break
    return median


def _weights(counts: Sequence[float], settings: Aggregation) -> list[float]:
    """How much each agent counts in a median."""
    if settings.average.single:
        return [1.0] * len(counts)
    most = most_values(counts, settings.max_samples)
    return [min(count, most) for count in counts]


def _vocabulary(reports: Sequence[Numbers], name: str, room: int) -> list[str]:
    """The words that most agents hold, sorted: the same for any order of the reports. Ties go to the first in the alphabet."""
    votes: Counter[str] = Counter()
    for report in reports:
        votes.update(set(report["words"][name]))
    ranked = [(-agents, word) for word, agents in votes.items()]
    ranked.sort()
    return sorted([word for _, word in ranked[:room]])
