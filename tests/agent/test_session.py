"""The agent's session: exact actions, at times that the test chooses."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from covey.agent.device import events as e
from covey.agent.device.delivery import ANSWERED_BYTES_PER_S, NUDGE_S, RETRY_S
from covey.agent.device.fetching import WorkState
from covey.agent.device.session import Session
from covey.agent.device.stalls import FETCHED_BYTES_PER_S, STALL_S
from covey.shared.mqtt.link import Down, Up
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.messages import OrderMessage
from covey.shared.wire.roll_call import ROLL_SPREAD_S
from covey.shared.wire.topics import Topics
from tests.agent.orders import MODEL, PART_BYTES, TASK, order, ref, rest, status

TOPICS = Topics("default")
REF = ref()
PART = "covey/default/clusters/0/model/0"
SUBSCRIPTIONS = e.Subscribe(
    (
        "covey/default/coordinator/status",
        "covey/default/agents/pi/order",
        "covey/default/agents/pi/status",
    )
)


def fresh(**changes: object) -> Session:
    return Session("pi", TOPICS, session="s1", **changes)  # type: ignore[arg-type]


def up(at: float = 0.0, **changes: object) -> Session:
    session = fresh(**changes)
    session.handle(Up(), at)
    return session


def without_status(actions: list[e.Action]) -> list[e.Action]:
    return [action for action in actions if not isinstance(action, e.PublishStatus)]


def react(session: Session, event: e.Event, now: float = 0.0) -> list[e.Action]:
    return without_status(session.handle(event, now))


def reported(step: int = 1, at: float = 0.0) -> Session:
    """Has worked on a step and sent its report."""
    session = up(at, models=[REF.digest])
    session.handle(e.OrderSeen(order(step, REF)), at)
    session.handle(e.WorkDone(step), at)
    session.handle(e.Sent(step), at)
    return session


def test_a_new_connection_subscribes_to_exact_topics_and_publishes_the_status() -> None:
    session = fresh()
    assert session.handle(Up(), 0.0) == [SUBSCRIPTIONS, e.PublishStatus(session.status)]
    assert session.status.online
    assert not session.will.online
    assert session.will.session == session.status.session


def test_a_session_that_reads_its_own_last_will_publishes_that_it_is_online() -> None:
    session = up()
    assert session.handle(e.OwnStatusSeen(session.status), 0.0) == []
    assert session.handle(e.OwnStatusSeen(session.will), 0.0) == [e.PublishStatus(session.status)]


def other_status(this: Session, **changes: object) -> AgentStatus:
    return this.status.model_copy(update=changes)


@pytest.mark.parametrize(
    ("other", "retained"),
    [({}, False), ({"serial": 99}, False), ({"session": "0"}, True), ({"session": "z"}, True)],
    ids=["its own", "its own of a later time", "an older one's, kept", "a younger one's, kept"],
)
def test_echoes_and_retained_statuses_under_its_own_id_do_not_disturb_a_session(
    other: dict[str, object], retained: bool
) -> None:
    session = up()
    for now in (0.0, 10.0, 20.0):
        session.handle(Down("restart"), now)
        session.handle(Up(), now)
        assert react(session, e.OwnStatusSeen(other_status(session, **other), retained), now) == []


def test_a_session_answers_a_younger_one_with_its_status() -> None:
    session = up()
    assert session.handle(e.OwnStatusSeen(other_status(session, session="z")), 0.0) == [
        e.PublishStatus(session.status)
    ]


def test_a_session_yields_its_id_to_an_older_one_that_answers_after_five_seconds() -> None:
    session = up()
    older = e.OwnStatusSeen(other_status(session, session="0"))
    assert session.handle(older, 1.0) == []
    assert session.wake_at == 6.0
    assert session.handle(e.Tick(), 6.0) == [e.PublishStatus(session.status)]
    assert session.handle(older, 6.1) == [e.YieldId()]


def test_a_session_continues_if_the_older_one_falls_silent() -> None:
    session = up()
    session.handle(e.OwnStatusSeen(other_status(session, session="0")), 1.0)
    assert session.handle(e.Tick(), 6.0) == [e.PublishStatus(session.status)]
    assert session.handle(e.Tick(), 60.0) == []


def test_an_order_with_an_unknown_model_fetches_it_then_works_then_reports() -> None:
    session = up()
    assert react(session, e.OrderSeen(order(1, REF))) == [
        e.SwitchRun("run-1"),
        e.KeepModels(frozenset({REF.digest})),
        e.Subscribe((PART,)),
    ]
    assert session.status.busy
    assert react(session, e.ModelReady("0", REF.digest)) == [
        e.StartWork(order(1, REF)),
        e.Unsubscribe((PART,)),
    ]
    assert react(session, e.WorkDone(1)) == [e.SendReport(1)]
    assert not session.status.busy


def test_the_status_is_published_when_busy_or_cluster_change_and_not_otherwise() -> None:
    session = up(models=[REF.digest])
    assert [
        a
        for a in session.handle(e.OrderSeen(rest(cluster=3)), 0.0)
        if isinstance(a, e.PublishStatus)
    ]
    assert session.handle(e.OrderSeen(rest(cluster=3, closed=1)), 0.0) == []
    actions = session.handle(e.OrderSeen(order(2, REF, cluster=3)), 0.0)
    assert actions[-1] == e.PublishStatus(session.status)
    assert session.status.step == 2


def test_a_model_of_many_parts_is_subscribed_to_part_by_part() -> None:
    large = ref("@pi", MODEL * 4)
    session = up()
    topics = tuple(f"covey/default/agents/pi/model/{i}" for i in range(large.parts))
    assert large.parts == -(-len(MODEL) * 4 // PART_BYTES) > 1
    assert react(session, e.OrderSeen(order(1, large)))[-1] == e.Subscribe(topics)


def test_a_redelivered_order_is_not_worked_on_twice() -> None:
    session = up(models=[REF.digest])
    assert e.StartWork(order(1, REF)) in session.handle(e.OrderSeen(order(1, REF)), 0.0)
    assert session.handle(e.OrderSeen(order(1, REF)), 0.0) == []


def test_a_redelivered_order_is_answered_from_the_outbox() -> None:
    session = reported()
    assert session.handle(e.OrderSeen(order(1, REF)), 1.0) == [e.SendReport(1)]


def test_an_order_that_does_not_ask_for_the_report_waits_for_the_timer() -> None:
    session = reported()
    assert session.handle(e.OrderSeen(rest(closed=0)), 1.0) == []
    assert session.wake_at is not None


def test_an_accepted_step_commits_its_memory() -> None:
    session = reported()
    assert session.handle(e.OrderSeen(rest(accepted=1)), 1.0) == [e.CommitMemory(1)]
    assert session.wake_at is None
    assert session.handle(e.OrderSeen(order(1, REF, accepted=1)), 1.0) == []


def test_a_step_that_was_closed_without_it_is_dropped() -> None:
    session = reported()
    assert session.handle(e.OrderSeen(rest(closed=1)), 1.0) == [e.DropReport(1)]


def test_an_accepted_step_is_committed_even_when_it_is_closed_too() -> None:
    assert react(reported(), e.OrderSeen(order(2, REF, accepted=1))) == [
        e.CommitMemory(1),
        e.DropReport(1),
        e.KeepModels(frozenset({REF.digest})),
        e.StartWork(order(2, REF, accepted=1)),
    ]


def test_a_new_order_cancels_the_old_work() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    assert react(session, e.OrderSeen(order(2, REF))) == [
        e.CancelWork(),
        e.KeepModels(frozenset({REF.digest})),
        e.StartWork(order(2, REF)),
    ]
    assert react(session, e.WorkDone(1)) == [e.DropReport(1)]


def test_an_order_for_another_step_cancels_work_and_drops_reports_even_of_an_open_step() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    newer = order(2, REF, closed=0)
    assert react(session, e.OrderSeen(newer))[0] == e.CancelWork()
    assert react(reported(), e.OrderSeen(newer))[0] == e.DropReport(1)


def test_an_order_for_a_step_that_it_reports_as_closed_is_not_worked_on() -> None:
    session = up(models=[REF.digest])
    assert react(session, e.OrderSeen(order(3, REF, closed=3))) == [e.SwitchRun("run-1")]
    assert session.state is WorkState.IDLE


def test_an_order_to_rest_cancels_the_work() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    assert react(session, e.OrderSeen(rest(closed=1))) == [e.CancelWork()]
    assert session.state is WorkState.IDLE


def test_a_lost_worker_is_reported_as_a_failure() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    assert session.handle(e.WorkFailed(1, "killed"), 0.0) == [
        e.ReportFailure(order(1, REF), "killed")
    ]
    assert react(session, e.WorkDone(1)) == [e.SendReport(1)]


@pytest.mark.parametrize(
    "late", [order(6, REF, serial=4), order(7, REF, serial=4), rest(closed=7, serial=4)]
)
def test_an_order_that_was_overtaken_is_ignored(late: OrderMessage) -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(7, REF, serial=5)), 0.0)
    assert session.handle(e.OrderSeen(late), 0.0) == []
    assert session.state is WorkState.WORKING


def test_an_order_after_a_restart_of_the_coordinator_counts_from_the_beginning() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(7, REF, serial=5)), 0.0)
    assert react(session, e.OrderSeen(rest(closed=7, again=1, serial=0))) == [e.CancelWork()]


def test_an_old_order_of_a_restored_broker_does_not_repeat_accepted_work() -> None:
    session = reported(5)
    session.handle(e.OrderSeen(rest(accepted=5, closed=5)), 0.0)
    session.handle(Down("gone"), 1.0)
    session.handle(Up(), 2.0)
    assert session.handle(e.OrderSeen(order(3, REF, accepted=2)), 2.0) == []


def test_work_accepted_before_a_restart_is_not_repeated() -> None:
    session = up(models=[REF.digest], outboxed=e.Outboxed("run-1", accepted=5))
    assert session.handle(e.OrderSeen(order(5, REF, accepted=4)), 0.0) == []
    assert session.handle(e.OrderSeen(rest(accepted=4, closed=9, cluster=3)), 0.0) == []
    assert session.status.cluster is None


def test_a_report_on_disk_is_sent_after_a_restart() -> None:
    session = up(outboxed=e.Outboxed("run-1", accepted=0, step=1))
    assert session.wake_at == NUDGE_S
    assert session.handle(e.Tick(), NUDGE_S) == [e.SendReport(1)]


def test_a_report_on_disk_is_sent_at_the_sight_of_its_order_and_not_once_more_by_the_timer() -> (
    None
):
    asked = order(1, REF)
    assert asked.work is not None
    session = up(outboxed=e.Outboxed("run-1", accepted=0, step=1, work=asked.work.digest))
    assert react(session, e.OrderSeen(asked), 0.1) == [e.SendReport(1)]
    assert session.wake_at is None


def test_work_is_done_again_if_another_coordinator_asks_for_other_work_in_the_same_step() -> None:
    """As after a fail-over to a copy of the run's folder: the original drew its step from another state."""
    session = up(models=[REF.digest])
    first = order(1, REF)
    session.handle(e.OrderSeen(first), 0.0)
    other = order(1, REF, again=1, round_=3)
    actions = session.handle(e.OrderSeen(other), 1.0)
    assert e.CancelWork() in actions
    assert e.StartWork(other) in actions
    assert e.SendReport(1) in session.handle(e.WorkDone(1), 2.0)
    again = order(1, REF, again=2)
    actions = session.handle(e.OrderSeen(again), 3.0)
    assert e.DropReport(1) in actions
    assert e.StartWork(again) in actions


def test_a_report_that_broke_off_is_sent_after_the_next_up() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(e.WorkDone(1), 0.0)
    assert session.handle(Down("gone"), 1.0) == [e.StopSending()]
    session.handle(Up(), 5.0)
    assert session.handle(e.Tick(), 5.0 + NUDGE_S) == [e.SendReport(1)]


def test_a_report_without_an_answer_is_sent_again_after_waits_that_double_up_to_a_minute() -> None:
    session, now, waits = reported(), 0.0, []
    for _ in range(8):
        assert session.wake_at is not None
        waits.append(session.wake_at - now)
        now = session.wake_at
        assert session.handle(e.Tick(), now) == [e.SendReport(1)]
        assert session.handle(e.Sent(1), now) == []
    assert all(
        0.75 * RETRY_S * 2**i <= wait <= 1.25 * RETRY_S * 2**i for i, wait in enumerate(waits[:5])
    )
    assert all(45 <= wait <= 75 for wait in waits[5:])


def test_a_report_that_took_long_to_send_is_not_sent_again_at_once() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(e.WorkDone(1), 0.0)
    session.handle(e.Sent(1), 40.0)
    assert session.wake_at == 80.0


def test_a_large_report_is_not_sent_again_while_the_coordinator_still_reads_it() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(e.WorkDone(1), 0.0)
    session.handle(e.Sent(1, size=45 * ANSWERED_BYTES_PER_S), 1.0)
    assert session.wake_at == 46.0


def test_a_model_that_does_not_come_although_its_order_did_is_shown_once() -> None:
    session = up()
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    shown = []
    for _ in range(6):
        assert session.wake_at is not None
        actions = session.handle(e.Tick(), session.wake_at)
        shown += [action.text for action in actions if isinstance(action, e.Notify)]
    [text] = shown
    assert "sends no part of its model" in text
    assert "broker doctor" in text


def test_the_parts_of_a_large_model_may_come_late() -> None:
    session = up()
    large = REF.model_copy(update={"size": 10 * FETCHED_BYTES_PER_S})
    session.handle(e.OrderSeen(order(1, large)), 0.0)
    assert session.wake_at == STALL_S + 10


def test_a_report_that_broke_off_does_not_wait_as_long_as_it_had_taken() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(e.WorkDone(1), 0.0)
    session.handle(e.Sent(1, whole=False), 40.0)
    assert session.wake_at is not None
    assert session.wake_at <= 40.0 + 1.25 * RETRY_S


def test_the_next_report_does_not_inherit_the_waits_of_the_one_before() -> None:
    session = reported()
    for _ in range(5):
        assert session.wake_at is not None
        session.handle(e.Tick(), now := session.wake_at)
        session.handle(e.Sent(1), now)
    session.handle(e.OrderSeen(order(2, REF, accepted=1)), 500.0)
    session.handle(e.WorkDone(2), 500.0)
    session.handle(e.Sent(2), 500.0)
    assert session.wake_at is not None
    assert session.wake_at <= 500.0 + 1.25 * RETRY_S


def test_a_report_on_its_way_is_sent_once_more_when_the_coordinator_asks_again() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(e.WorkDone(1), 0.0)
    assert session.handle(e.OrderSeen(order(1, REF, again=1)), 1.0) == []
    assert session.handle(e.Sent(1), 2.0) == [e.SendReport(1)]


def test_a_report_waits_while_the_coordinator_is_away() -> None:
    session = reported()
    session.handle(e.CoordinatorSeen(status(online=False)), 0.0)
    assert session.wake_at is not None
    assert session.handle(e.Tick(), session.wake_at) == []
    assert session.wake_at is None
    session.handle(e.CoordinatorSeen(status("e2")), 100.0)
    assert e.SendReport(1) in session.handle(e.Tick(), 100.0 + NUDGE_S)


def test_a_report_goes_out_soon_after_the_same_coordinator_is_back() -> None:
    session = reported()
    session.handle(e.CoordinatorSeen(status()), 0.0)
    session.handle(e.CoordinatorSeen(status(online=False)), 1.0)
    session.handle(e.Tick(), 99.0)
    assert session.wake_at is None
    session.handle(e.CoordinatorSeen(status()), 100.0)
    assert session.wake_at == 100.0 + NUDGE_S


def test_a_session_publishes_its_status_after_every_connection_to_replace_its_last_will() -> None:
    session = up()
    session.handle(Down("gone"), 1.0)
    assert session.handle(Up(), 2.0) == [SUBSCRIPTIONS, e.PublishStatus(session.status)]


def test_a_model_that_left_the_disk_for_a_newer_one_is_fetched_again() -> None:
    session, other = up(models=[REF.digest]), ref("1", b"other" * 100)
    session.handle(e.OrderSeen(order(1, other)), 0.0)
    actions = react(session, e.OrderSeen(order(2, REF)))
    assert e.Subscribe((PART,)) in actions
    assert session.state is WorkState.FETCHING


def coordinator_of(run: str, epoch: str = "e1.1", *, retained: bool = False) -> e.CoordinatorSeen:
    return e.CoordinatorSeen(status(epoch, run=run), retained)


def test_another_run_counts_its_steps_from_the_beginning_and_commits_nothing_of_the_old_one() -> (
    None
):
    session = up(models=[REF.digest], outboxed=e.Outboxed("run-1", accepted=5))
    session.handle(coordinator_of("run-2"), 0.0)
    first = order(1, REF, run="run-2")
    assert react(session, e.OrderSeen(first))[-1] == e.StartWork(first)
    session = reported()
    session.handle(coordinator_of("run-2"), 0.0)
    actions = react(session, e.OrderSeen(order(2, REF, run="run-2")))
    assert actions[0] == e.SwitchRun("run-2")
    assert e.CommitMemory(1) not in actions


def test_another_run_leaves_report_and_work_of_the_old_one() -> None:
    session = reported()
    session.handle(coordinator_of("run-2"), 0.0)
    assert react(session, e.OrderSeen(order(1, REF, run="run-2"))) == [
        e.SwitchRun("run-2"),
        e.KeepModels(frozenset({REF.digest})),
        e.StartWork(order(1, REF, run="run-2")),
    ]
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(coordinator_of("run-2"), 0.0)
    assert react(session, e.OrderSeen(rest(run="run-2"))) == [e.CancelWork(), e.SwitchRun("run-2")]


def test_a_report_of_a_run_that_is_back_goes_out_again_though_its_order_asks_for_nothing() -> None:
    session = reported()
    session.handle(coordinator_of("run-2"), 0.0)
    session.handle(e.OrderSeen(rest(run="run-2")), 0.0)
    session.handle(coordinator_of("run-1", "e9.1"), 10.0)
    react(session, e.OrderSeen(rest(serial=9)), 10.0)
    assert session.wake_at is not None
    assert e.SendReport(1) in session.handle(e.Tick(), 10.0 + NUDGE_S)


def test_an_order_of_a_run_that_no_coordinator_names_is_parked() -> None:
    session = reported()
    session.handle(coordinator_of("run-1"), 0.0)
    assert session.handle(e.OrderSeen(order(9, REF, run="run-0")), 1.0) == []
    assert session.status.run == "run-1"
    assert react(session, e.OrderSeen(order(1, REF)), 2.0) == [e.SendReport(1)]


def test_a_parked_order_is_taken_up_when_the_coordinator_names_its_run() -> None:
    session = up(models=[REF.digest], outboxed=e.Outboxed("run-1", accepted=5))
    assert session.handle(e.OrderSeen(order(1, REF, run="run-2")), 0.0) == []
    actions = react(session, coordinator_of("run-2", retained=True), 0.1)
    assert e.SwitchRun("run-2") in actions
    assert e.StartWork(order(1, REF, run="run-2")) in actions


def test_a_retained_status_of_an_older_coordinator_does_not_switch_the_run() -> None:
    session = reported()
    session.handle(coordinator_of("run-1", "b.1"), 0.0)
    session.handle(Down("the broker was restored"), 1.0)
    session.handle(Up(), 2.0)
    assert session.handle(coordinator_of("run-0", "a.1", retained=True), 2.0) == []
    assert session.handle(e.OrderSeen(order(9, REF, run="run-0")), 2.0) == []
    assert session.status.epoch == "b.1"


def test_a_running_coordinator_counts_even_if_its_clock_went_back() -> None:
    session = reported()
    session.handle(coordinator_of("run-1", "b.1"), 0.0)
    session.handle(coordinator_of("run-2", "a.1"), 1.0)
    assert e.SwitchRun("run-2") in session.handle(e.OrderSeen(rest(run="run-2")), 1.0)


def test_an_agent_that_returns_to_a_run_finds_its_report_there() -> None:
    session = reported()
    session.handle(coordinator_of("run-2"), 0.0)
    session.handle(e.OrderSeen(rest(run="run-2")), 0.0)
    session.handle(coordinator_of("run-1"), 1.0)
    assert react(session, e.OrderSeen(order(1, REF, serial=9)), 1.0) == [
        e.SwitchRun("run-1"),
        e.SendReport(1),
    ]


def accepted_once(step: int = 1) -> Session:
    """Has worked on a step, and a coordinator in its first life has accepted the report."""
    session = reported(step)
    session.handle(e.OrderSeen(rest(accepted=step, closed=step - 1, again=1)), 0.0)
    return session


def test_an_accepted_report_is_kept_until_its_step_is_closed() -> None:
    session = accepted_once()
    assert session.handle(e.OrderSeen(rest(accepted=1, closed=0, again=1, serial=1)), 1.0) == []
    assert session.handle(e.OrderSeen(rest(accepted=1, closed=1, again=1, serial=2)), 1.0) == [
        e.DropReport(1)
    ]


def test_a_restarted_coordinator_that_lost_an_accepted_report_gets_it_again() -> None:
    session = accepted_once()
    assert react(session, e.OrderSeen(order(1, REF, again=2)), 1.0) == [
        e.GoBack(0),
        e.SendReport(1),
    ]
    assert session.status.accepted == 0
    assert react(session, e.OrderSeen(rest(accepted=1, again=2, serial=1)), 2.0) == [
        e.StopSending(),
        e.CommitMemory(1, 2),
    ]


def test_an_order_of_the_same_coordinator_that_knows_less_is_outdated() -> None:
    session = accepted_once()
    assert session.handle(e.OrderSeen(order(1, REF, again=1)), 1.0) == []


def test_a_coordinator_that_was_restored_to_an_earlier_step_has_its_work_done_again() -> None:
    session = up(models=[REF.digest], outboxed=e.Outboxed("run-1", accepted=5, confirmed=1))
    again = order(3, REF, accepted=2, again=2)
    assert react(session, e.OrderSeen(again))[0] == e.GoBack(2)
    assert session.state is WorkState.WORKING


def test_a_report_is_sent_after_the_coordinator_went_back_while_another_one_was_being_sent() -> (
    None
):
    session = up(models=[REF.digest], outboxed=e.Outboxed("run-1", accepted=2, step=3))
    session.handle(e.Tick(), NUDGE_S)
    restored = order(2, REF, accepted=1, again=1)
    assert react(session, e.OrderSeen(restored), 2.0)[:2] == [e.StopSending(), e.GoBack(1)]
    assert react(session, e.WorkDone(2), 3.0) == [e.SendReport(2)]


def test_an_agent_whose_disk_was_restored_reports_that_its_memory_is_lost() -> None:
    session = up(models=[REF.digest], outboxed=e.Outboxed("run-1", accepted=2))
    actions = react(session, e.OrderSeen(order(6, REF, accepted=5, again=1)))
    assert actions[0] == e.LoseMemory(5, 1)
    assert session.state is WorkState.WORKING


def test_the_work_of_a_damaged_report_is_done_again_if_it_is_still_needed() -> None:
    session = reported()
    session.handle(e.OrderSeen(order(1, REF)), 1.0)
    actions = session.handle(e.ReportDamaged(1), 1.5)
    assert e.StartWork(order(1, REF)) in actions
    assert e.StopSending() in actions


def test_a_damaged_model_is_fetched_again_before_the_work_begins_again() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    assert e.Subscribe((PART,)) in session.handle(e.ModelDamaged(REF.digest), 1.0)
    assert e.StartWork(order(1, REF)) in session.handle(e.ModelReady("0", REF.digest), 2.0)


def test_a_model_that_does_not_come_is_subscribed_to_again_with_waits_that_double() -> None:
    session = up()
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    assert session.wake_at == STALL_S
    assert session.handle(e.Tick(), STALL_S) == [e.Subscribe((PART,))]
    assert session.wake_at == STALL_S + 2 * STALL_S
    session.handle(e.PartSeen(), 5.0)
    assert session.wake_at == 5.0 + STALL_S


def test_a_link_that_comes_back_in_mid_fetch_subscribes_to_the_model_as_well() -> None:
    session = up()
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(Down("gone"), 1.0)
    assert react(session, Up(), 2.0) == [e.Subscribe((*SUBSCRIPTIONS.topics, PART))]


def test_delivery_all_stays_subscribed_and_holds_the_newest_model_ahead_of_its_order() -> None:
    session = up(models=[REF.digest])
    session.handle(e.CoordinatorSeen(status(delivery="all")), 0.0)
    assert react(session, e.OrderSeen(order(1, REF)))[-1] == e.Subscribe((PART,))
    session.handle(e.WorkDone(1), 0.0)
    assert react(session, e.OrderSeen(rest(accepted=1))) == [e.StopSending(), e.CommitMemory(1)]
    newer = ref("0", b"newer" * 100)
    assert react(session, e.ModelReady("0", newer.digest)) == [
        e.KeepModels(frozenset({newer.digest}))
    ]
    assert e.StartWork(order(2, newer, accepted=1)) in session.handle(
        e.OrderSeen(order(2, newer, accepted=1)), 0.0
    )


def test_delivery_all_follows_its_agent_to_another_cluster() -> None:
    session = up(models=[REF.digest])
    session.handle(e.CoordinatorSeen(status(delivery="all")), 0.0)
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    other = ref("1", b"other" * 100)
    actions = react(session, e.OrderSeen(order(2, other)))
    assert actions[-2:] == [
        e.Unsubscribe((PART,)),
        e.Subscribe(("covey/default/clusters/1/model/0",)),
    ]


def test_each_session_answers_a_roll_call_once_after_a_delay_of_its_own() -> None:
    session = up()
    assert session.handle(e.CoordinatorSeen(status("e1")), 10.0) == []
    assert session.wake_at is not None
    assert 10.0 <= session.wake_at <= 10.0 + ROLL_SPREAD_S
    assert session.handle(e.Tick(), session.wake_at) == [e.PublishStatus(session.status)]
    assert session.status.epoch == "e1"
    assert session.handle(e.CoordinatorSeen(status("e1")), 20.0) == []
    other = Session("other", TOPICS, session="s")
    other.handle(Up(), 0.0)
    other.handle(e.CoordinatorSeen(status("e1")), 10.0)
    session.handle(e.CoordinatorSeen(status("e2")), 10.0)
    assert other.wake_at != session.wake_at


def test_data_is_compared_with_a_task_once_and_described_with_its_digest() -> None:
    session = up()
    task = TASK.for_agents()
    assert session.handle(e.CoordinatorSeen(status(task=True)), 0.0) == [
        e.Inspect(task, TASK.digest)
    ]
    assert session.handle(e.CoordinatorSeen(status(task=True, round=1)), 0.0) == []
    actions = session.handle(e.Inspected(TASK.digest, 80, 20, ("0", "1")), 1.0)
    assert actions == [e.PublishStatus(session.status)]
    said = session.status
    assert (said.task, said.samples, said.test_samples, said.labels) == (
        TASK.digest,
        80,
        20,
        ["0", "1"],
    )


def test_a_problem_of_the_data_is_shown_once() -> None:
    session = up()
    session.handle(e.CoordinatorSeen(status(task=True)), 0.0)
    assert react(session, e.Inspected(TASK.digest, problem="no column y")) == [
        e.Notify("no column y")
    ]
    assert session.status.problem == "no column y"
    assert react(session, e.Inspected(TASK.digest, problem="no column y")) == []


def test_the_detail_of_a_problem_is_for_the_terminal_and_never_in_the_status() -> None:
    session = up()
    session.handle(e.CoordinatorSeen(status(task=True)), 0.0)
    seen = e.Inspected(
        TASK.digest, problem="row 1, column 2 is not a number", detail="data.csv: 'Erika'"
    )
    assert react(session, seen) == [e.Notify("data.csv: 'Erika'")]
    assert session.status.problem == "row 1, column 2 is not a number"
    assert b"Erika" not in session.status.to_bytes()


def test_an_inspection_for_an_older_task_is_ignored() -> None:
    session = up()
    session.handle(e.CoordinatorSeen(status(task=True)), 0.0)
    assert session.handle(e.Inspected("older", 1, 1), 0.0) == []


def test_a_session_that_is_down_publishes_and_sends_nothing() -> None:
    session = fresh(models=[REF.digest])
    assert session.handle(e.OrderSeen(order(1, REF)), 0.0)[-1] == e.StartWork(order(1, REF))
    assert session.handle(e.WorkDone(1), 0.0) == []
    assert session.wake_at is None


STEPS = st.integers(1, 4)


class AnyOrder(RuleBasedStateMachine):
    """Any events in any order; the machine keeps the outbox that the actions describe."""

    def __init__(self) -> None:
        super().__init__()
        self.session, self.now = fresh(), 0.0
        self.working: int | None = None
        self.outbox = 0
        self.run = ""
        self.sending = False
        self.is_up = False
        self.kept = 0
        self.done: set[tuple[str, int]] = set()  # accepted
        self.aside: tuple[str, int, int] = ("", 0, 0)  # run, outbox, kept

    def feed(self, event: e.Event) -> None:
        for action in self.session.handle(event, self.now):
            match action:
                case e.StartWork(wanted):
                    assert self.working is None, "one order at a time"
                    assert (wanted.run, wanted.step) not in self.done, (
                        "accepted work is never done again"
                    )
                    assert wanted.step != self.outbox, (
                        "what lies in the outbox is never worked on again"
                    )
                    self.working = wanted.step
                case e.CancelWork():
                    assert self.working is not None
                    self.working = None
                case e.SendReport(step):
                    assert self.is_up
                    assert step == self.outbox != 0
                    assert not self.sending
                    self.sending = True
                case e.StopSending():
                    assert self.sending
                    self.sending = False
                case e.CommitMemory(step):
                    assert step == self.outbox
                    self.outbox, self.kept = 0, step
                    self.done.add((self.run, step))
                case e.DropReport(step):
                    assert step in (self.outbox, self.kept)
                    self.outbox = self.kept = 0
                case e.GoBack(accepted):
                    self.done = {
                        done for done in self.done if done[0] != self.run or done[1] <= accepted
                    }
                    self.outbox, self.kept = (self.kept if self.kept > accepted else 0), 0
                case e.LoseMemory(accepted):
                    assert accepted != self.outbox
                    self.outbox = self.kept = 0
                case e.SwitchRun(run):
                    assert self.working is None
                    left = (self.run, self.outbox, self.kept) if self.run else self.aside
                    back = self.aside if self.aside[0] == run else (run, 0, 0)
                    self.aside, (self.run, self.outbox, self.kept) = left, back
                    self.done = {done for done in self.done if done[0] in (left[0], run)}
                case e.Subscribe() | e.Unsubscribe() | e.PublishStatus():
                    assert self.is_up

    @rule()
    def link_up(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.feed(Up())

    @rule()
    def link_down(self) -> None:
        if self.is_up:
            self.feed(Down("gone"))
            self.is_up = self.sending = False

    @rule(
        step=STEPS,
        accepted=st.integers(0, 4),
        run=st.sampled_from(["run-1", "run-1", "run-2"]),
        again=st.integers(0, 1),
        serial=st.integers(0, 3),
    )
    def ordered(self, step: int, accepted: int, run: str, again: int, serial: int) -> None:
        self.feed(
            e.OrderSeen(
                order(step, REF, run=run, accepted=min(accepted, step), again=again, serial=serial)
            )
        )

    @rule(accepted=st.integers(0, 4), closed=st.integers(0, 4))
    def ordered_to_rest(self, accepted: int, closed: int) -> None:
        self.feed(e.OrderSeen(rest(accepted=accepted, closed=max(closed, accepted - 1))))

    @rule(step=STEPS)
    def fetched(self, step: int) -> None:
        self.feed(e.ModelReady("0", REF.digest))

    @precondition(lambda self: self.working is not None)
    @rule()
    def worked(self) -> None:
        assert self.working is not None
        self.outbox, self.kept, self.working = self.working, 0, None
        self.feed(e.WorkDone(self.outbox))

    @precondition(lambda self: self.sending)
    @rule(whole=st.booleans())
    def sent(self, whole: bool) -> None:
        self.sending = False
        self.feed(e.Sent(self.outbox, whole))

    @rule(
        online=st.booleans(),
        epoch=st.sampled_from(["e1.1", "e2.1"]),
        run=st.sampled_from(["run-1", "run-2"]),
        everything=st.booleans(),
        retained=st.booleans(),
    )
    def coordinator(
        self, online: bool, epoch: str, run: str, everything: bool, retained: bool
    ) -> None:
        delivery = "all" if everything else "participants"
        self.feed(
            e.CoordinatorSeen(status(epoch, run=run, online=online, delivery=delivery), retained)
        )

    @rule(wait=st.floats(0.1, 100))
    def time_passes(self, wait: float) -> None:
        self.now += wait
        self.feed(e.Tick())

    @invariant()
    def a_report_that_waits_has_a_way_out(self) -> None:
        away = self.session._delivery.coordinator_offline
        if self.outbox and self.is_up and not away:
            assert self.sending or self.session.wake_at is not None

    @invariant()
    def a_model_that_is_awaited_has_a_timer(self) -> None:
        if self.session.state is WorkState.FETCHING and self.is_up:
            assert self.session.wake_at is not None

    @invariant()
    def work_and_status_agree(self) -> None:
        assert (self.session.state is WorkState.WORKING) == (self.working is not None)


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_a_new_agent_does_not_compare_its_data_with_the_task_of_a_run_that_is_over() -> None:
    session = up()
    left = status(task=True, state="finished", name="old")
    assert react(session, e.CoordinatorSeen(left, retained=True)) == []
    assert session.waits_for == "run old is finished; waiting for the next one"
    new = status("e2", task=True, state="gathering")
    assert react(session, e.CoordinatorSeen(new)) == [e.Inspect(TASK.for_agents(), TASK.digest)]
    assert session.waits_for == ""


def test_changed_data_is_compared_with_the_present_task_or_with_the_next_one() -> None:
    session = up()
    assert react(session, e.DataChanged()) == []
    inspect = e.Inspect(TASK.for_agents(), TASK.digest)
    assert react(session, e.CoordinatorSeen(status(task=True))) == [inspect]
    session.handle(e.Inspected(TASK.digest, problem="no such file"), 0.0)
    assert react(session, e.DataChanged()) == [inspect]
    session.handle(e.Inspected(TASK.digest, samples=80, test_samples=20), 0.0)
    assert (session.status.problem, session.status.samples) == (None, 80)


def test_an_agent_names_what_it_waits_for() -> None:
    assert fresh().waits_for == ""  # the broker is not connected, which is shown already
    session = up()
    assert "no coordinator has connected" in session.waits_for
    session.handle(e.CoordinatorSeen(status(online=False)), 0.0)
    assert session.waits_for.startswith("the coordinator is offline")
