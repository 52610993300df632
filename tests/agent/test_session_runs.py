"""The agent's session: what it does where the coordinator names another run."""

from __future__ import annotations

from covey.agent.device import events as e
from covey.agent.device.delivery import NUDGE_S
from covey.shared.mqtt.link import Down, Up
from tests.agent.orders import order, rest, status
from tests.agent.sessions import REF, react, reported, up


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
