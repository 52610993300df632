"""The figures of a comparison: modes of evaluation, and the figure that each metric stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.coordinator.view.words import MODE_TITLES
from covey.shared.numerics.measures import MEASURES, Measure
from covey.shared.scenario.compare import Compare, Metric
from covey.shared.scenario.task import Task

# The modes that a row has figures of, in the order of its columns.
MODES = (
    "last",
    "last_of_undrawn",
    "server",
    "delivered",
    "tuned",
    "knn",
    "best",
    "newcomers_server",
    "newcomers_tuned",
)
# The modes that a table shows, in the order of its columns.
TITLES = {
    "last": MODE_TITLES["last"],
    "server": MODE_TITLES["server"],
    "delivered": MODE_TITLES["delivered"],
    "tuned": MODE_TITLES["tuned"],
    "knn": MODE_TITLES["knn"],
    "newcomers_server": "newcomers, as served",
    "newcomers_tuned": "newcomers, tuned",
}
# A metric is one average of one mode.
METRICS: Mapping[Metric, tuple[str, str]] = {
    "last": ("last", "macro"),
    "server": ("server", "macro"),
    "delivered": ("delivered", "macro"),
    "tuned": ("tuned", "macro"),
    "global": ("server", "micro"),
    "newcomers": ("newcomers_tuned", "macro"),
}


def metric_of(compare: Compare, label: str) -> Metric:
    """The metric of the method with this label: its own, else the comparison's."""
    for method in compare.methods:
        if method.label == label and method.metric is not None:
            return method.metric
    return compare.metric


def measure_of(compare: Compare, task: Task) -> Measure:
    """The measure that tables show and targets are compared with: the comparison's, else the task's usual one."""
    if compare.measure is not None:
        return MEASURES[compare.measure]
    return task.main_measure


def figure_of(averages: Mapping[str, Any], metric: Metric, measure: Measure) -> float | None:
    """The metric's figure out of averages by mode, as it is stored; None if they do not have it."""
    mode, average = METRICS[metric]
    value: float | None = averages.get(mode, {}).get(measure.name, {}).get(average)
    return value
