"""The agent's session: its connection, its id and its status, at times that the test chooses."""

from __future__ import annotations

from typing import Any

import pytest

from covey.agent.device import events as e
from covey.agent.device.presence import PROGRESS_S
from covey.agent.device.session import Session
from covey.agent.policy import OwnersRules, Policy
from covey.shared.mqtt.link import Down, Up
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.roll_call import ROLL_SPREAD_S
from tests.agent.orders import TASK, order, rest, status
from tests.agent.sessions import REF, SUBSCRIPTIONS, TOPICS, fresh, react, up, without_status


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


def test_another_program_with_the_id_is_gone_once_it_was_silent_for_an_hour() -> None:
    session = up()
    for now in (100.0, 200.0):
        session.handle(e.OwnStatusSeen(other_status(session, session="z")), now)
    assert session.status.twins == 2
    assert session.wake_at == 3800.0
    session.handle(e.Tick(), 3799.0)
    assert session.status.twins == 2
    assert session.handle(e.Tick(), 3800.0) == [e.PublishStatus(session.status)]
    assert session.status.twins == 0


def test_a_session_answers_a_younger_one_with_its_status() -> None:
    session = up()
    assert session.handle(e.OwnStatusSeen(other_status(session, session="z")), 0.0) == [
        e.PublishStatus(session.status)
    ]


def test_a_session_does_not_answer_each_message_of_a_flood() -> None:
    session = up()
    flood = e.OwnStatusSeen(other_status(session, session="z"))
    sent = [one for now in range(2000) for one in session.handle(flood, now / 1000)]
    assert 2 <= len(sent) <= 4


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


def test_the_status_is_published_soon_after_work_begins_and_not_otherwise() -> None:
    session = up(models=[REF.digest])
    assert session.handle(e.OrderSeen(rest(cluster=3, closed=1)), 0.0) == [e.SwitchRun("run-1")]
    assert session.wake_at is None
    session.handle(e.OrderSeen(order(2, REF, cluster=3)), 3.0)
    assert session.wake_at == 3.0 + PROGRESS_S
    assert session.handle(e.Tick(), 3.0 + PROGRESS_S) == [e.PublishStatus(session.status)]
    assert session.status.busy


def test_work_that_is_over_at_once_takes_no_status() -> None:
    session = up(models=[REF.digest])
    begun = session.handle(e.OrderSeen(order(1, REF)), 0.0)
    done = session.handle(e.WorkDone(1), 0.5)
    assert without_status([*begun, *done]) == [*begun, *done]
    assert session.handle(e.Tick(), PROGRESS_S) == []


def test_a_session_publishes_its_status_after_every_connection_to_replace_its_last_will() -> None:
    session = up()
    session.handle(Down("gone"), 1.0)
    assert session.handle(Up(), 2.0) == [SUBSCRIPTIONS, e.PublishStatus(session.status)]


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


def test_a_new_agent_does_not_compare_its_data_with_the_task_of_a_run_that_is_over() -> None:
    session = up()
    left = status(task=True, state="finished", name="old")
    assert react(session, e.CoordinatorSeen(left, retained=True)) == []
    assert session.waits_for == "run old is finished; waiting for the next one"
    new = status("e2", task=True, state="gathering")
    assert react(session, e.CoordinatorSeen(new)) == [e.Inspect(TASK.for_agents(), TASK.digest)]
    assert session.waits_for == ""


def test_a_run_that_was_given_up_is_called_so() -> None:
    session = up()
    left = status(task=True, state="stopped", given_up=True, name="old")
    session.handle(e.CoordinatorSeen(left, retained=True), 0.0)
    assert session.waits_for == "run old was given up; waiting for the next one"


def test_changed_data_is_compared_with_the_present_task_or_with_the_next_one() -> None:
    session = up()
    assert react(session, e.DataReplaced()) == []
    inspect = e.Inspect(TASK.for_agents(), TASK.digest)
    assert react(session, e.CoordinatorSeen(status(task=True))) == [inspect]
    session.handle(e.Inspected(TASK.digest, problem="no such file"), 0.0)
    assert react(session, e.DataReplaced()) == [inspect]
    session.handle(e.Inspected(TASK.digest, samples=80, test_samples=20), 0.0)
    assert (session.status.problem, session.status.samples) == (None, 80)


@pytest.mark.parametrize("left", [{"online": False}, {"task": True, "state": "finished"}])
def test_between_runs_it_is_known_that_the_data_is_gone(left: dict[str, Any]) -> None:
    """Before: the device was shown as idle until the next run."""
    session = up()
    session.handle(e.CoordinatorSeen(status(task=True)), 0.0)
    session.handle(e.Inspected(TASK.digest, samples=80, test_samples=20), 0.0)
    session.handle(e.CoordinatorSeen(status(**left)), 0.0)
    react(session, e.DataReplaced(is_gone=True))
    assert session.status.problem == "the given path does not exist, or is empty"
    react(session, e.DataReplaced())
    assert session.status.problem is None
    inspect = e.Inspect(TASK.for_agents(), TASK.digest)
    assert inspect in react(session, e.CoordinatorSeen(status("e2", task=True)))


def test_an_agent_names_what_it_waits_for() -> None:
    assert fresh().waits_for == ""  # the broker is not connected, which is shown already
    session = up()
    assert "no coordinator has connected" in session.waits_for
    session.handle(e.CoordinatorSeen(status(online=False)), 0.0)
    assert session.waits_for.startswith("the coordinator is offline")


@pytest.mark.parametrize("number", [0, 99])
def test_a_coordinator_of_another_number_is_named_once_and_gets_no_work(number: int) -> None:
    session = up()
    status = CoordinatorStatus(
        online=True, epoch="c.1", run="r", format=number, version="1.2.3", task={"a": 1}
    )
    [said] = [
        action
        for action in session.handle(e.CoordinatorSeen(status), 0.0)
        if isinstance(action, e.Notify)
    ]
    assert f"the coordinator speaks format {number} (Covey 1.2.3), this agent" in said.text
    assert session.status.problem == said.text
    again = session.handle(e.CoordinatorSeen(status.model_copy(update={"round": 1})), 1.0)
    assert not any(isinstance(action, e.Notify | e.Inspect) for action in again)


def test_an_owner_learns_once_that_a_report_was_refused_and_why() -> None:
    session = up()
    refused = order(1).model_copy(update={"refused": "the loss is nan"})
    assert e.RefusalSeen("the loss is nan") in session.handle(e.OrderSeen(refused), 0.0)
    later = refused.model_copy(update={"serial": refused.serial + 1})
    assert e.RefusalSeen("the loss is nan") not in session.handle(e.OrderSeen(later), 1.0)
    assert any("refused a report: the loss is nan" in line.text for line in session.story())


def test_one_more_task_than_the_owner_allows_in_a_day_is_neither_compared_nor_worked_on() -> None:
    rules = OwnersRules(Policy(samples="hidden", max_tasks=1))
    session = up(rules=rules)
    first = react(session, e.CoordinatorSeen(status(task=True)), 0.0)
    assert any(isinstance(action, e.Inspect) for action in first)
    other = {**TASK.for_agents(), "target": "age"}
    seen = e.CoordinatorSeen(
        status("e2", task=True, task_digest="t2").model_copy(update={"task": other})
    )
    refused = "policy of this device: max_tasks: 1 different tasks within a day are allowed"
    assert e.Notify(refused) in react(session, seen, 1.0)
    assert session.status.problem == refused
    ordered = session.handle(e.OrderSeen(order(1, REF, task=other)), 2.0)
    assert e.OrderRefused(1, refused) in ordered
    assert not any(isinstance(action, e.StartWork) for action in ordered)
