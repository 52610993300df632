"""The round engine: pauses, lost links, roll calls, restarts, and a whole faulty run."""

from covey.coordinator.engine.cohort import invitation_order
from covey.coordinator.engine.events import (
    Action,
    Close,
    Event,
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
    Paused,
    Planned,
    PlanPhase,
    Reported,
    Resumed,
    Tick,
    Unreadable,
    Void,
)
from covey.coordinator.engine.members import Members
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.shared.strategies.base import Phase, View
from tests.coordinator.engines import LINGER, TRAIN, cohort, feed, gathered, opened, restarted

# -- an agent's short absence ----------------------------------------------------------------------


def test_an_agent_that_is_back_in_time_has_not_left() -> None:
    engine = opened("a", "b", absence_s=1.0)
    assert feed(engine, 5.0, Reported("a", 1), Left("b")) == []
    assert engine.wake_at == 6.0
    assert feed(engine, 5.9, Joined("b")) == []
    assert feed(engine, 6.0, Tick()) == []
    assert feed(engine, 7.0, Reported("b", 1)) == [Close(1, ("a", "b"), ())]


def test_the_step_closes_when_an_absence_has_lasted_too_long() -> None:
    engine = opened("a", "b", absence_s=1.0)
    assert feed(engine, 5.0, Reported("a", 1), Left("b")) == []
    assert feed(engine, 5.5, Left("b")) == []  # a second last will does not restart the time
    assert feed(engine, 6.0, Tick()) == [Close(1, ("a",), ("b",))]
    assert engine.wake_at is None


def test_no_step_waits_for_an_agent_that_cannot_come_back_in_time() -> None:
    engine = opened("a", "b", absence_s=20.0)
    assert feed(engine, 5.0, Reported("a", 1), Left("b", at_once=True)) == [
        Close(1, ("a",), ("b",))
    ]


def test_a_step_that_lost_a_report_when_its_time_was_nearly_over_gives_its_agent_a_whole_deadline() -> (
    None
):
    engine = opened("a", "b", deadline_s=10.0)
    closed = feed(engine, 9.0, Reported("a", 1), Reported("b", 1))
    assert closed == [Close(1, ("a", "b"), ())]
    assert feed(engine, 9.5, Unreadable(("b",), 1)) == []
    assert engine.handle(Tick(), 19.0) == []
    assert engine.handle(Tick(), 19.5)[-1] == Close(1, ("a",), ("b",))


# -- the operator, the link, the roll call ---------------------------------------------------------


def test_a_pause_lets_the_open_step_end_and_opens_no_other() -> None:
    engine = opened("a", rounds=2)
    assert feed(engine, 1.0, Paused(), Reported("a", 1)) == [Close(1, ("a",), ())]
    assert feed(engine, 2.0, Folded(), Joined("b"), Tick()) == []
    assert engine.wake_at is None
    assert engine.handle(Resumed(), 9.0) == [PlanPhase(View(1, 2, 0, ("a", "b")))]


def test_a_pause_that_comes_while_a_phase_is_planned_keeps_it_closed() -> None:
    engine = gathered("a")
    assert feed(engine, 1.0, Paused(), Planned(TRAIN)) == []
    assert feed(engine, 9.0, Tick(), Resumed()) == [PlanPhase(View(0, 1, 0, ("a",)))]


def test_while_the_link_is_down_no_agent_leaves_and_no_time_passes() -> None:
    engine = opened("a", "b")
    assert feed(engine, 1.0, LinkLost(), Left("a"), Left("b")) == []
    assert engine.wake_at is None
    assert engine.handle(Tick(), 500.0) == []


def test_a_report_that_reaches_the_disk_while_the_link_is_down_meets_no_deadline() -> None:
    engine = opened("a", "b")
    assert engine.handle(LinkLost(), 1.0) == []
    assert engine.handle(Reported("a", 1), 500.0) == []
    assert engine.handle(Reported("b", 1), 501.0) == [Close(1, ("a", "b"), ())]


def test_no_phase_is_planned_while_the_link_is_down() -> None:
    engine = opened("a", rounds=2)
    assert feed(engine, 1.0, Reported("a", 1), LinkLost(), Folded(), Joined("b")) == [
        Close(1, ("a",), ())
    ]
    assert engine.handle(LinkBack(), 2.0) == [PlanPhase(View(1, 2, 0, ("a", "b")))]


def test_all_times_move_by_as_long_as_the_link_was_down() -> None:
    engine = opened("a", "b", "c", grace_s=20.0, rollcall_s=1000.0)
    engine.handle(Reported("a", 1), 2.0)
    assert engine.wake_at == 22.0
    feed(engine, 5.0, LinkLost())
    feed(engine, 50.0, LinkLost())  # a repeated event: counted from the first
    assert engine.handle(LinkBack(), 105.0) == []
    assert engine.wake_at == 122.0
    assert engine.step is not None
    assert (engine.step.opened, engine.step.deadline) == (100.0, 130.0)


def test_the_wait_for_a_full_start_and_the_pause_after_a_void_step_move_too() -> None:
    engine = RoundEngine(RoundRules(start_agents=2, start_wait_s=60.0, rollcall_s=1000.0))
    feed(engine, 1.0, Joined("a"), LinkLost())
    engine.handle(LinkBack(), 101.0)
    assert engine.wake_at == 160.0
    engine = opened("a", rollcall_s=1000.0)
    feed(engine, 1.0, Left("a"), LinkLost())
    engine.handle(LinkBack(), 101.0)
    assert engine.wake_at == 101.5


def test_who_does_not_answer_the_roll_call_has_left() -> None:
    engine = opened("a", "b", "c")
    feed(engine, 1.0, LinkLost())
    assert feed(engine, 2.0, LinkBack(), Joined("a"), Joined("c")) == []
    assert engine.wake_at == 12.0
    assert feed(engine, 3.0, Reported("a", 1), Reported("c", 1)) == []  # b has its time to answer
    assert engine.handle(Tick(), 12.0) == [Close(1, ("a", "c"), ("b",))]


def test_until_the_roll_call_is_over_those_who_were_there_count_as_present() -> None:
    engine = opened("a", "b", rounds=2)
    assert feed(engine, 1.0, Reported("a", 1), Reported("b", 1), LinkLost(), Folded())[1:] == []
    assert engine.handle(LinkBack(), 2.0) == [PlanPhase(View(1, 2, 0, ("a", "b")))]


def test_after_a_restart_a_fleet_has_as_long_as_at_its_first_start() -> None:
    engine, actions = restarted(
        opened("a", "b", start_wait_s=60.0, deadline_s=600.0), "a", now=100.0
    )
    assert actions == []
    assert (
        feed(engine, 101.0, Joined("a"), LinkLost(), LinkBack()) == []
    )  # the broker was there a second later
    assert engine.handle(Tick(), 111.0) == []
    assert engine.handle(Joined("b"), 159.0) == []
    engine, _ = restarted(opened("a", "b", start_wait_s=60.0, deadline_s=600.0), "a", now=100.0)
    assert engine.handle(Tick(), 160.0) == [Close(1, ("a",), ("b",))]


def test_a_second_roll_call_starts_the_time_again() -> None:
    engine = opened("a", "b")
    feed(engine, 1.0, LinkLost())
    feed(engine, 2.0, LinkBack(), Joined("a"), LinkLost())
    feed(engine, 8.0, LinkBack())
    assert engine.wake_at == 18.0
    assert feed(engine, 17.0, Tick(), Joined("a"), Joined("b")) == []
    assert engine.handle(Tick(), 18.0) == []


def test_an_agent_that_leaves_again_during_a_roll_call_is_gone_at_its_new_time() -> None:
    presence = Members()
    presence.join("a")
    presence.leave_at(5.0, ["a"])
    presence.call_roll(10.0)
    assert presence.next_leaves_at is None
    presence.leave_at(7.0, ["a"])
    assert presence.next_leaves_at == 7.0


# -- restarts --------------------------------------------------------------------------------------


def test_an_open_step_continues_after_a_restart_with_the_reports_that_it_had() -> None:
    phase = Phase("train", ("a", "b", "c"), sizes={"model": 7, "top": -3}, quorum=0.5)
    engine = opened("a", "b", "c", phase=phase)
    engine.handle(Reported("b", 1), 1.0)
    engine, actions = restarted(engine, "b", now=100.0)
    assert actions == []
    assert engine.step is not None
    assert engine.step.phase == phase
    assert engine.wake_at == 110.0  # the roll call; the deadline starts again
    assert feed(engine, 101.0, Joined("a"), Joined("b"), Joined("c"), Reported("a", 1)) == []
    assert engine.handle(Reported("c", 1), 102.0) == [Close(1, ("a", "b", "c"), ())]


def test_the_deadline_of_an_open_step_starts_again_after_a_restart() -> None:
    engine, _ = restarted(opened("a"), now=100.0)
    feed(engine, 101.0, Joined("a"))
    assert feed(engine, 110.0, Tick()) == []
    assert engine.wake_at == 130.0


def test_the_grace_period_starts_again_after_a_restart_that_found_the_quorum() -> None:
    engine = opened("a", "b", "c", grace_s=5.0)
    engine.handle(Reported("a", 1), 1.0)
    assert restarted(engine, "a", now=100.0)[0].wake_at == 105.0
    assert restarted(engine, now=100.0)[0].wake_at == 110.0  # no report, no quorum: the roll call


def test_a_restart_without_a_report_gives_no_grace_to_a_phase_that_may_be_empty() -> None:
    phase = Phase("evaluate", "all", ends_round=False, may_be_empty=True)
    engine, _ = restarted(opened("a", phase=phase, grace_s=5.0), now=100.0)
    assert engine.wake_at == 110.0


def test_a_step_that_had_all_its_reports_closes_at_once_after_a_restart() -> None:
    engine = opened("a", "b")
    _, actions = restarted(engine, "a", "b", now=100.0)
    assert actions == [Close(1, ("a", "b"), ())]


def test_a_step_that_was_being_folded_is_closed_again_after_a_restart() -> None:
    engine = opened("a", "b", rounds=2)
    close = feed(engine, 1.0, Reported("a", 1), Reported("b", 1))
    engine, actions = restarted(engine, "a", "b", now=100.0)
    assert actions == close
    assert engine.handle(Folded(), 101.0) == [PlanPhase(View(1, 2, 0, ("a", "b")))]


def test_an_unanswered_plan_is_asked_again_after_a_restart() -> None:
    engine = gathered("a", "b", rounds=4)
    _, actions = restarted(engine, now=100.0)
    assert actions == [PlanPhase(View(0, 4, 0, ("a", "b")))]


def test_step_numbers_grow_across_restarts() -> None:
    engine = opened("a", rounds=9)
    feed(engine, 1.0, Reported("a", 1), Folded())
    engine, _ = restarted(engine, now=100.0)
    assert engine.handle(Planned(TRAIN), 100.0) == [Open(2, 1, 0, TRAIN, ("a",))]


def test_invited_substitutes_are_still_invited_after_a_restart() -> None:
    order = invitation_order("abcd", 0, 0, 0, "train")
    engine = opened(*"abcd", agents=2)
    engine.handle(Left(order[0]), 1.0)
    engine, _ = restarted(engine, now=2.0)
    assert cohort(engine) == list(order[:3])
    assert feed(engine, 3.0, Left(order[1])) == [Invite(1, order[3])]


def test_a_restart_before_the_first_phase_still_waits_for_the_full_start() -> None:
    engine = RoundEngine(RoundRules(start_agents=2))
    engine.handle(Joined("a"), 0.0)
    engine, actions = restarted(engine, now=100.0)
    assert actions == []
    assert engine.handle(Joined("b"), 101.0) == [PlanPhase(View(0, 1, 0, ("a", "b")))]


def test_a_paused_run_is_still_paused_after_a_restart() -> None:
    engine = opened("a", rounds=2)
    feed(engine, 1.0, Paused(), Reported("a", 1), Folded())
    engine, actions = restarted(engine, now=100.0)
    assert actions == []
    assert engine.handle(Resumed(), 101.0) == [PlanPhase(View(1, 2, 0, ("a",)))]


def test_an_agent_that_failed_before_a_restart_is_not_waited_for_after_it() -> None:
    engine = opened("a", "b")
    engine.handle(Failed("a", 1, "diverged"), 1.0)
    engine, _ = restarted(engine, now=2.0)
    assert engine.handle(Reported("b", 1), 3.0) == [Close(1, ("b",), ("a",))]


def test_a_run_that_was_given_up_may_try_as_often_again_after_a_restart() -> None:
    engine = opened("a", void_limit=2)
    feed(engine, 30.0, Tick())
    assert isinstance(feed(engine, 30.5, Tick(), Planned(TRAIN), Left("a"))[-1], Finished)
    engine, actions = restarted(engine, now=100.0)
    assert actions == []
    assert engine.handle(Joined("a"), 100.0) == [
        PlanPhase(View(0, 1, 2, ("a",)))
    ]  # attempt 2: never drawn before
    feed(engine, 100.0, Planned(TRAIN))
    assert [type(action) for action in feed(engine, 101.0, Left("a"))] == [Void]


# -- a whole run -----------------------------------------------------------------------------------

# time, event; after the arrow what the engine wants done. Two rounds of two agents out of four, quorum two.
FAULTY_RUN = """
0    +a ->
0    +b ->
0    +c ->
0    +d -> planphase
0    planned -> open 1 for cd
1    -d -> invite b
2    report b 1 ->
3    link lost ->
90   tick ->
99   link back ->
100  +a ->
100  +b ->
109  tick -> invite a
110  fail a 1 -> void 1
110.2 +d ->
110.5 tick -> planphase
110.5 planned -> open 2 for ad
111  report c 1 -> ignored
112  report a 2 ->
112  report a 2 -> ignored
113  +c ->
114  report d 2 -> close 2 with ad
115  restart -> close 2 with ad
116  folded -> planphase
116  planned -> open 3 for ac
117  -a -> invite b
118  restart ->
119  +b ->
119  +c ->
120  report c 3 ->
121  pause ->
122  report b 3 -> close 3 with bc
123  folded ->
124  tick ->
125  resume -> planphase
125  complete -> finished
"""


def test_a_whole_faulty_run_reads_like_this() -> None:
    engine = RoundEngine(
        RoundRules(rounds=2, agents=2, quorum=2, start_agents=4, seed=195, **LINGER)
    )
    spool: set[str] = set()
    told = [""]
    for line in filter(None, FAULTY_RUN.splitlines()):
        words = line.split(" ->")[0].split()
        now, text = float(words[0]), " ".join(words[1:])
        if text == "restart":
            engine, actions = restarted(engine, *spool, now=now)
        else:
            actions = engine.handle(_event(text), now)
        for action in actions:
            spool = set() if isinstance(action, Open) else spool
        match text.split():
            case ["report", client, _] if not actions or not isinstance(actions[0], Ignored):
                spool.add(client)
        told.append(f"{line.split(' ->')[0]} -> {'; '.join(map(_words, actions))}".rstrip())
    assert "\n".join(told) + "\n" == FAULTY_RUN


def _event(text: str) -> Event:
    match text.split():
        case ["report", client, step]:
            return Reported(client, int(step))
        case ["fail", client, step]:
            return Failed(client, int(step), "diverged")
        case [name] if name[0] in "+-":
            return Joined(name[1:]) if name[0] == "+" else Left(name[1:])
    simple: dict[str, Event] = {
        "tick": Tick(),
        "planned": Planned(TRAIN),
        "complete": Planned(None),
        "folded": Folded(),
        "link lost": LinkLost(),
        "link back": LinkBack(),
        "pause": Paused(),
        "resume": Resumed(),
    }
    return simple[text]


def _words(action: Action) -> str:
    match action:
        case Open(step, cohort=cohort):
            return f"open {step} for {''.join(cohort)}"
        case Invite(step, client):
            return f"invite {client}"
        case Close(step, reporters):
            return f"close {step} with {''.join(reporters)}"
        case Void(step):
            return f"void {step}"
    return type(action).__name__.lower()
