"""Caps, clipping and blame before a fold: what a cohort's reports may do, and who is set aside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covey.coordinator.fold.limits import (
    Distances,
    ReportedVector,
    UnsoundFoldError,
    capped,
    check_json,
    check_sound,
    clip,
    fair_figures,
    guilty,
    too_far,
    usual_steps,
)
from covey.coordinator.fold.statistics import pooled
from covey.shared.numerics.averages import step_norm
from covey.shared.scenario.aggregation import Aggregation
from covey.shared.strategies.base import Phase, Reports
from covey.shared.strategies.bases.single import Single
from covey.shared.strategies.client_half import Report
from tests.bowl import flat
from tests.kit.small_run import scenario

FEDAVG = scenario("fedavg").strategy
STATE = Single(flat(3.0, 4.0))
TRAIN = Phase(sizes={"model": 2}, cohort=("a", "b", "c", "d"))


def settings(**sections: Any) -> Aggregation:
    return Aggregation.model_validate(sections)


def moved(**by: float) -> Reports:
    """Reports whose models lie so far from the state's, with ten samples each."""
    return [
        (client, Report({"model": flat(3.0, 4.0 + far)}, 10, steps=5)) for client, far in by.items()
    ]


def test_claims_of_samples_and_steps_are_capped_and_honest_reports_are_the_same_objects() -> None:
    reports = [
        ("a", Report({}, 10, steps=5)),
        ("b", Report({}, 12, steps=6)),
        ("c", Report({}, 10**12, steps=10**6)),
    ]
    fair = capped(reports, settings(max_samples={"times_median": 2}))
    assert [(report.examples, report.steps) for _, report in fair] == [(10, 5), (12, 6), (24, 12)]
    assert fair[0][1] is reports[0][1]


def steps_from(reports: Reports) -> list[ReportedVector]:
    distances, steps = Distances(FEDAVG), list[ReportedVector]()
    for client, report in reports:
        order = FEDAVG.order(STATE, TRAIN, client)
        terms = FEDAVG.terms(STATE, TRAIN, client, report)
        steps += distances.of(STATE, TRAIN, client, report=report, order=order, terms=terms)
    return steps


def test_a_step_many_times_as_long_as_the_others_and_the_model_is_refused() -> None:
    steps = steps_from(moved(a=1.0, b=1.0, c=400.0, d=600.0))
    assert [round(step.norm) for step in steps] == [1, 1, 400, 600]
    assert steps[0].size == 5.0
    assert set(too_far(steps, settings())) == {"d"}
    assert too_far(steps, settings(refuse_beyond=None)) == {}


def test_a_lone_report_is_held_against_the_steps_of_earlier_rounds() -> None:
    """Before: a newcomer's entry, alone in its phase, could bring values of 1e17 into FeSEM-MA's centres."""
    alone = steps_from(moved(a=1e9))
    assert too_far(alone, settings()) == {}
    earlier = usual_steps(steps_from(moved(a=1.0, b=2.0, c=3.0)))
    assert earlier == {"model": 2.0}
    assert set(too_far(alone, settings(), earlier)) == {"a"}
    assert usual_steps(alone) == {}


def test_steps_are_clipped_to_the_median_of_those_from_the_same_model() -> None:
    reports = moved(a=1.0, b=2.0, c=90.0)
    steps = steps_from(reports)
    fair = clip(FEDAVG, STATE, reports, steps, settings(clip={"times_median": 2.0}))
    norms = [step_norm(report.vectors["model"], STATE.model) for _, report in fair]
    assert norms == pytest.approx([1.0, 2.0, 4.0])
    assert clip(FEDAVG, STATE, reports, steps, settings()) is reports


def test_a_cluster_is_compared_with_itself() -> None:
    near = [ReportedVector(f"a{i}", "model", "0", 1.0, 1.0) for i in range(3)]
    far = [ReportedVector(f"b{i}", "model", "1", 5000.0, 1.0) for i in range(3)]
    assert too_far([*near, *far], settings()) == {}
    assert set(too_far([*near, *far[:1]], settings())) == {"b0"}


def failing(*bad: str) -> Any:
    """A fold that fails where any of these takes part."""

    def fold(reports: Reports) -> None:
        for client, _ in reports:
            if client in bad:
                raise TypeError(f"{client} is bad")

    return fold


def test_guilty_names_one_liar_several_or_none() -> None:
    reports = moved(a=1.0, b=1.0, c=1.0, d=1.0)
    assert guilty(failing(), reports) == {}
    assert guilty(failing("c"), reports) == {"c": "TypeError: c is bad"}
    assert guilty(failing("a", "d"), reports) == {
        "a": "TypeError: a is bad",
        "d": "TypeError: d is bad",
    }
    assert guilty(failing("a"), reports[:1]) == {"a": "TypeError: a is bad"}
    assert guilty(failing("a", "b", "c", "d"), reports) == {}, "the fold itself is broken"


def test_a_full_disk_is_no_agents_lie() -> None:
    def full(reports: Reports) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        guilty(full, moved(a=1.0, b=1.0))


def test_the_check_refuses_a_state_that_no_run_can_continue_from() -> None:
    check_sound(FEDAVG, STATE)
    with pytest.raises(UnsoundFoldError, match="group 0 would hold 1e"):
        check_sound(FEDAVG, Single(flat(1.0, 1e19)))
    with pytest.raises(UnsoundFoldError, match="group 0"):
        check_sound(FEDAVG, Single(flat(1.0, np.nan)))
    with pytest.raises(UnsoundFoldError, match="cannot be written"):
        check_json({"loss": float("inf")}, "its averages")


def told(count: float, mean: float, size: float) -> dict[str, Any]:
    return {"count": [count], "sum": [count * mean], "square": [count * size]}


def test_moments_take_medians_under_a_rule_and_counts_are_capped() -> None:
    honest = [told(10, 1.0, 2.0), told(10, 1.2, 2.4), told(10, 0.8, 1.6)]
    liar = told(1e15, 1e6, 1e13)
    plain = pooled(honest)
    assert plain["mean"] == pytest.approx([1.0])
    assert pooled([*honest, liar], settings(max_samples={"times_median": None, "share": None}))[
        "mean"
    ][0] == pytest.approx(1e6)
    capped_mean = pooled([*honest, liar], settings(max_samples={"times_median": 1}))["mean"][0]
    assert capped_mean == pytest.approx((3 + 1e6) / 4)
    shared = pooled([*honest, liar])["mean"][0]
    assert shared == pytest.approx((3 + 3e6) / 6), "half of four: twice an equal share"
    ruled = pooled([*honest, liar], settings(rule="median"))
    assert ruled["mean"] == pytest.approx([1.1])
    assert 0.5 < ruled["std"][0] < 2


def test_claimed_test_samples_are_capped_in_averages() -> None:
    figures = {
        client: {"server": {"n": n, "accuracy": 1.0}}
        for client, n in (("a", 10), ("b", 20), ("c", 10**12))
    }
    fair = fair_figures(figures, settings(max_samples={"times_median": 3}))
    assert [one["server"]["n"] for one in fair.values()] == [10, 20, 60]
    assert figures["c"]["server"]["n"] == 10**12
