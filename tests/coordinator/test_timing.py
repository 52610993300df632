"""Deadlines from planted durations, over-selection from planted drop-outs, and the same decisions after a kill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.coordinator.engine.events import (
    Close,
    Folded,
    Joined,
    Left,
    Open,
    Planned,
    Reported,
    Tick,
)
from covey.coordinator.engine.members import KEPT
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import DeadlineRule
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.jobs import Perform
from tests import clock
from tests.coordinator.engines import ALL, TRAIN, cohort, feed, gathered, restarted
from tests.kit import small_run
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet, Numpy

RULE = DeadlineRule(percentile=0.9, factor=1.5, least_s=5.0, most_s=60.0)
AGENTS = tuple("abcdefghij")
SECONDS = st.floats(0.0, 1e4)


def engine_of(**rules: Any) -> RoundEngine:
    """Ten agents; the first round has 30 s."""
    settings = {"deadline_s": 30.0, "deadline": RULE, "rounds": 9, **rules}
    return gathered(*AGENTS, **settings)


def begin(engine: RoundEngine, now: float) -> None:
    """Open the next step. The engine has asked for it."""
    first = engine.handle(Planned(TRAIN), now)[0]
    assert isinstance(first, Open)


def end(engine: RoundEngine, opened: float, took: Mapping[str, float]) -> float:
    """Let these agents report after this time, and the others never. Returns when the step closed."""
    step = engine.step
    assert step is not None
    number = step.number
    closed: Close | None = None
    now = opened
    for client, seconds in sorted(took.items(), key=lambda one: one[1]):
        if closed is None:
            now = opened + seconds
            actions = feed(engine, now, Reported(client, number))
            closed = next((one for one in actions if isinstance(one, Close)), None)
    while closed is None:
        assert engine.wake_at is not None
        now = max(now, engine.wake_at)
        actions = feed(engine, now, Tick())
        closed = next((one for one in actions if isinstance(one, Close)), None)
    asked = [Joined(client) for client in AGENTS]  # the silent ones answer that they are online
    feed(engine, now, *asked, Folded())
    return now


def limit(engine: RoundEngine) -> float:
    """Seconds of the open step."""
    assert engine.step is not None
    return engine.step.deadline - engine.step.opened


def test_a_deadline_is_a_percentile_times_a_factor_between_two_bounds() -> None:
    ten = [float(second) for second in range(1, 11)]
    assert RULE.deadline_s(ten, 0) == 13.5
    assert RULE.deadline_s([0.1] * 10, 0) == 5.0
    assert RULE.deadline_s([100.0] * 10, 0) == 60.0
    assert RULE.deadline_s([], 3) is None


def test_unfinished_work_raises_the_percentile_by_at_most_half_of_the_way() -> None:
    hundred = [float(second) / 10 for second in range(1, 101)]
    assert RULE.deadline_s(hundred, 0) == pytest.approx(1.5 * 9.0)
    assert RULE.deadline_s(hundred, 3) == pytest.approx(1.5 * 9.3)
    assert RULE.deadline_s(hundred, 1000) == pytest.approx(1.5 * 9.5)


@given(st.lists(SECONDS, min_size=1), st.integers(0, 50), st.randoms(use_true_random=False))
def test_a_deadline_is_within_its_bounds_whatever_the_order(
    finished: list[float], unfinished: int, random: Any
) -> None:
    found = RULE.deadline_s(finished, unfinished)
    shuffled = list(finished)
    random.shuffle(shuffled)
    assert found is not None
    assert RULE.least_s <= found <= RULE.most_s
    assert RULE.deadline_s(shuffled, unfinished) == found
    slower = [2 * seconds for seconds in finished]
    later = RULE.deadline_s(slower, unfinished)
    assert later is not None
    assert later >= found


def test_the_first_round_has_the_stated_time_and_later_ones_follow_the_agents() -> None:
    engine = engine_of()
    begin(engine, 0.0)
    assert limit(engine) == 30.0
    took = {client: 4.0 + place for place, client in enumerate(AGENTS)}
    now = end(engine, 0.0, took)
    assert now == 13.0
    begin(engine, now)
    assert limit(engine) == 1.5 * 12.0  # the ninth of ten
    # one is silent from now on: it costs this time once more, and not 30 s
    del took["j"]
    now = end(engine, now, took)
    assert now == 13.0 + 18.0
    begin(engine, now)
    assert 1.5 * 12.0 <= limit(engine) <= 1.5 * 13.0


def test_a_silent_agent_does_not_stretch_the_deadlines_forever() -> None:
    engine = engine_of()
    now = 0.0
    for _ in range(8):
        begin(engine, now)
        assert limit(engine) <= 30.0
        now = end(engine, now, dict.fromkeys(AGENTS[:8], 4.0))  # two of ten never answer
    begin(engine, now)
    assert limit(engine) == 1.5 * 4.0


def test_durations_count_for_their_phase_and_their_agents_alone() -> None:
    engine = engine_of()
    timing = engine.timing
    begin(engine, 0.0)
    end(engine, 0.0, dict.fromkeys(AGENTS, 8.0))
    assert timing.deadline_s("train", AGENTS, 30.0) == 12.0
    assert timing.deadline_s("evaluate", AGENTS, 30.0) == 30.0
    strangers = ["x", "y", "z"]
    assert timing.deadline_s("train", strangers, 30.0) == 30.0
    assert timing.deadline_s("train", [*strangers, "a", "b"], 30.0) == 30.0  # less than half
    assert timing.deadline_s("train", [*strangers, "a", "b", "c"], 30.0) == 12.0
    for client in AGENTS:
        engine.members.forget(client)
    assert timing.deadline_s("train", AGENTS, 30.0) == 30.0


def test_only_the_newest_durations_of_an_agent_count() -> None:
    engine = engine_of()
    now = 0.0
    for seconds in [20.0, *[4.0] * KEPT]:
        begin(engine, now)
        now = end(engine, now, dict.fromkeys(AGENTS, seconds))
    assert engine.timing.deadline_s("train", AGENTS, 30.0) == 6.0


def test_a_refilled_slot_is_timed_from_its_own_invitation() -> None:
    engine = engine_of(agents=2)
    begin(engine, 0.0)
    first, second = cohort(engine)
    feed(engine, 6.0, Left(second))
    invited = cohort(engine)[2]
    feed(engine, 7.0, Reported(first, 1))
    assert engine.step is not None
    step = engine.step
    feed(engine, 10.0, Reported(invited, 1))
    assert step.took == {first: 7.0, invited: 4.0}


def test_a_round_invites_as_many_more_as_drop_out() -> None:
    engine = engine_of(agents=4, auto_over_select=True)
    begin(engine, 0.0)
    assert len(cohort(engine)) == 4
    # one of four is silent
    now = end(engine, 0.0, dict.fromkeys(cohort(engine)[:3], 4.0))
    assert engine.timing.drop_out == 0.25
    begin(engine, now)
    assert len(cohort(engine)) == 6  # 4 / (1 - 0.25) = 5.33
    opened = now
    now = end(engine, now, dict.fromkeys(cohort(engine), 4.0))
    assert now == opened + 4.0  # closed with the fourth report
    assert 0.2 < engine.timing.drop_out < 0.25  # 1 of 4, then nobody knows about 2 of 6


def test_agents_that_no_round_waited_for_count_less_and_less() -> None:
    engine = engine_of(agents=4, auto_over_select=True, rounds=60)
    begin(engine, 0.0)
    now = end(engine, 0.0, dict.fromkeys(cohort(engine)[:3], 4.0))
    for _ in range(50):  # from now on everybody reports
        begin(engine, now)
        now = end(engine, now, dict.fromkeys(cohort(engine), 4.0))
    assert engine.timing.drop_out < 0.2
    begin(engine, now)
    assert len(cohort(engine)) == 5


def test_over_selection_is_bounded() -> None:
    engine = engine_of(agents=5, auto_over_select=True)
    now = 0.0
    for _ in range(6):
        begin(engine, now)
        assert len(cohort(engine)) <= 10
        now = end(engine, now, {cohort(engine)[0]: 1.0})
    assert engine.timing.over_select(1.0) == 2.0


def test_phases_of_all_agents_invite_each_once() -> None:
    engine = engine_of(auto_over_select=True)
    begin(engine, 0.0)
    now = end(engine, 0.0, dict.fromkeys(AGENTS[:5], 4.0))
    engine.handle(Planned(ALL), now)
    assert sorted(cohort(engine)) == list(AGENTS)


def test_a_killed_coordinator_decides_as_an_undisturbed_one() -> None:
    engine = engine_of(agents=4, auto_over_select=True)
    now = 0.0
    for missing in (1, 0, 1):
        begin(engine, now)
        able = cohort(engine)[missing:]
        took = {client: 4.0 + ord(client) % 7 for client in able}
        now = end(engine, now, took)
    again, _ = restarted(engine, now=1000.0)
    again.members.rollcall_until = None
    assert json.dumps(again.timing.to_json()) == json.dumps(engine.timing.to_json())
    begin(engine, now)
    begin(again, 1000.0)
    assert cohort(again) == cohort(engine)
    assert limit(again) == limit(engine)
    assert again.step is not None
    assert engine.step is not None
    # and in the middle of a step: it has its own time again, and teaches nothing
    third, _ = restarted(engine, now=2000.0)
    assert limit(third) == limit(engine)
    assert third.step is not None
    assert third.step.over_select == engine.step.over_select
    before = json.dumps(third.timing.to_json())
    end(third, 2000.0, dict.fromkeys(cohort(third), 1.0))
    assert json.dumps(third.timing.to_json()) == before


def test_a_scenario_without_these_keys_learns_nothing() -> None:
    engine = gathered(*AGENTS, rounds=2)
    begin(engine, 0.0)
    now = end(engine, 0.0, dict.fromkeys(AGENTS, 4.0))
    assert engine.timing.to_json() == {}
    begin(engine, now)
    assert limit(engine) == 30.0


def test_the_keys_of_a_scenario_become_rules() -> None:
    sections: dict[str, Any] = {
        "name": "s",
        "task": {"features": [4], "classes": 2},
        "strategy": {"name": "fedavg"},
        "rounds": {"deadline": {"percentile": 0.8, "most_s": 90}, "over_select": "auto"},
    }
    rules = rules_of(Scenario.model_validate(sections))
    assert rules.deadline == DeadlineRule(0.8, 1.5, 5.0, 90.0)
    assert (rules.auto_over_select, rules.over_select) == (True, 1.0)
    assert rules.deadline_s == 600.0
    sections["rounds"]["deadline"]["least_s"] = 100
    with pytest.raises(ValueError, match="least_s is 100, but most_s is 90"):
        Scenario.model_validate(sections)
    sections["rounds"]["deadline"] = 60
    with pytest.raises(ValueError, match=r"for a fixed deadline set rounds.deadline_s: 60"):
        Scenario.model_validate(sections)


class OneIsSilent(Numpy):
    """The work of one agent never ends; the others take 2 s."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, Perform):
            await asyncio.sleep(1e6 if job.client == "agent-3" else 2.0)
        return await super().call(job, weight=weight)


def test_a_whole_run_waits_once_for_a_silent_agent_and_its_record_has_the_deadlines(
    tmp_path: Path,
) -> None:
    rounds = {"count": 3, "deadline_s": 40, "participation": 1.0, "deadline": {"least_s": 1}}
    scene = small_run.scenario("fedavg", rounds={**rounds, "timing": {"first_work_s": 0}})

    async def whole() -> tuple[Run, float, list[dict[str, Any]]]:
        people = small_run.clients(8, scene)
        fleet = Fleet(tmp_path, scene, rules_of(scene), MemoryBroker(seed=5), people)
        fleet.pool = OneIsSilent(people, takes_s=0.0)
        async with fleet:
            run = await fleet.serve()
            seconds = asyncio.get_running_loop().time()
        trained = [dict(row) for row in fleet.rows if row.get("phase") == "train"]
        return run, seconds, trained

    run, seconds, trained = clock.run(whole())
    first, *later = [row["deadline_s"] for row in trained]
    assert first == 40
    assert all(2 < deadline < 5 for deadline in later)
    assert [row["missing"] for row in trained] == [["agent-3"], ["agent-3"], []]
    assert seconds < 3 * 40
    again, _ = Run.resume(run.folder, scene, run.setup, rules=run.engine.rules, now=0.0)
    assert again.engine.timing.to_json() == run.engine.timing.to_json() != {}
