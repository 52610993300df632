"""The agent's session: orders, the models that they name, and the work; exact actions at times that the test chooses."""

from __future__ import annotations

import pytest

from covey.agent.device import events as e
from covey.agent.device.fetching import FETCHED_BYTES_PER_S, STALL_S, WorkState
from covey.agent.device.presence import PROGRESS_S
from covey.agent.policy import OwnersRules, Policy
from covey.shared.mqtt.link import Down, Up
from covey.shared.strategies.phase_names import EXCHANGES, TRAIN
from covey.shared.wire.messages import OrderMessage
from tests.agent.orders import MODEL, PART_BYTES, order, ref, rest, status
from tests.agent.sessions import PART, REF, SUBSCRIPTIONS, react, reported, up, without_status


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


@pytest.mark.parametrize(
    ("phase", "is_shown"), [(TRAIN, True), *((phase, False) for phase in EXCHANGES)]
)
def test_the_status_has_training_but_not_the_exchanges_of_a_sum(phase: str, is_shown: bool) -> None:
    session = up(models=[REF.digest])
    ordered = order(1, REF, phase=phase)
    begun = session.handle(e.OrderSeen(ordered), 0.0)
    assert e.StartWork(ordered) in begun
    assert session.status.busy == is_shown
    during = session.handle(e.Tick(), PROGRESS_S)
    assert e.SendReport(1) in session.handle(e.WorkDone(1), 5.0)
    for actions in (during, session.handle(e.Tick(), 5.0 + PROGRESS_S)):
        assert (without_status(actions) != actions) == is_shown


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
    assert session.handle(e.WorkerGone(1, "killed"), 0.0) == [
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


def test_a_model_that_does_not_come_although_its_order_did_is_shown_once() -> None:
    session = up()
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    shown = []
    for _ in range(6):
        assert session.wake_at is not None
        actions = session.handle(e.Tick(), session.wake_at)
        shown += [action.text for action in actions if isinstance(action, e.Notify)]
    [text] = shown
    assert "no part of its model" in text
    assert "broker doctor" in text


def test_orders_that_end_before_a_part_comes_are_reported_together() -> None:
    """A deadline may be shorter than the waits of one order."""
    session, shown = up(), []
    for step in range(1, 4):
        now = 20.0 * step
        session.handle(e.OrderSeen(order(step, ref(content=b"%d" % step))), now)
        session.handle(e.Tick(), now + PROGRESS_S)
        for action in session.handle(e.Tick(), session.wake_at or now):
            if isinstance(action, e.Notify):
                shown.append(action.text)
    assert len(shown) == 1
    assert "message_size_limit" in shown[0]


def test_the_parts_of_a_large_model_may_come_late() -> None:
    session = up()
    large = REF.model_copy(update={"size": 10 * FETCHED_BYTES_PER_S})
    session.handle(e.OrderSeen(order(1, large)), 0.0)
    session.handle(e.Tick(), PROGRESS_S)
    assert session.wake_at == STALL_S + 10


def test_a_model_that_left_the_disk_for_a_newer_one_is_fetched_again() -> None:
    session, other = up(models=[REF.digest]), ref("1", b"other" * 100)
    session.handle(e.OrderSeen(order(1, other)), 0.0)
    actions = react(session, e.OrderSeen(order(2, REF)))
    assert e.Subscribe((PART,)) in actions
    assert session.state is WorkState.FETCHING


def test_a_damaged_model_is_fetched_again_before_the_work_begins_again() -> None:
    session = up(models=[REF.digest])
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    assert e.Subscribe((PART,)) in session.handle(e.ModelDamaged(REF.digest), 1.0)
    assert e.StartWork(order(1, REF)) in session.handle(e.ModelReady("0", REF.digest), 2.0)


def test_a_model_that_does_not_come_is_subscribed_to_again_with_waits_that_double() -> None:
    session = up()
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(e.Tick(), PROGRESS_S)
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


def test_a_second_order_of_a_run_that_invites_all_takes_no_subscription() -> None:
    session = up()
    session.handle(e.CoordinatorSeen(status(delivery="all")), 0.0)
    react(session, e.OrderSeen(order(1, REF)))
    begun = react(session, e.ModelReady("0", REF.digest))
    assert begun == [e.StartWork(order(1, REF))]
    react(session, e.WorkDone(1))
    newer = ref("0", b"newer" * 100)
    asked = react(session, e.OrderSeen(order(2, newer, accepted=1)))
    assert not any(isinstance(one, e.Subscribe | e.Unsubscribe) for one in asked)


@pytest.mark.parametrize(
    "why",
    [
        e.ConditionsSeen("policy of this device: when: it is on battery"),
        e.Inspected("", problem="the data are gone"),
        e.OrderSeen(order(2, REF, accepted=1, training={"epochs": 50})),
    ],
)
def test_no_model_comes_to_an_agent_that_gets_no_work_whatever_the_delivery(why: e.Event) -> None:
    session = up(rules=OwnersRules(Policy(max_epochs=5)))
    session.handle(e.CoordinatorSeen(status(delivery="all")), 0.0)
    react(session, e.OrderSeen(order(1, REF)))
    react(session, e.ModelReady("0", REF.digest))
    react(session, e.WorkDone(1))
    react(session, e.OrderSeen(rest(accepted=1, closed=1)))
    if isinstance(why, e.Inspected):
        session.handle(e.DataReplaced(is_gone=True), 0.0)
    found = react(session, why)
    # the report of an order that is refused: it names the reason
    found += react(session, e.WorkDone(2))
    found += session.handle(e.Tick(), 60.0)
    changes = [one for one in found if isinstance(one, e.Subscribe | e.Unsubscribe)]
    assert changes == [e.Unsubscribe((PART,))]


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
