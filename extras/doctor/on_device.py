"""On a device: sums of its data that the fleet has not seen yet, because the data were replaced since. Pure.

Rows that are added one by one change no sum by much, and are not sent: two sums a row apart are that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Dataset
from covey.agent.data.survey import DataSurvey
from covey.shared.scenario.task import Task

Table = npt.NDArray[np.float64]
SENT = ("count", "sum", "square", "target")
MOVED = 1.0  # deviations by which a mean has moved, or doublings of a deviation
MISSING = 0.25  # share of the cells of a column
LEAST_VALUES = 10

_newest: list[tuple[Dataset, str, Mapping[str, Any]]] = []  # a worker keeps its data, too


def news(data: Dataset, task: Task, known: Table | None) -> tuple[Mapping[str, Any], Table] | None:
    """What to send of the data, and what the fleet has then; None if it has that already, or the task asks for no sums.

    Args:
        data: in the form of the task.
        task: not resolved; it asks the fleet for statistics.
        known: (3, columns) counts, sums and sums of squares that the fleet has; None: none.
    """
    numbers = {name: value for name, value in _statistics(data, task).items() if name in SENT}
    table = table_of(numbers)
    is_known = known is not None and known.shape == table.shape and not has_moved(table, known)
    return None if is_known or not table.size else (numbers, table)


def _statistics(data: Dataset, task: Task) -> Mapping[str, Any]:
    name = task.model_dump_json()
    if not _newest or _newest[0][0] is not data or _newest[0][1] != name:
        _newest[:] = [(data, name, DataSurvey(data, task).statistics())]
    return _newest[0][2]


def table_of(numbers: Mapping[str, Any]) -> Table:
    """Counts, sums and sums of squares (3, columns) of a report's numbers, the target's last; (3, 0) for none."""
    parts = [_columns(numbers)] if "sum" in numbers else []
    if "target" in numbers:
        parts.append(_columns(numbers["target"]))
    return np.concatenate(parts, axis=1) if parts else np.empty((3, 0))


def _columns(sums: Mapping[str, Any]) -> Table:
    total, square = (np.ravel(np.asarray(sums[name], np.float64)) for name in ("sum", "square"))
    count = np.ravel(np.asarray(sums["count"], np.float64))
    return np.stack([np.resize(count, total.shape), total, square])


def has_moved(now: Table, before: Table) -> bool:
    """Whether the numbers of any column are others, or are missing, and not only some more of the same."""
    (count, *new), (earlier, *old) = now, before
    if (np.abs(count / max(count.max(), 1) - earlier / max(earlier.max(), 1)) > MISSING).any():
        return True
    known = np.minimum(count, earlier) >= LEAST_VALUES
    mean, deviation = _shape(count[known], [one[known] for one in new])
    usual, spread = _shape(earlier[known], [one[known] for one in old])
    tiny = 1e-6 * np.abs(usual) + 1e-12
    doublings = np.abs(np.log2((deviation + tiny) / (spread + tiny)))
    return bool(((np.abs(mean - usual) > MOVED * (spread + tiny)) | (doublings > MOVED)).any())


def _shape(count: Table, sums: Sequence[Table]) -> tuple[Table, Table]:
    mean = sums[0] / count
    variance = sums[1] / count - mean**2
    return mean, np.sqrt(np.where(variance > 1e-10 * sums[1] / count, variance, 0.0))
