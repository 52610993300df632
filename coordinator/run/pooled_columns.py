"""Statistics of a table's columns and of a regression target for all agents, from those that each of them reports. Pure.

Nothing here trusts them. Counts are capped like examples. Under a rule other than the mean every agent counts the same. A
word needs agents that hold it, so that one agent cannot displace the words of others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from covey.coordinator.run.pooled_moments import most_values, pooled
from covey.shared.scenario.aggregation import Aggregation
from covey.shared.scenario.columns import TableColumn
from covey.shared.scenario.task import Task

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
    """Means and deviations per input of the model. Those of words stay 0 or 1: they are not standardised."""
    remaining = iter(scales)
    means: list[float] = []
    stds: list[float] = []
    for column in columns:
        mean, std = NOTHING
        if column.kind == "number":
            mean, std = next(remaining)
        for _ in range(column.width):
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
