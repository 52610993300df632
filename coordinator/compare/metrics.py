"""The figures of a comparison: modes of evaluation, and the figure that each metric stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.coordinator.run.modes import MODE_TITLES
from covey.shared.scenario.compare import Compare, Metric

# The modes that a row has accuracies of, in the order of its columns.
MODES = (
    "last",
    "last_of_undrawn",
    "server",
    "tuned",
    "best",
    "newcomers_server",
    "newcomers_tuned",
)
# The modes that a table shows, in the order of its columns.
TITLES = {
    "last": MODE_TITLES["last"],
    "server": MODE_TITLES["server"],
    "tuned": MODE_TITLES["tuned"],
    "newcomers_server": "newcomers, as served",
    "newcomers_tuned": "newcomers, tuned",
}
# A metric is one average of one mode.
METRICS: Mapping[Metric, tuple[str, str]] = {
    "last": ("last", "macro"),
    "server": ("server", "macro"),
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


def accuracy_of(averages: Mapping[str, Any], metric: Metric) -> float | None:
    """The metric's accuracy out of averages by mode, as a share; None if they do not have it."""
    mode, average = METRICS[metric]
    accuracies = averages.get(mode, {}).get("accuracy", {})
    value: float | None = accuracies.get(average)
    return value
