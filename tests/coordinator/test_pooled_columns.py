"""The statistics that agents report of their columns: what is refused, and what the fleet makes of the rest."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from covey.coordinator.checks import check_statistics
from covey.coordinator.fold.statistics import pooled_statistics
from covey.shared.errors import DecodeError
from covey.shared.scenario.aggregation import Aggregation
from covey.shared.scenario.fleet_statistics import QUANTILE_LEVELS, asked_statistics, resolved
from covey.shared.scenario.task import Task

MEAN = Aggregation()
MEDIAN = Aggregation.model_validate({"rule": "median"})


def task(**keys: Any) -> Task:
    base: dict[str, Any] = {
        "features": (5,),
        "columns": ("age", "colour", "weight"),
        "categories": {"colour": 2},
        "impute": "mean",
        "standardise": "federated",
        "target_scale": "federated",
    }
    return Task(**(base | keys))


def moments(*columns: list[float]) -> dict[str, Any]:
    return {
        "count": [len(values) for values in columns],
        "sum": [float(sum(values)) for values in columns],
        "square": [float(sum(value**2 for value in values)) for values in columns],
    }


def report(ages: list[float], weights: list[float], *colours: str) -> dict[str, Any]:
    target = {"count": 2, "sum": 40.0, "square": 1000.0}
    return {**moments(ages, weights), "words": {"colour": list(colours)}, "target": target}


ONE = report([20, 40], [70], "red")
TWO = report([60], [], "blue", "red")
THREE = report([], [], "green")


def test_the_fleets_statistics_are_those_of_all_rows() -> None:
    found = pooled_statistics([ONE, TWO, THREE], task(), MEAN)
    ages = np.array([20.0, 40, 60])
    assert found["impute"] == {"age": 40.0, "weight": 70.0}
    assert found["mean"] == [40.0, 0, 0, 0, 70.0]
    assert found["std"] == pytest.approx([ages.std(), 1, 1, 1, 1])
    assert found["categories"] == {"colour": ["blue", "red"]}  # red by votes, blue by the alphabet
    assert found["target"] == {"mean": 20.0, "std": 10.0}
    assert resolved(task(), found).asks_fleet_for == ()


def test_flags_are_not_standardised() -> None:
    flagged = task(features=(7,), flags=("age", "weight"))
    found = pooled_statistics([ONE, TWO, THREE], flagged, MEAN)
    assert found["mean"] == [40.0, 0, 0, 0, 0, 70.0, 0]
    assert found["std"][1] == found["std"][-1] == 1


def test_they_are_the_same_for_any_order_of_the_reports() -> None:
    for settings in (MEAN, MEDIAN):
        found = [
            pooled_statistics(order, task(), settings) for order in permutations((ONE, TWO, THREE))
        ]
        assert all(one == found[0] for one in found)


def test_a_column_without_any_value_is_0_with_deviation_1() -> None:
    found = pooled_statistics([THREE], task(), MEAN)
    assert found["impute"] == {"age": 0.0, "weight": 0.0}
    assert (found["mean"], found["std"]) == ([0.0] * 5, [1.0] * 5)


def test_one_agent_displaces_no_word_that_others_hold() -> None:
    flood = report([1], [1], "aa", "ab")
    found = pooled_statistics([flood, ONE, ONE], task(), MEAN)
    assert found["categories"] == {"colour": ["aa", "red"]}


def quantiles(values: list[float]) -> dict[str, Any]:
    found = np.quantile(values, QUANTILE_LEVELS).tolist()
    return {"count": [len(values)], "quantiles": [found]}


def test_the_pooled_median_has_a_rank_near_the_middle() -> None:
    rng = np.random.default_rng(0)
    own = task(columns=("age",), categories={}, features=(1,), impute="median")
    own = own.model_copy(update={"standardise": "none", "target_scale": "none"})
    parts = [rng.exponential(scale, size).tolist() for scale, size in ((1, 50), (9, 300), (40, 90))]
    found = pooled_statistics([quantiles(part) for part in parts], own, MEAN)
    everything = np.concatenate(parts)
    rank = (everything <= found["impute"]["age"]).mean()
    assert abs(rank - 0.5) <= 0.05
    liar = {"count": [10**15], "quantiles": [[1e9] * 10]}
    capped = pooled_statistics([quantiles(part) for part in parts] + [liar] * 1, own, MEDIAN)
    assert capped["impute"]["age"] < 100


def test_a_task_without_columns_pools_as_before_and_its_target() -> None:
    plain = Task(features=(2, 4), standardise="federated", target_scale="federated")
    found = pooled_statistics([{**moments([1, 3], [5, 7]), "target": ONE["target"]}], plain, MEAN)
    assert found["mean"] == [2.0, 6.0]
    assert found["target"] == {"mean": 20.0, "std": 10.0}


def test_only_numbers_that_the_task_asks_for_are_kept() -> None:
    assert asked_statistics(task()) == ("count", "sum", "square", "words", "target")
    assert asked_statistics(
        task(impute="median", standardise="none", categories={"colour": ("a", "b")})
    ) == ("count", "quantiles", "target")
    assert asked_statistics(Task(features=(3,), classes=2)) == ("count", "sum", "square")


@pytest.mark.parametrize("honest", [ONE, TWO, THREE])
def test_reports_of_honest_agents_are_accepted(honest: dict[str, Any]) -> None:
    check_statistics(honest, task())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": [1]}, "count is [1]; expected 2 numbers from 0"),
        ({"count": None}, "count is None"),
        ({"count": [0, 0]}, "of no values; expected 0"),
        ({"sum": [float(10**30), 0.0]}, "no 2 values have both"),
        ({"square": [1e99, 0.0]}, "expected values up to 1e+18"),
        ({"words": None}, "expected words of ['colour']"),
        ({"words": {}}, "expected words of ['colour']"),
        ({"words": {"colour": ["a", "b", "c"]}}, "a list of at most 2"),
        ({"words": {"colour": ["a", 3]}}, "expected short visible text"),
        ({"words": {"colour": ["x" * 65]}}, "expected short visible text"),
        ({"words": {"colour": ["\x1b[1m"]}}, "expected short visible text"),
        ({"words": {"colour": ["a", "a"]}}, "occur twice"),
        ({"words": {"colour": [["a"]]}}, "expected short visible text"),
        ({"target": None}, "expected count, sum and square"),
        ({"target": {"count": 0, "sum": 0.0, "square": 0.0}}, "target: count is [0]"),
        ({"target": {"count": 1}}, "target: sum is [None]"),
    ],
)
def test_a_report_that_no_honest_agent_sends_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DecodeError, match=re.escape(words)):
        check_statistics({**ONE, **changes}, task())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantiles": None}, "expected a list for each of 2 columns"),
        ({"quantiles": [[1.0]]}, "expected a list for each of 2 columns"),
        ({"quantiles": [[1.0], [1.0, 2.0]]}, "10 rising numbers, one, or none"),
        ({"quantiles": [[1.0], list(range(10, 0, -1))]}, "10 rising numbers, one, or none"),
        ({"quantiles": [[1e30], []]}, "10 rising numbers, one, or none"),
        ({"quantiles": [["a"], []]}, "10 rising numbers, one, or none"),
        ({"count": [-1, 0]}, "count is [-1, 0]"),
    ],
)
def test_wrong_quantiles_are_named(changes: dict[str, Any], words: str) -> None:
    own = task(impute="median", standardise="none", target_scale="none")
    right = {"count": [3, 0], "quantiles": [[2.0], []], "words": {"colour": []}}
    check_statistics(right, own)
    with pytest.raises(DecodeError, match=re.escape(words)):
        check_statistics({**right, **changes}, own)
