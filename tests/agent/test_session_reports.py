"""The agent's session: a report is kept and sent until the coordinator has it for good."""

from __future__ import annotations

from covey.agent.device import events as e
from covey.agent.device.delivery import ANSWERED_BYTES_PER_S, NUDGE_S, RETRY_S
from covey.agent.device.fetching import WorkState
from covey.agent.device.session import Session
from covey.shared.mqtt.link import Down, Up
from tests.agent.orders import order, rest, status
from tests.agent.sessions import REF, react, reported, up


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


def test_a_restored_coordinator_that_asks_for_a_later_step_gets_work_from_before_what_it_lost() -> (
    None
):
    """In buffered rounds each order has a number of its own: the agent's next one may be greater than the lost one."""
    session = accepted_once(step=3)
    later = order(4, REF, accepted=0, again=2)
    assert react(session, e.OrderSeen(later))[0] == e.GoBack(0)
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
    actions = session.handle(e.OutboxDamaged(1), 1.5)
    assert e.StartWork(order(1, REF)) in actions
    assert e.StopSending() in actions
