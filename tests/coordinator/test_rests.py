"""Agents that cost rounds and bring nothing: how long they are waited for, and when they are invited again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.engine.events import (
    Action,
    Ask,
    Close,
    Failed,
    Folded,
    Joined,
    Left,
    LinkBack,
    LinkLost,
    Open,
    Planned,
    PlanPhase,
    Reported,
    Rested,
    Tick,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.step import SUSPECT_TIMES, USUAL_S, USUAL_TIMES
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.shared.strategies.base import Phase
from covey.shared.wire.jobs import Perform
from tests import clock
from tests.coordinator.engines import LINGER, TRAIN, feed, opened, restarted
from tests.kit import small_run
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet, Numpy

REASON = "its data cannot be read"


def round_of(engine: RoundEngine, *, silent: str = "", failing: str = "") -> list[Action]:
    """Everybody who is invited to the open step reports, apart from these; then the next one opens."""
    step = engine.step
    assert step is not None
    now = step.opened + 1.0
    actions: list[Action] = []
    for client in sorted(step.cohort):
        if client in failing:
            actions += feed(engine, now, Failed(client, step.number, REASON))
        elif client not in silent:
            actions += feed(engine, now, Reported(client, step.number))
    if not any(isinstance(action, Close) for action in actions):
        now = step.deadline
        actions += feed(engine, now, Tick(), *map(Joined, silent))
    return actions + feed(engine, now, Folded(), Planned(TRAIN))


def invited(actions: Collection[Action]) -> tuple[str, ...]:
    [step] = [action for action in actions if isinstance(action, Open)]
    return step.cohort


def rounds_without(engine: RoundEngine, client: str, count: int, **trouble: str) -> list[int]:
    """The rounds, from 0, to which an agent is not invited."""
    missed = []
    for number in range(count):
        assert engine.step is not None
        if client not in engine.step.cohort:
            missed.append(number)
        round_of(engine, **trouble)
    return missed


@pytest.mark.parametrize("trouble", ["silent", "failing"])
def test_work_that_comes_to_nothing_k_times_in_a_row_is_ordered_again_after_2_to_the_k_rounds(
    trouble: str,
) -> None:
    """Before: invited to every round."""
    engine = opened("a", "b", "c", rounds=60)
    missed = rounds_without(engine, "c", 30, **{trouble: "c"})
    assert missed == [*range(2, 5), *range(6, 13), *range(14, 29)]
    assert engine.members.troubles()["c"].times == 5
    assert engine.members.troubles()["c"].until - 29 == 16, "no rest is longer"


def test_a_rest_is_announced_with_its_reason_and_ends_with_a_report() -> None:
    engine = opened("a", "b", "c", rounds=60)
    assert not [one for one in round_of(engine, failing="c") if isinstance(one, Rested)]
    why = f"2 times in a row: {REASON}; invited again from round 6"
    actions = round_of(engine, failing="c")
    assert Rested("c", "failing", 2, 5, why) in actions
    assert invited(actions) == ("a", "b")
    assert rounds_without(engine, "c", 9) == [0, 1, 2]
    assert engine.members.troubles() == {}


def test_a_rest_survives_a_restart() -> None:
    engine = opened("a", "b", "c", rounds=60)
    for _ in range(2):
        round_of(engine, silent="c")
    again, _ = restarted(engine, now=100.0)
    assert again.resting == engine.resting != {}
    assert rounds_without(again, "c", 4) == [0, 1, 2]


def test_a_device_that_comes_back_is_asked_at_once_if_it_failed_and_not_if_it_was_silent() -> None:
    for trouble, is_back in (("failing", True), ("silent", False)):
        engine = opened("a", "b", "c", rounds=60)
        for _ in range(2):
            round_of(engine, **{trouble: "c"})
        assert engine.step is not None
        feed(engine, engine.step.opened, Left("c"), Joined("c"))
        assert ("c" in invited(round_of(engine))) == is_back


def test_a_laptop_that_sleeps_now_and_then_does_not_rest() -> None:
    """It does not answer the roll call after the step that it slept through: it was away, and not silent."""
    engine = opened("a", "b", "c", rounds=60)
    for _ in range(4):
        first = engine.step
        assert first is not None
        feed(engine, first.opened, Reported("a", first.number), Reported("b", first.number))
        feed(engine, first.deadline, Tick(), Folded(), Planned(TRAIN))
        number = first.number + 1  # it is invited once more, and is found to be gone
        feed(engine, first.deadline + 1.0, Reported("a", number), Reported("b", number))
        feed(engine, first.deadline + LINGER["rollcall_s"], Tick(), Folded(), Planned(TRAIN))
        assert "c" not in engine.present
        feed(engine, first.deadline + 11.0, Joined("c"))
        assert "c" in invited(round_of(engine)), "it is back"


@pytest.mark.parametrize("why", ["the link was lost", "a restart"])
def test_an_agent_that_has_not_answered_the_roll_call_yet_is_not_silent(why: str) -> None:
    """Before: after a broker had moved, those who found it a second later than the others missed five rounds."""
    engine = opened("a", "b", "c", rounds=60, quorum=2, grace_s=3.0)
    if why == "a restart":
        engine, _ = restarted(engine, now=0.0)
        feed(engine, 0.0, LinkBack())
    else:
        feed(engine, 0.0, LinkLost(), LinkBack())
    for number in (1, 2):
        at = 4.0 * number
        feed(engine, at - 3.0, Reported("a", number), Reported("b", number))
        feed(engine, at, Joined("a"), Joined("b"), Tick(), Folded(), Planned(TRAIN))
    assert engine.members.troubles() == {}
    feed(engine, 8.5, Joined("c"))
    assert "c" in invited(round_of(engine))


def test_no_agent_rests_where_no_round_could_take_place_without_it() -> None:
    engine = opened("a", "b", "c", rounds=60, quorum=2)
    for _ in range(2):
        round_of(engine, silent="c")
    assert engine.resting.keys() == {"c"}
    assert engine.step is not None
    feed(engine, engine.step.opened, Left("b"))
    feed(engine, engine.step.deadline, Tick(), Joined("a"))
    assert engine.resting == {}
    assert engine.wake_at is not None
    later = feed(engine, engine.wake_at, Tick(), Planned(TRAIN))
    assert invited(later) == ("a", "c")


def finished_round(engine: RoundEngine) -> PlanPhase:
    """The awake ones report; the engine asks for the next phase."""
    assert engine.step is not None
    now = engine.step.opened + 1.0
    reports = [Reported(client, engine.number) for client in engine.step.cohort]
    feed(engine, now, *reports)
    [plan] = feed(engine, now, Folded())
    assert isinstance(plan, PlanPhase)
    return plan


def test_after_the_last_round_no_agent_rests() -> None:
    engine = opened("a", "b", "c", rounds=3)
    for _ in range(2):
        round_of(engine, silent="c")
    plan = finished_round(engine)
    assert (plan.view.round, plan.view.present) == (3, ("a", "b", "c")), "the last evaluation"


def test_a_method_does_not_see_who_rests_and_may_name_it_all_the_same() -> None:
    engine = opened("a", "b", "c", rounds=60)
    for _ in range(2):
        round_of(engine, silent="c")
    assert finished_round(engine).view.present == ("a", "b")
    entry = Phase("entry", ("c",), ends_round=False)
    assert invited(feed(engine, 200.0, Planned(entry))) == ("c",)


def test_a_step_without_reports_is_no_agents_fault() -> None:
    engine = opened("a", "b", rounds=60)
    for _ in range(4):
        assert engine.step is not None
        feed(engine, engine.step.deadline, Tick(), Joined("a"), Joined("b"))
        assert engine.wake_at is not None
        feed(engine, engine.wake_at, Tick(), Planned(TRAIN))
    assert engine.members.troubles() == {}


def test_the_wait_for_further_reports_follows_those_that_came() -> None:
    """Before: half of the time limit, five minutes by default."""
    engine = opened("a", "b", "c", "d", rounds=60, patience_s=300.0, deadline_s=600.0)
    feed(engine, 2.0, Reported("a", 1))
    assert engine.wake_at == 2.0 + USUAL_S
    feed(engine, 10.0, Reported("b", 1))
    assert engine.wake_at == 10.0 + USUAL_TIMES * 10.0
    feed(engine, 60.0, Reported("c", 1))
    assert engine.wake_at == 60.0 + USUAL_TIMES * 10.0
    closed = feed(engine, 160.0, Tick(), Joined("d"))
    assert closed == [Ask(("d",)), Close(1, ("a", "b", "c"), ("d",))]
    feed(engine, 160.0, Folded(), Planned(TRAIN))
    for client in ("a", "b", "c"):
        feed(engine, 180.0, Reported(client, 2))
    assert engine.wake_at == 180.0 + SUSPECT_TIMES * 20.0, "it has never reported"


def test_a_slow_device_that_missed_a_step_is_waited_for_as_before() -> None:
    """Otherwise one lost network would shut out a device that is five times as slow as the others."""
    engine = opened("a", "b", "c", rounds=60, patience_s=300.0, deadline_s=600.0)
    for silent in ("", "c", ""):
        assert engine.step is not None
        now = engine.step.opened + 20.0
        for client in ("a", "b"):
            feed(engine, now, Reported(client, engine.number))
        assert engine.wake_at == now + USUAL_TIMES * 20.0
        if not silent:
            now = engine.step.opened + 100.0
            feed(engine, now, Reported("c", engine.number))
        else:
            now = engine.wake_at
            feed(engine, now, Tick(), Joined("c"))
        feed(engine, now, Folded(), Planned(TRAIN))


def test_patience_is_never_longer_than_half_of_the_limit() -> None:
    engine = opened("a", "b", patience_s=300.0, deadline_s=600.0)
    feed(engine, 100.0, Reported("a", 1))
    assert engine.wake_at == 400.0


# -- whole fleets, on a virtual clock ----------------------------------------------------------------------------


ROUNDS = 64
WORK_S = 2.0  # what a round takes at least where nobody is silent


class OneIsSilent(Numpy):
    """The work of agent-3 never ends; that of the others takes its time."""

    silent = "agent-3"

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, Perform):
            await asyncio.sleep(1e9 if job.client == self.silent else WORK_S)
        return await super().call(job, weight=weight)


def whole(folder: Path, silent: str, rounds: dict[str, Any]) -> tuple[Run, float]:
    """A run of four agents with the defaults of a real fleet, and the seconds that it took."""
    # the allowance of real devices counts too
    folder.mkdir()
    scene = small_run.scenario("fedavg", rounds={"participation": 1.0, "start_agents": 4, **rounds})

    async def run() -> tuple[Run, float]:
        people = small_run.clients(4, scene)
        fleet = Fleet(folder, scene, rules_of(scene), MemoryBroker(seed=5), people)
        fleet.pool = OneIsSilent(people, takes_s=0.0)
        fleet.pool.silent = silent
        async with fleet:
            if scene.rounds.mode == "buffered":
                begun = Run.start(
                    folder / "run",
                    scene,
                    small_run.setup(scene),
                    rules=fleet.rules,
                    run="r1",
                    now=0.0,
                )
                return await fleet.serve(begun), asyncio.get_running_loop().time()
            this = await fleet.serve()
            return this, asyncio.get_running_loop().time()

    return clock.run(run())


@pytest.mark.parametrize("mode", ["synchronous", "buffered"])
def test_one_silent_agent_leaves_at_least_half_of_the_calm_rate(tmp_path: Path, mode: str) -> None:
    """Before: a round of 2 s took 300 s, and 360 s until an agent's first work had an allowance of its own."""
    rounds = {"count": ROUNDS, "mode": mode, "buffer": 3}
    run, seconds = whole(tmp_path / "attacked", "agent-3", rounds)
    assert run.engine.round == ROUNDS
    assert seconds <= 2 * ROUNDS * WORK_S
