"""The round engine: who starts, who is invited, when a phase closes. The test owns the clock."""

from typing import Any

import pytest

from covey.coordinator.engine.cohort import invitation_order
from covey.coordinator.engine.events import (
    Ask,
    Close,
    Failed,
    Finished,
    Folded,
    Ignored,
    Invite,
    Joined,
    Left,
    LinkBack,
    LinkLost,
    Open,
    Planned,
    PlanPhase,
    Reported,
    Tick,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.engine.step import Stage
from covey.shared.errors import UserError
from covey.shared.strategies.base import Phase, View
from tests.coordinator.engines import ALL, TRAIN, cohort, feed, gathered, opened

# -- gathering -------------------------------------------------------------------------------------


def test_the_first_phase_waits_until_enough_agents_are_there() -> None:
    engine = RoundEngine(RoundRules(start_agents=2, rounds=5))
    assert engine.handle(Joined("b"), 1.0) == []
    assert engine.wake_at is None
    assert engine.handle(Joined("a"), 2.0) == [PlanPhase(View(0, 5, 0, ("a", "b")))]


def test_an_agent_that_joins_twice_is_one_agent() -> None:
    engine = RoundEngine(RoundRules(start_agents=2))
    assert feed(engine, 0.0, Joined("a"), Joined("a")) == []


def test_after_the_waiting_time_the_run_starts_with_fewer() -> None:
    engine = RoundEngine(RoundRules(start_agents=3, start_wait_s=60.0), now=100.0)
    assert engine.handle(Joined("a"), 101.0) == []
    assert engine.wake_at == 160.0
    assert engine.handle(Tick(), 159.9) == []
    assert engine.handle(Tick(), 160.0) == [PlanPhase(View(0, 1, 0, ("a",)))]


def test_after_the_waiting_time_the_first_agent_to_come_starts_the_run() -> None:
    engine = RoundEngine(RoundRules(start_agents=3, start_wait_s=60.0))
    assert engine.handle(Tick(), 60.0) == []
    assert engine.wake_at is None
    assert engine.handle(Joined("a"), 61.0) == [PlanPhase(View(0, 1, 0, ("a",)))]


def test_a_run_that_waits_for_a_full_start_reports_that_and_not_what_later_rounds_need() -> None:
    engine = RoundEngine(RoundRules(start_agents=3, start_wait_s=60.0, quorum=2))
    assert engine.waits_for == "0 of 3 agents are online"
    engine.handle(Tick(), 60.0)
    assert engine.waits_for == "0 agents online, rounds.quorum is 2"


def test_no_phase_begins_with_fewer_agents_than_the_quorum() -> None:
    engine = RoundEngine(RoundRules(start_agents=1, quorum=2))
    assert engine.handle(Joined("a"), 0.0) == []
    assert engine.handle(Joined("b"), 0.0) == [PlanPhase(View(0, 1, 0, ("a", "b")))]


def test_only_the_first_phase_waits_for_the_full_start() -> None:
    engine = opened("a", "b", "c")
    feed(engine, 1.0, Left("c"), Reported("a", 1), Reported("b", 1))
    assert engine.handle(Folded(), 2.0) == [PlanPhase(View(1, 1, 0, ("a", "b")))]


# -- opening ---------------------------------------------------------------------------------------


def test_a_phase_opens_for_the_drawn_cohort_in_client_order() -> None:
    engine = gathered("a", "b", "c", "d", agents=2, seed=7)
    drawn = sorted(invitation_order("abcd", 7, 0, 0, "train")[:2])
    assert engine.handle(Planned(TRAIN), 5.0) == [Open(1, 0, 0, TRAIN, tuple(drawn))]
    assert engine.wake_at == 35.0


def test_the_cohort_counts_all_known_agents_and_invites_those_present() -> None:
    engine = gathered("a", "b", "c", "d", participation=0.5)
    feed(engine, 0.0, Left("a"), Left("b"))
    assert engine.handle(Planned(TRAIN), 0.0) == [Open(1, 0, 0, TRAIN, ("c", "d"))]


def test_an_absence_changes_the_draw_for_the_absent_agent_alone() -> None:
    order = invitation_order("abcdef", 0, 0, 0, "train")
    engine = gathered(*"abcdef", agents=3)
    engine.handle(Left(order[1]), 0.0)
    engine.handle(Planned(TRAIN), 0.0)
    assert cohort(engine) == [order[0], order[2], order[3]]


def test_an_order_to_all_goes_to_all_agents_present() -> None:
    engine = gathered("a", "b", "c", agents=1)
    engine.handle(Left("b"), 0.0)
    assert engine.handle(Planned(ALL), 0.0) == [Open(1, 0, 0, ALL, ("a", "c"))]


def test_an_order_by_name_goes_to_those_of_them_who_are_present() -> None:
    named = Phase("enter", ("c", "b", "nobody"), ends_round=False)
    engine = gathered("a", "b", "c")
    assert engine.handle(Planned(named), 0.0) == [Open(1, 0, 0, named, ("b", "c"))]


def test_a_list_of_participants_takes_the_place_of_the_draw() -> None:
    engine = gathered("a", "b", "c", participants=(("c", "a"), ("b",)), rounds=2)
    assert engine.handle(Planned(TRAIN), 0.0) == [Open(1, 0, 0, TRAIN, ("a", "c"))]
    feed(engine, 1.0, Reported("a", 1), Reported("c", 1), Folded())
    assert engine.handle(Planned(TRAIN), 1.0) == [Open(2, 1, 0, TRAIN, ("b",))]


def test_no_other_agent_is_invited_in_place_of_a_listed_participant() -> None:
    engine = opened("a", "b", "c", participants=(("a", "c"),))
    assert feed(engine, 1.0, Reported("a", 1), Left("c")) == [Close(1, ("a",), ("c",))]


def test_fewer_lists_of_participants_than_rounds_are_refused_at_the_start() -> None:
    with pytest.raises(
        UserError, match=r"rounds\.participants lists the agents of 1 rounds, but the run has 2"
    ):
        RoundRules(rounds=2, participants=(("a",),))


def test_a_phase_whose_agents_all_left_is_planned_again_a_second_later() -> None:
    engine = gathered("a", "b")
    assert engine.handle(Left("b"), 0.0) == []
    assert engine.handle(Planned(Phase(cohort=("b",))), 5.0) == []
    assert engine.wake_at == 6.0
    assert engine.handle(Joined("b"), 5.5) == []
    assert engine.handle(Tick(), 6.0) == [PlanPhase(View(0, 1, 0, ("a", "b")))]


@pytest.mark.parametrize("cohort", ["sample", "all", ("a", "b", "c")])
def test_a_round_that_can_no_longer_reach_its_quorum_is_not_opened(cohort: Any) -> None:
    engine = gathered("a", "b", "c", quorum=3)
    engine.handle(Left("b"), 0.0)
    assert engine.handle(Planned(Phase(cohort=cohort)), 0.0) == []
    assert engine.handle(Tick(), 1.0) == []  # and it is not even planned
    assert engine.handle(Joined("b"), 2.0) == [PlanPhase(View(0, 1, 0, ("a", "b", "c")))]


def test_listed_participants_are_waited_for_until_they_can_reach_the_quorum() -> None:
    engine = gathered("a", "b", "c", quorum=2, participants=(("a", "b"),))
    engine.handle(Left("b"), 0.0)
    assert engine.handle(Planned(TRAIN), 0.0) == []
    assert feed(engine, 1.0, Joined("b"), Tick()) == [PlanPhase(View(0, 1, 0, ("a", "b", "c")))]
    assert engine.handle(Planned(TRAIN), 1.0) == [Open(1, 0, 0, TRAIN, ("a", "b"))]


def test_a_run_that_is_complete_is_finished_and_does_nothing_more() -> None:
    engine = gathered("a")
    assert engine.handle(Planned(None), 1.0) == [Finished()]
    assert engine.wake_at is None
    late = Reported("a", 1)
    assert engine.handle(late, 2.0) == [Ignored(late, "report is for step 1, none is open")]
    assert feed(engine, 9.0, Joined("b"), Left("a"), Tick(), LinkLost(), LinkBack(), Tick()) == []


@pytest.mark.parametrize(("share", "quorum"), [(0.0, 1), (0.5, 2), (1.0, 4)])
def test_a_phase_that_asks_all_agents_before_a_round_has_the_first_quorum(
    share: float, quorum: int
) -> None:
    first = Phase("signature", "all", ends_round=False)
    engine = opened("a", "b", "c", "d", phase=first, first_quorum=share)
    assert engine.step is not None
    assert engine.step.quorum == quorum
    a_round = opened("a", "b", "c", "d", phase=Phase(cohort="all"), first_quorum=share)
    assert a_round.step is not None
    assert a_round.step.quorum == 1


# -- closing ---------------------------------------------------------------------------------------


def test_a_phase_closes_when_all_have_reported_whatever_the_order() -> None:
    engine = opened("a", "b", "c")
    assert feed(engine, 1.0, Reported("c", 1), Reported("a", 1)) == []
    assert engine.handle(Reported("b", 1), 2.0) == [Close(1, ("a", "b", "c"), ())]
    assert engine.wake_at is None


def test_a_late_agent_is_left_behind_at_the_deadline() -> None:
    engine = opened("a", "b", rounds=2)
    assert engine.handle(Reported("a", 1), 5.0) == []
    assert engine.handle(Tick(), 29.9) == []
    assert engine.handle(Tick(), 30.0) == [Ask(("b",)), Close(1, ("a",), ("b",))]
    assert feed(engine, 30.0, Folded(), Planned(TRAIN))[1:] == [Open(2, 1, 0, TRAIN, ("a", "b"))]
    late = Reported("b", 1)
    assert engine.handle(late, 31.0) == [Ignored(late, "report is for step 1, open is 2")]


def test_a_phase_closes_early_when_all_alive_have_reported() -> None:
    engine = opened("a", "b")
    assert engine.handle(Reported("a", 1), 1.0) == []
    assert engine.handle(Left("b"), 2.0) == [Close(1, ("a",), ("b",))]


def test_the_report_of_an_agent_that_left_counts() -> None:
    engine = opened("a", "b")
    assert feed(engine, 1.0, Left("b"), Reported("b", 1)) == []
    assert engine.handle(Reported("a", 1), 2.0) == [Close(1, ("a", "b"), ())]


def test_an_agent_that_dies_and_returns_within_the_step_is_waited_for_again() -> None:
    engine = opened("a", "b", "c")
    assert feed(engine, 1.0, Left("b"), Reported("a", 1), Joined("b"), Reported("c", 1)) == []
    assert engine.handle(Reported("b", 1), 2.0) == [Close(1, ("a", "b", "c"), ())]


def test_an_agent_that_leaves_while_a_step_is_folded_changes_nothing_of_it() -> None:
    engine = opened("a", "b", rounds=2)
    assert feed(engine, 1.0, Reported("a", 1), Reported("b", 1)) == [Close(1, ("a", "b"), ())]
    assert feed(engine, 2.0, Left("b"), Tick()) == []
    assert engine.handle(Folded(), 3.0) == [PlanPhase(View(1, 2, 0, ("a",)))]


def test_an_agent_that_leaves_while_a_phase_is_planned_is_not_invited() -> None:
    engine = gathered("a", "b")
    assert engine.handle(Left("a"), 0.0) == []
    assert engine.handle(Planned(TRAIN), 0.0) == [Open(1, 0, 0, TRAIN, ("b",))]


def test_a_newcomer_does_not_enter_the_open_step_but_may_be_drawn_for_the_next() -> None:
    engine = opened("a", rounds=2)
    assert engine.handle(Joined("b"), 1.0) == []
    stranger = Reported("b", 1)
    assert engine.handle(stranger, 2.0) == [Ignored(stranger, "b was not invited to step 1")]
    assert engine.handle(Reported("a", 1), 3.0) == [Close(1, ("a",), ())]
    assert feed(engine, 3.0, Folded(), Planned(TRAIN)) == [
        PlanPhase(View(1, 2, 0, ("a", "b"))),
        Open(2, 1, 0, TRAIN, ("a", "b")),
    ]


def test_only_phases_that_end_a_round_are_counted() -> None:
    engine = opened("a", phase=ALL, rounds=3)
    assert feed(engine, 1.0, Reported("a", 1), Folded()) == [
        Close(1, ("a",), ()),
        PlanPhase(View(0, 3, 0, ("a",))),
    ]
    assert feed(engine, 1.0, Planned(TRAIN), Reported("a", 2), Folded())[1:] == [
        Close(2, ("a",), ()),
        PlanPhase(View(1, 3, 0, ("a",))),
    ]


def test_a_report_that_came_twice_counts_once() -> None:
    engine = opened("a", "b")
    again = Reported("a", 1)
    assert feed(engine, 1.0, again, again) == [Ignored(again, "a has reported step 1 before")]


def test_a_report_while_the_last_step_is_folded_is_ignored() -> None:
    engine = opened("a", "b", over_select=2.0, agents=1)
    assert engine.handle(Reported("a", 1), 1.0) == [Close(1, ("a",), ("b",))]
    late = Reported("b", 1)
    assert engine.handle(late, 1.0) == [Ignored(late, "report is for step 1, none is open")]


# -- over-selection, refill ------------------------------------------------------------------------


def test_over_selection_invites_more_and_closes_when_m_have_reported() -> None:
    engine = opened(*"abcdef", agents=2, over_select=1.5)
    first, second, third = cohort(engine)
    assert engine.handle(Reported(third, 1), 1.0) == []
    assert engine.handle(Reported(first, 1), 2.0) == [
        Close(1, tuple(sorted((first, third))), (second,))
    ]


def test_over_selection_of_a_fraction_is_not_rounded_up_by_float_dust() -> None:
    engine = opened(*(f"{i:03d}" for i in range(120)), agents=100, over_select=1.1)
    assert len(cohort(engine)) == 110  # 100 * 1.1 = 110.00000000000001


def test_the_slot_of_an_agent_that_vanished_is_refilled() -> None:
    order = invitation_order("abcd", 0, 0, 0, "train")
    engine = opened(*"abcd", agents=2)
    assert engine.handle(Left(order[0]), 1.0) == [Invite(1, order[2])]
    assert feed(engine, 2.0, Reported(order[1], 1)) == []
    close = Close(1, tuple(sorted(order[1:3])), (order[0],))
    assert engine.handle(Reported(order[2], 1), 3.0) == [close]


def test_the_slot_of_an_agent_that_failed_is_refilled() -> None:
    order = invitation_order("abcd", 0, 0, 0, "train")
    engine = opened(*"abcd", agents=2)
    assert engine.handle(Failed(order[1], 1, "no space left"), 1.0) == [Invite(1, order[2])]


def test_a_refill_keeps_up_the_over_selection() -> None:
    order = invitation_order("abcdef", 0, 0, 0, "train")
    engine = opened(*"abcdef", agents=2, over_select=2.0)
    assert engine.handle(Left(order[0]), 1.0) == [Invite(1, order[4])]


def test_an_agent_that_failed_and_reported_after_all_fills_its_slot_again() -> None:
    first, second, third, fourth = invitation_order("abcd", 0, 0, 0, "train")
    engine = opened(*"abcd", agents=2)
    assert feed(engine, 1.0, Failed(first, 1, "busy")) == [Invite(1, third)]
    assert feed(engine, 2.0, Reported(first, 1), Left(third)) == []
    assert feed(engine, 3.0, Left(second)) == [Invite(1, fourth)]


def test_no_slot_is_refilled_in_the_second_half_of_the_deadline() -> None:
    first, second, *_ = invitation_order("abcd", 0, 0, 0, "train")
    engine = opened(*"abcd", agents=2)
    assert feed(engine, 15.0, Left(first), Reported(second, 1)) == [Close(1, (second,), (first,))]


def test_an_agent_whose_report_is_there_needs_no_refill_when_it_leaves() -> None:
    first, *_ = invitation_order("abcd", 0, 0, 0, "train")
    engine = opened(*"abcd", agents=2)
    assert feed(engine, 1.0, Reported(first, 1), Left(first)) == []


def test_a_vacant_slot_is_refilled_as_soon_as_a_spare_agent_is_back() -> None:
    first, second, spare = invitation_order("abc", 0, 0, 0, "train")
    engine = opened(*"abc", agents=2)
    assert feed(engine, 1.0, Left(spare), Left(first)) == []
    assert engine.handle(Joined(spare), 2.0) == [Invite(1, spare)]
    assert engine.handle(Reported(second, 1), 3.0) == []


def test_an_agent_that_returns_to_its_refilled_slot_helps_to_reach_the_target() -> None:
    first, second, _ = invitation_order("abc", 0, 0, 0, "train")
    engine = opened(*"abc", agents=2)
    assert len(feed(engine, 1.0, Left(first), Joined(first))) == 1
    assert feed(engine, 2.0, Reported(first, 1), Reported(second, 1))[0] == Close(
        1, tuple(sorted((first, second))), tuple({"a", "b", "c"} - {first, second})
    )


# -- our own mistakes ------------------------------------------------------------------------------


def test_an_answer_without_a_question_is_our_mistake() -> None:
    engine = RoundEngine(RoundRules())
    with pytest.raises(RuntimeError, match="no plan was asked for while gathering"):
        engine.handle(Planned(TRAIN), 0.0)
    with pytest.raises(RuntimeError, match="nothing was to be folded while gathering"):
        engine.handle(Folded(), 0.0)


def test_newcomers_take_part_in_nothing_before_the_last_round_was_folded() -> None:
    engine = gathered("a", "b", "n", start_agents=3, newcomers=frozenset({"n"}), rounds=1)
    assert cohort_of(engine, ALL) == ["a", "b"]
    assert cohort_of(engine, TRAIN) == ["a", "b"]  # participation 1 of those admitted, nobody spare
    (plan,) = engine.handle(Folded(), 0.0)
    assert plan == PlanPhase(View(1, 1, 0, ("a", "b", "n")))
    assert feed(engine, 0.0, Planned(ALL))[0] == Open(3, 1, 0, ALL, ("a", "b", "n"))


def cohort_of(engine: RoundEngine, phase: Phase) -> list[str]:
    """Fold a phase with everybody's report; who was invited."""
    if engine.stage is Stage.FOLDING:
        engine.handle(Folded(), 0.0)
    engine.handle(Planned(phase), 0.0)
    invited = cohort(engine)
    assert engine.step is not None
    feed(engine, 0.0, *(Reported(client, engine.step.number) for client in invited))
    assert engine.stage is Stage.FOLDING
    return sorted(invited)
