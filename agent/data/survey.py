"""An agent's share of the fleet's statistics: sums, quantiles and words of its training samples. Pure, without torch.

They describe the cells that are there: missing ones count nowhere. docs/privacy.md describes the information that they reveal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset
from covey.shared.errors import DataError
from covey.shared.scenario.classes import facts_of, why_no_classes
from covey.shared.scenario.columns import TableColumn, is_word
from covey.shared.scenario.fleet_statistics import (
    FEW_VALUES,
    FEWEST_ROWS,
    QUANTILE_LEVELS,
    asked_statistics,
)
from covey.shared.scenario.task import Task

Float64 = npt.NDArray[np.float64]
Numbers = dict[str, Any]  # of a report, by name


# Samples whose sums are rounded together: a fixed number, because it decides the last digits
SAMPLES_AT_ONCE = 256


@dataclass(frozen=True)
class Moments:
    """Per channel, float64 (channels,): number of values, their sum, and their sum of squares."""

    count: Float64
    total: Float64
    square: Float64


class DataSurvey:
    """The training samples of one agent, for a task that asks the fleet for statistics.

    Raises:
        DataError: there are no training samples.
    """

    def __init__(self, data: Dataset, task: Task) -> None:
        if not len(data.targets):
            raise DataError(f"{data.source}: no training samples", public="no training samples")
        self._data = data
        self._task = task
        self.device = "cpu"  # sums need no other

    def __repr__(self) -> str:
        return f"<DataSurvey of {self._data!r}>"

    @property
    def examples(self) -> int:
        """n_i, the number of training samples."""
        return len(self._data.targets)

    def statistics(self) -> Numbers:
        """The numbers of the report, as far as the task asks for them."""
        targets = target_statistics(self._data.targets, self._task)
        if self._task.has_own_columns:
            return column_statistics(self._data, self._task) | targets
        return self._channel_statistics() | targets

    def _channel_statistics(self) -> Numbers:
        if "count" not in asked_statistics(self._task):
            return {}
        features = self._data.features
        starts = range(0, len(features), SAMPLES_AT_ONCE)
        parts = [features[start : start + SAMPLES_AT_ONCE] for start in starts]
        sums = moments_of(self._task, parts)
        return {"count": sums.count, "sum": sums.total, "square": sums.square}


def moments_of(task: Task, parts: Iterable[Array]) -> Moments:
    """Sums over features after `task.scale` and before standardisation.

    Args:
        task: `features` and `scale` count.
        parts: the features in pieces (n, *features), in the type of their file.
    """
    channels = task.features[0]
    values_per_channel = 0
    sums: list[Float64] = []
    squares: list[Float64] = []
    for part in parts:
        values = _by_channel(part, channels) * task.scale
        squared = values**2
        _, count = values.shape
        values_per_channel += count
        sums.append(values.sum(axis=1))
        squares.append(squared.sum(axis=1))
    return Moments(
        np.full(channels, values_per_channel, np.float64), _exact_sums(sums), _exact_sums(squares)
    )


def _by_channel(features: Array, channels: int) -> Float64:
    """The values of each channel, (channels, n * values per sample), from features (n, *features)."""
    channels_first = features.reshape(len(features), channels, -1).swapaxes(0, 1)
    return np.ascontiguousarray(channels_first.reshape(channels, -1), np.float64)


def _exact_sums(parts: list[Float64]) -> Float64:
    """Sums over the parts, correctly rounded: a channel that hardly changes has its spread in the last digits."""
    by_channel = zip(*parts, strict=True)
    return np.array([math.fsum(own) for own in by_channel])


def column_statistics(data: Dataset, task: Task) -> Numbers:
    """Statistics of a table's columns, as far as the task asks for them.

    Returns:
        `count`, `sum` and `square` per column of numbers, for means and standardisation; `quantiles`, a list per column of
        numbers, for medians; `words`, a sorted list per column whose words the fleet finds.
    """
    asked = task.asks_fleet_for
    numbers: Numbers = {}
    columns = _number_cells(data, task)
    if "standardise" in asked or task.impute == "mean":
        moments = [_moments(values) for values in columns]
        for name in ("count", "sum", "square"):
            numbers[name] = [one[name] for one in moments]
    if task.impute == "median":
        numbers["count"] = [len(values) for values in columns]
        numbers["quantiles"] = [_quantiles(values) for values in columns]
    if "categories" in asked:
        numbers["words"] = _open_words(data, task)
    return numbers


def _number_cells(data: Dataset, task: Task) -> list[Float64]:
    """The cells that are there, of each column of numbers."""
    columns = enumerate(task.table_columns)
    return [present_cells(data, place) for place, column in columns if column.kind == "number"]


def _open_words(data: Dataset, task: Task) -> dict[str, list[str]]:
    """The words of each column whose words the fleet finds."""
    words: dict[str, list[str]] = {}
    vocabularies = {} if data.columns is None else data.columns.words
    for place, column in enumerate(task.table_columns):
        if column.name in task.open_categories:
            codes = present_cells(data, place)
            known = vocabularies.get(column.name, ())
            words[column.name] = (
                [] if words_that_stay(codes, known, column) else _words(codes, known, column)
            )
    return words


def words_that_stay(codes: Float64, known: tuple[str, ...], column: TableColumn) -> str:
    """Why the words of a column do not leave the device, whatever the task asks; empty if they may.

    Args:
        codes: the cells that are there, as indices.
        known: the words of the device.
        column: of the task.
    """
    counts = Counter(codes.astype(np.int64).tolist())
    return why_no_classes(
        column.name, facts_of((known[code], count) for code, count in counts.items())
    )


def present_cells(data: Dataset, place: int) -> Float64:
    """The cells of a column that are there."""
    cells = data.features[:, place]
    return cells[np.isfinite(cells)].astype(np.float64, copy=False)


def target_statistics(targets: Array, task: Task) -> Numbers:
    """`target`: count, sum and sum of squares of all targets, if the task standardises them over the fleet."""
    if task.target_scale != "federated":
        return {}
    return {"target": _moments(targets.astype(np.float64).ravel())}


def _moments(values: Float64) -> Mapping[str, float]:
    """Sums, correctly rounded: a column that hardly changes has its spread in the last digits."""
    return {"count": len(values), "sum": math.fsum(values), "square": math.fsum(values**2)}


def _quantiles(values: Float64) -> list[float]:
    """Quantiles at QUANTILE_LEVELS; the median alone of few values, nothing of none."""
    if not len(values):
        return []
    levels: tuple[float, ...] = QUANTILE_LEVELS
    if len(values) < FEW_VALUES:
        levels = (0.5,)
    return [float(value) for value in np.quantile(values, levels)]


def _words(codes: Float64, known: tuple[str, ...], column: TableColumn) -> list[str]:
    """The words of a column that occur more than once, sorted; the most frequent ones if the fleet has no room for all."""
    counts = Counter(codes.astype(np.int64).tolist())
    frequent: list[tuple[int, str]] = []
    for code, count in counts.items():
        word = known[code]
        if count >= FEWEST_ROWS and is_word(word):
            frequent.append((-count, word))
    frequent.sort()
    return sorted([word for _, word in frequent[: column.room]])
