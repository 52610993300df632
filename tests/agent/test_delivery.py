"""The delivery of a report: its table of transitions, and sendings with exact times."""

from __future__ import annotations

import random

import pytest

from covey.agent.device.delivery import NUDGE_S, TRANSITIONS, Cause, Delivery, ReportState
from covey.agent.device.events import (
    CommitMemory,
    DropReport,
    GoBack,
    Outboxed,
    SendReport,
    StopSending,
)
from covey.shared.wire.messages import OrderMessage
from tests.agent.orders import order, ref, rest

WORK = bytes(16)


def delivery(step: int = 0) -> Delivery:
    """A delivery with a connected link, for a run of which step 1 was accepted.

    `step`: of a report that lies in the outbox at the start; 0 for none.
    """
    jitter = random.Random(0)  # noqa: S311 - spreads load, guards nothing
    made = Delivery(Outboxed("run-1", accepted=1, step=step), jitter)
    made.link_up(0.0)
    return made


def test_every_state_can_be_reached_and_left() -> None:
    assert set(TRANSITIONS) == set(ReportState)
    reached = {state for row in TRANSITIONS.values() for state in row.values()}
    assert reached == set(ReportState)


def test_every_cause_occurs() -> None:
    assert {cause for row in TRANSITIONS.values() for cause in row} == set(Cause)


@pytest.mark.parametrize("cause", Cause)
def test_a_sending_ends_in_the_outbox_before_anything_else_happens_to_the_report(
    cause: Cause,
) -> None:
    for state in (ReportState.SENDING, ReportState.SENDING_AGAIN):
        next_state = TRANSITIONS[state].get(cause)
        assert next_state in (None, ReportState.WAITING, ReportState.SENDING_AGAIN)


def test_a_report_is_sent_accepted_and_dropped_when_its_step_is_closed() -> None:
    machine = delivery()
    assert machine.made(2, WORK, 0.0) == [SendReport(2)]
    assert machine.sent(2, True, 1.0) == []
    assert machine.reconcile(rest(accepted=2, closed=1)) == [CommitMemory(2)]
    assert (machine.state, machine.undecided) == (ReportState.KEPT, 0)
    assert machine.reconcile(rest(accepted=2, closed=2)) == [DropReport(2)]
    assert (machine.state, machine.step) == (ReportState.NONE, 0)


def test_an_acceptance_during_a_sending_stops_it() -> None:
    machine = delivery()
    machine.made(2, WORK, 0.0)
    assert machine.reconcile(rest(accepted=2, closed=1)) == [StopSending(), CommitMemory(2)]


def test_a_report_from_the_disk_is_sent_after_a_short_wait() -> None:
    machine = delivery(step=2)
    assert machine.wake_at == NUDGE_S
    assert machine.tick(NUDGE_S) == [SendReport(2)]
    assert machine.link_lost() == [StopSending()]
    assert machine.state is ReportState.WAITING


def test_nothing_is_sent_while_the_coordinator_is_offline() -> None:
    machine = delivery()
    machine.coordinator_offline = True
    assert machine.made(2, WORK, 0.0) == []
    assert machine.undecided == 2


OF_THE_COPY, OF_THE_ORIGINAL = (
    order(2, ref(content=content), accepted=1) for content in (b"a", b"b")
)


def test_a_report_that_waits_is_dropped_if_its_step_now_asks_for_other_work() -> None:
    machine = delivery()
    assert OF_THE_COPY.work is not None
    machine.made(2, OF_THE_COPY.work.digest, 0.0)
    assert machine.reconcile(OF_THE_COPY) == []
    assert machine.reconcile(OF_THE_ORIGINAL) == [StopSending(), DropReport(2)]
    assert machine.is_open(OF_THE_ORIGINAL)


@pytest.mark.parametrize(
    ("asked", "state"),
    [(OF_THE_COPY, ReportState.WAITING), (OF_THE_ORIGINAL, ReportState.NONE)],
    ids=["the same work", "other work"],
)
def test_an_accepted_report_is_recalled_for_its_own_work_alone(
    asked: OrderMessage, state: ReportState
) -> None:
    machine = delivery()
    assert OF_THE_COPY.work is not None
    machine.made(2, OF_THE_COPY.work.digest, 0.0)
    machine.reconcile(rest(accepted=2, closed=1))
    assert machine.reconcile(asked.model_copy(update={"again": 1})) == [GoBack(1)]
    assert machine.state is state
