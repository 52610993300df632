"""Answers to a roll call: at once from a small fleet, evenly spread from a large one."""

from __future__ import annotations

from collections import Counter

import pytest

from covey.agent.device.presence import SessionPresence
from covey.coordinator.engine.events import Joined, LinkBack
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.roll_call import (
    ANSWERS_PER_S,
    ROLL_SPREAD_S,
    answer_delay_s,
    extra_s,
    spread_s,
)


@pytest.mark.parametrize(
    ("agents", "seconds"), [(0, 0.5), (1, 0.5), (20, 0.02), (1000, 1.0), (10_000, 10.0)]
)
def test_the_spread_grows_with_the_fleet_and_is_half_a_second_where_nobody_knows_it(
    agents: int, seconds: float
) -> None:
    assert spread_s(agents) == seconds


def test_no_second_has_many_more_answers_than_a_coordinator_takes() -> None:
    agents = 10_000
    window_s = spread_s(agents)
    seconds: Counter[int] = Counter()
    for number in range(agents):
        delay_s = answer_delay_s(f"agent-{number}", "e1", window_s)
        assert 0.0 <= delay_s < window_s
        seconds[int(delay_s)] += 1
    assert max(seconds.values()) < 1.2 * ANSWERS_PER_S


def test_an_agent_has_the_same_place_again_and_another_one_in_the_next_roll_call() -> None:
    first = answer_delay_s("pi-7", "e1", 10.0)
    assert answer_delay_s("pi-7", "e1", 10.0) == first
    assert answer_delay_s("pi-7", "e2", 10.0) != first


def test_an_agent_waits_as_long_as_the_coordinator_asks_for() -> None:
    delays: list[float] = []
    for window_s in (ROLL_SPREAD_S, 100.0):
        presence = SessionPresence("pi-7", "s1", "")
        status = CoordinatorStatus(online=True, epoch="e1", spread_s=window_s)
        presence.coordinator_seen(status, now=0.0)
        assert presence.wake_at is not None
        delays.append(presence.wake_at)
    assert delays[1] == pytest.approx(200 * delays[0])


def test_the_status_of_a_small_fleets_coordinator_has_the_bytes_that_it_always_had() -> None:
    usual = CoordinatorStatus(online=True, epoch="e1")
    assert b"spread_s" not in usual.to_bytes()
    assert CoordinatorStatus.from_bytes(usual.to_bytes()).spread_s == ROLL_SPREAD_S


def test_a_large_fleet_has_more_time_to_answer() -> None:
    for agents in (3, 3000):
        engine = RoundEngine(RoundRules(rollcall_s=10.0))
        for number in range(agents):
            engine.handle(Joined(f"agent-{number}"), 0.0)
        engine.handle(LinkBack(), 100.0)
        assert engine.members.rollcall_until == 110.0 + extra_s(agents)
    assert extra_s(3) == 0.0
    assert extra_s(3000) == 2.5


def test_a_run_that_waits_for_a_large_fleet_spreads_the_answers_to_its_first_roll_call() -> None:
    engine = RoundEngine(RoundRules(start_agents=4000))
    assert spread_s(engine.expected) == 4.0
