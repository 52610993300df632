"""Checks of the statistics that agents report of their data, before the coordinator pools them. Pure."""

from __future__ import annotations

import math
from typing import Any

from covey.coordinator.run.number_checks import LARGEST_VALUE, Numbers, is_list, wrong_number
from covey.shared.scenario.columns import is_word
from covey.shared.scenario.fleet_statistics import QUANTILE_LEVELS
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import LARGEST, Expected

QUANTILES = len(QUANTILE_LEVELS)
MOMENT_NAMES = ("count", "sum", "square")


def wrong_statistics(numbers: Numbers, task: Task) -> str:
    """The first mistake in the statistics that a task asks for; empty if there is none."""
    if task.has_own_columns:
        wrong = _wrong_columns(numbers, task)
    elif "standardise" in task.asks_fleet_for or not task.asks_fleet_for:
        wrong = _wrong_moments(numbers, task.features[0], fewest=1.0)
    else:
        wrong = ""
    if wrong or task.target_scale != "federated":
        return wrong
    return _wrong_target(numbers.get("target"))


def _wrong_columns(numbers: Numbers, task: Task) -> str:
    """The first mistake in the statistics of a table's columns, each a list over the columns of numbers."""
    asked = task.asks_fleet_for
    columns = task.number_columns
    if "standardise" in asked or task.impute == "mean":
        # an agent may have no value at all in a column
        wrong = _wrong_moments(numbers, columns, fewest=0.0)
        if wrong:
            return wrong
    if task.impute == "median":
        wrong = _wrong_quantiles(numbers, columns)
        if wrong:
            return wrong
    if "categories" in asked:
        return _wrong_words(numbers.get("words"), task)
    return ""


def _wrong_quantiles(numbers: Numbers, columns: int) -> str:
    if columns:
        wrong = wrong_number("count", numbers, Expected(columns, 0.0, LARGEST), LARGEST)
        if wrong:
            return wrong
    quantiles = numbers.get("quantiles")
    if not isinstance(quantiles, list) or len(quantiles) != columns:
        return f"quantiles is {quantiles!r:.60}; expected a list for each of {columns} columns"
    for found in quantiles:
        if not _are_quantiles(found):
            expected = f"{QUANTILES} rising numbers, one, or none"
            return f"quantiles has {found!r:.60}; expected {expected}"
    return ""


def _are_quantiles(found: Any) -> bool:
    if found == []:
        return True
    if not is_list(found, -QUANTILES, -LARGEST_VALUE, LARGEST_VALUE, whole=False):
        return False
    if len(found) not in (1, QUANTILES):
        return False
    rising = sorted(found)
    return bool(found == rising)


def _wrong_words(words: Any, task: Task) -> str:
    """The first mistake in the words of the columns whose words the fleet finds."""
    rooms = task.open_categories
    if not isinstance(words, dict) or words.keys() != rooms.keys():
        return f"words is {words!r:.60}; expected words of {sorted(rooms)}"
    for name, room in rooms.items():
        found = words[name]
        if not isinstance(found, list) or len(found) > room:
            return f"words of {name!r} are {found!r:.60}; expected a list of at most {room}"
        for word in found:
            if not is_word(word):
                return f"words of {name!r} have {word!r:.60}; expected short visible text"
        if len(set(found)) < len(found):
            return f"words of {name!r} occur twice"
    return ""


def _wrong_target(target: Any) -> str:
    """The mistake in count, sum and sum of squares of the target."""
    if not isinstance(target, dict):
        return f"target is {target!r:.60}; expected count, sum and square"
    lists = {name: [target.get(name)] for name in MOMENT_NAMES}
    wrong = _wrong_moments(lists, 1, fewest=1.0)
    return f"target: {wrong}" if wrong else ""


def _wrong_moments(numbers: Numbers, channels: int, fewest: float) -> str:
    """The first mistake in counts, sums and sums of squares, each a list per channel, of at least `fewest` values."""
    if not channels:
        return ""
    expected = {
        "count": Expected(channels, fewest, LARGEST),
        "sum": Expected(channels, -LARGEST, LARGEST),
        "square": Expected(channels, 0.0, LARGEST),
    }
    for name, one in expected.items():
        wrong = wrong_number(name, numbers, one, LARGEST)
        if wrong:
            return wrong
    lists = [numbers[name] for name in MOMENT_NAMES]
    for count, total, square in zip(*lists, strict=True):
        wrong = _impossible_moments(count, total, square)
        if wrong:
            return wrong
    return ""


def _impossible_moments(count: float, total: float, square: float) -> str:
    """Why no values that a sensor gives have these moments; empty if some have."""
    if not count:
        if total or square:
            return f"sum is {total!r:.60} and square {square!r:.60} of no values; expected 0"
        return ""
    mean = total / count
    mean_square = square / count
    if not math.sqrt(mean_square) <= LARGEST_VALUE:
        given = f"square is {square!r:.60} over {count!r:.60} values"
        return f"{given}; expected values up to {LARGEST_VALUE:g}"
    largest = mean_square * (1 + 1e-6) + 1e-300  # room for rounding
    if mean * mean > largest:
        given = f"sum is {total!r:.60} and square {square!r:.60}"
        return f"{given}; no {count!r:.60} values have both"
    return ""
