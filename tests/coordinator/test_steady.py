"""The clock that does not count the time of a freeze."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.coordinator.serve.steady import FROZEN_S, SETTLE_S, SteadyClock


def started(at: float = 100.0) -> SteadyClock:
    clock = SteadyClock()
    assert clock.time(at) == at
    return clock


def test_a_clock_that_is_asked_often_shows_the_time() -> None:
    clock = started()
    for second in range(1, 60):
        assert clock.time(100.0 + second) == 100.0 + second
    assert clock.take_freeze() == 0.0


def test_the_time_of_a_freeze_and_a_little_more_is_not_counted() -> None:
    clock = started()
    assert clock.time(160.0) == 100.0
    assert clock.time(160.0 + SETTLE_S) == 100.0
    assert clock.time(163.0 + SETTLE_S) == 103.0
    assert clock.take_freeze() == 60.0
    assert clock.take_freeze() == 0.0


def test_a_time_comes_when_the_clock_has_stood_still_and_then_as_long_as_is_left() -> None:
    clock = started()
    assert clock.when(105.0) == 105.0
    assert clock.time(160.0) == 100.0
    assert clock.when(100.0) == 160.0
    later = clock.when(105.0)
    assert later == 160.0 + SETTLE_S + 5.0
    assert clock.time(161.0) == 100.0
    assert clock.time(165.0) == 103.0
    assert clock.time(later) == 105.0


def test_a_second_freeze_while_the_clock_stands_still_is_not_counted_either() -> None:
    clock = started()
    clock.time(160.0)
    clock.time(200.0)
    assert clock.time(200.0 + SETTLE_S + 1) == 101.0


@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_the_clock_never_goes_back_and_counts_at_most_what_passed(gaps: list[float]) -> None:
    clock, now, before = started(0.0), 0.0, 0.0
    for gap in gaps:
        now += gap
        seen = clock.time(now)
        assert before <= seen <= before + (gap if gap <= FROZEN_S else 0.0) + 1e-6
        before = seen


@pytest.mark.parametrize("gap", [0.5, 4.9])
def test_a_busy_machine_is_not_frozen(gap: float) -> None:
    assert started().time(100.0 + gap) == 100.0 + gap
