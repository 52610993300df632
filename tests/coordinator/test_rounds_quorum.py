"""The round engine: quorum, grace period, void attempts."""

import pytest

from covey.coordinator.engine.attempts import Attempts
from covey.coordinator.engine.cohort import invitation_order
from covey.coordinator.engine.events import (
    Action,
    Ask,
    Close,
    Failed,
    Finished,
    Folded,
    Ignored,
    Joined,
    Left,
    LinkBack,
    LinkLost,
    Open,
    Planned,
    PlanPhase,
    Reported,
    Tick,
    Void,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.engine.step import Step
from covey.shared.strategies.base import Phase, View
from tests.coordinator.engines import TRAIN, cohort, feed, gathered, opened

# -- quorum, grace, void ---------------------------------------------------------------------------


def test_a_phase_without_its_quorum_at_the_deadline_is_void_and_drawn_again() -> None:
    engine = opened("a", "b", "c", quorum=2)
    engine.handle(Reported("a", 1), 1.0)
    assert engine.handle(Tick(), 30.0) == [
        Ask(("b", "c")),
        Void(1, "1 of 3 invited agents reported, the quorum is 2", ("a", "b", "c")),
    ]
    assert engine.wake_at == 30.5
    assert engine.handle(Tick(), 30.5) == [PlanPhase(View(0, 1, 1, ("a", "b", "c")))]
    assert engine.handle(Planned(TRAIN), 30.5) == [Open(2, 0, 1, TRAIN, ("a", "b", "c"))]


def test_a_void_attempt_draws_another_cohort() -> None:
    engine = opened(*"abcdefgh", agents=2, seed=3)
    assert cohort(engine) == list(invitation_order("abcdefgh", 3, 0, 0, "train")[:2])
    feed(engine, 30.0, Tick())
    feed(engine, 30.5, Tick(), Planned(TRAIN))
    assert cohort(engine) == list(invitation_order("abcdefgh", 3, 0, 1, "train")[:2])


def test_a_phase_whose_agents_all_left_is_void_at_once() -> None:
    engine = opened("a", "b", quorum=1)
    assert engine.handle(Left("a"), 1.0) == []
    assert engine.handle(Left("b"), 2.0) == [
        Void(1, "0 of 2 invited agents reported, the quorum is 1", ("a", "b"))
    ]


def test_a_phase_whose_agents_all_failed_is_void_at_once() -> None:
    engine = opened("a", "b")
    assert engine.handle(Failed("a", 1, "diverged"), 1.0) == []
    why = "0 of 2 invited agents reported, the quorum is 1; they could not do their work: diverged"
    assert engine.handle(Failed("b", 1, "diverged"), 2.0) == [Void(1, why, ("a", "b"))]


def test_an_agent_that_failed_is_not_waited_for_but_may_still_report() -> None:
    engine = opened("a", "b", "c")
    assert feed(engine, 1.0, Failed("a", 1, "busy"), Reported("b", 1), Reported("a", 1)) == []
    assert engine.handle(Reported("c", 1), 2.0) == [Close(1, ("a", "b", "c"), ())]


def test_a_failure_for_another_step_is_ignored() -> None:
    engine = opened("a", "b")
    stale = Failed("a", 7, "diverged")
    assert engine.handle(stale, 1.0) == [Ignored(stale, "report is for step 7, open is 1")]


def test_a_failure_after_the_report_is_ignored() -> None:
    engine = opened("a", "b")
    failure = Failed("a", 1, "disk full")
    assert feed(engine, 1.0, Reported("a", 1), failure) == [
        Ignored(failure, "a has reported step 1 before")
    ]


def test_the_pause_between_void_attempts_doubles_up_to_half_a_minute() -> None:
    engine, pauses, now = opened("a", deadline_s=1.0, void_limit=2000, rollcall_s=1e9), [], 0.0
    for _ in range(1100):  # far beyond the largest exponent of a float
        now += 1.0
        assert isinstance(engine.handle(Tick(), now)[-1], Void)
        assert engine.wake_at is not None
        pauses.append(engine.wake_at - now)
        now = engine.wake_at
        feed(engine, now, Tick(), Planned(TRAIN))
    assert pauses[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert pauses[-1] == 30.0


def test_the_engine_abandons_a_run_at_its_limit_of_void_attempts_in_a_row() -> None:
    engine = opened("a", void_limit=2)
    feed(engine, 30.0, Tick())
    feed(engine, 30.5, Tick(), Planned(TRAIN))
    why = "0 of 1 invited agents reported, the quorum is 1"
    assert engine.handle(Tick(), 60.5) == [
        Void(2, why, ("a",)),
        Finished(f"2 attempts in a row came to nothing: {why}"),
    ]
    assert engine.wake_at is None


def test_a_folded_phase_ends_the_row_of_void_attempts() -> None:
    engine = opened("a", void_limit=2, rounds=3)
    feed(engine, 30.0, Tick())
    assert feed(engine, 30.5, Tick(), Planned(TRAIN), Reported("a", 2), Folded(), Planned(TRAIN))[
        -1
    ] == Open(3, 1, 0, TRAIN, ("a",))
    assert [type(action) for action in engine.handle(Tick(), 60.5)] == [Void]


def test_the_grace_period_begins_with_the_quorum() -> None:
    engine = opened("a", "b", "c", "d", quorum=2, grace_s=5.0)
    engine.handle(Reported("a", 1), 1.0)
    assert engine.wake_at == 30.0
    assert engine.handle(Reported("b", 1), 4.0) == []
    assert engine.wake_at == 9.0
    assert (
        feed(engine, 8.9, Tick(), Reported("c", 1)) == []
    )  # a further report does not lengthen it
    assert engine.handle(Tick(), 9.0) == [Ask(("d",)), Close(1, ("a", "b", "c"), ("d",))]


def test_the_grace_period_ends_at_the_deadline_at_the_latest() -> None:
    engine = opened("a", "b", grace_s=5.0)
    engine.handle(Reported("a", 1), 28.0)
    assert engine.wake_at == 30.0
    assert engine.handle(Tick(), 30.0) == [Ask(("b",)), Close(1, ("a",), ("b",))]


def test_the_quorum_of_a_phase_is_a_share_of_its_cohort() -> None:
    phase = Phase("moments", "all", ends_round=False)
    engine = opened(*"abcde", phase=phase, first_quorum=0.6)
    feed(engine, 1.0, Reported("a", 1), Reported("b", 1))
    void = Void(1, "2 of 5 invited agents reported, the quorum is 3", tuple("abcde"))
    assert engine.handle(Tick(), 30.0) == [Ask(tuple("cde")), void]


@pytest.mark.parametrize(
    ("share", "agents", "quorum"), [(0.5, 5, 3), (0.01, 5, 1), (0.0, 5, 1), (0.55, 100, 55)]
)
def test_a_share_is_rounded_up_but_not_by_float_dust(
    share: float, agents: int, quorum: int
) -> None:
    phase = Phase("moments", "all", ends_round=False)
    clients = [f"{i:03d}" for i in range(agents)]
    assert _quorum(opened(*clients, phase=phase, first_quorum=share)) == quorum


def test_the_larger_of_both_quorums_counts_where_a_phase_is_drawn_for_the_round_or_ends_it() -> (
    None
):
    assert _quorum(opened(*"abcd", phase=Phase(quorum=0.5), quorum=3)) == 3
    assert _quorum(opened(*"abcd", phase=Phase(quorum=1.0), quorum=3)) == 4
    assert _quorum(opened(*"abcd", phase=Phase("moments", "all", ends_round=False), quorum=3)) == 2
    assert (
        _quorum(opened(*"abcd", phase=Phase("gradient", ends_round=False), quorum=3)) == 3
    )  # drawn for the round


def test_a_cohort_smaller_than_the_quorum_by_design_must_report_whole() -> None:
    assert _quorum(opened(*"abcd", phase=Phase(cohort=("a", "b")), quorum=3)) == 2
    assert _quorum(opened(*"abcd", agents=2, over_select=2.0, quorum=3)) == 2


def _quorum(engine: RoundEngine) -> int:
    assert engine.step is not None
    return engine.step.quorum


def test_a_phase_that_may_be_empty_is_folded_without_a_report() -> None:
    phase = Phase("evaluate", "all", ends_round=False, may_be_empty=True)
    engine = opened("a", "b", phase=phase, grace_s=1.0)
    assert (
        engine.wake_at == 30.0
    )  # grace begins with a first report, even though the quorum is nobody
    assert engine.handle(Tick(), 30.0) == [Ask(("a", "b")), Close(1, (), ("a", "b"))]


def test_a_phase_that_may_be_empty_and_needs_absent_agents_closes_as_it_opens() -> None:
    phase = Phase("enter", ("ghost",), ends_round=False, may_be_empty=True)
    engine = gathered("a")
    assert engine.handle(Planned(phase), 0.0) == [Open(1, 0, 0, phase, ()), Close(1, (), ())]


def test_an_agent_that_does_not_answer_after_a_missed_deadline_costs_no_second_one() -> None:
    engine = opened("a", "b", rounds=2)
    engine.handle(Reported("a", 1), 5.0)
    assert engine.handle(Tick(), 30.0) == [Ask(("b",)), Close(1, ("a",), ("b",))]
    feed(engine, 30.0, Folded(), Planned(TRAIN), Reported("a", 2))
    assert (
        engine.wake_at == 40.0
    )  # rollcall_s after the question, not deadline_s after the second step opened
    assert engine.handle(Tick(), 40.0) == [Close(2, ("a",), ("b",))]
    assert engine.present == {"a"}


def test_an_agent_that_answers_after_a_missed_deadline_stays() -> None:
    engine = opened("a", "b", rounds=2)
    engine.handle(Reported("a", 1), 5.0)
    feed(engine, 30.0, Tick(), Folded(), Planned(TRAIN))
    feed(engine, 31.0, Joined("b"), Reported("a", 2))
    assert engine.handle(Tick(), 40.0) == []
    assert engine.handle(Reported("b", 2), 41.0) == [Close(2, ("a", "b"), ())]


def test_no_agent_is_asked_where_enough_have_reported() -> None:
    engine = opened("a", "b", "c", agents=2, over_select=1.5)
    engine.handle(Reported("a", 1), 29.0)
    assert engine.handle(Reported("b", 1), 30.0) == [Close(1, ("a", "b"), ("c",))]


def test_patience_counts_from_the_newest_report_and_only_once_the_quorum_is_there() -> None:
    engine = opened("a", "b", "c", "d", quorum=2, patience_s=6.0)
    engine.handle(Reported("a", 1), 1.0)
    assert engine.wake_at == 30.0
    engine.handle(Reported("b", 1), 4.0)
    assert engine.wake_at == 10.0
    engine.handle(Reported("c", 1), 9.0)
    assert (
        engine.wake_at == 15.0
    )  # a further report lengthens it: a fleet that reports one by one is waited for
    assert engine.handle(Tick(), 15.0) == [Ask(("d",)), Close(1, ("a", "b", "c"), ("d",))]


def test_patience_does_not_run_while_the_link_is_down() -> None:
    engine = opened("a", "b", patience_s=6.0)
    engine.handle(Reported("a", 1), 1.0)
    feed(engine, 2.0, LinkLost())
    feed(engine, 12.0, LinkBack(), Joined("a"), Joined("b"))
    assert engine.wake_at == 17.0


# -- failures that repeat ------------------------------------------------------------------------------------------


def failing(engine: RoundEngine, reasons: dict[str, str]) -> list[Action]:
    """Every agent of the open step fails; then the next attempt opens, if there is one."""
    assert engine.step is not None
    number = engine.step.number
    actions = feed(engine, 1.0, *(Failed(agent, number, why) for agent, why in reasons.items()))
    if engine.wake_at is not None:
        feed(engine, engine.wake_at, Tick(), Planned(TRAIN))
    return actions


def test_a_task_that_fails_the_same_way_for_the_same_reason_is_given_up_early() -> None:
    engine = opened("a", "b")
    reasons = {"a": "a: the model has 3 layers", "b": "b: the model has 3 layers"}
    for _ in range(2):
        assert [type(action) for action in failing(engine, reasons)] == [Void]
    void, finished = failing(engine, reasons)
    assert isinstance(void, Void)
    assert void.why == (
        "0 of 2 invited agents reported, the quorum is 1; they could not do their work: the model has 3 layers"
    )
    why = "3 attempts in a row failed for the same reason: the model has 3 layers"
    assert finished == Finished(why)
    assert engine.wake_at is None


def test_failures_for_different_reasons_are_tried_again() -> None:
    engine = opened("a", "b")
    for attempt in range(6):
        different = {"a": "out of memory", "b": f"attempt {attempt}"}
        assert [type(action) for action in failing(engine, different)] == [Void]
    for attempt in range(6):
        changing = dict.fromkeys("ab", f"attempt {attempt}")
        assert [type(action) for action in failing(engine, changing)] == [Void]


def test_a_step_in_which_an_agent_works_for_the_first_time_has_more_time() -> None:
    engine = opened("a", deadline_s=30.0, first_work_s=60.0, rounds=3)
    assert engine.wake_at == 90.0
    feed(engine, 80.0, Reported("a", 1), Folded(), Planned(TRAIN))
    assert engine.wake_at == 80.0 + 30.0
    feed(engine, 81.0, Reported("a", 2), Joined("b"), Folded(), Planned(TRAIN))
    assert engine.wake_at == 81.0 + 90.0


def test_an_agent_that_never_reports_has_the_time_for_a_first_work_once() -> None:
    """With it in every cohort, each step used to take `first_work_s` longer, for the whole run."""
    engine = opened("a", "silent", deadline_s=30.0, first_work_s=60.0, quorum=1, rounds=9)
    assert engine.step is not None
    assert engine.step.deadline == 30.0 + 60.0
    feed(engine, 1.0, Reported("a", 1))
    feed(engine, 90.0, Tick())
    actions = feed(engine, 90.0, Joined("silent"), Folded())
    assert any(isinstance(action, PlanPhase) for action in actions)
    feed(engine, 91.0, Planned(TRAIN))
    assert "silent" in cohort(engine)
    assert engine.step is not None
    assert engine.step.deadline == 91.0 + 30.0


def silent_attempts(count: int, *, online: bool = True, limit: int = 20) -> list[str]:
    """Why attempts are void in which no agent reports, one after another."""
    attempts, found = Attempts(RoundRules(start_agents=2, void_limit=limit)), []
    for number in range(count):
        step = Step.of(number, TRAIN, ["a", "b"], 0.0)
        step.reported.clear()
        step.look_around({"a", "b"} if online else set())
        found.append(attempts.failed(step, "")[0])
    return found


def test_attempts_without_any_report_of_agents_that_are_online_blame_the_broker_too() -> None:
    first, second, *others = silent_attempts(5)
    assert "broker" not in first
    for word in ("deadline", "broker doctor", "message_size_limit", "access rules"):
        assert word in second
    assert not [why for why in others if "broker" in why]
    assert "broker doctor" in silent_attempts(5, limit=5)[-1]


def test_attempts_whose_agents_left_do_not_blame_the_broker() -> None:
    assert not [why for why in silent_attempts(5, online=False) if "broker" in why]
