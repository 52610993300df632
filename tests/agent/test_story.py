"""The story of an agent: what its session did, in sentences for a person."""

from __future__ import annotations

from covey.agent.device import events as e
from covey.agent.device.session import Session
from covey.agent.device.story import MAX_LINES, Story, StorySentence
from covey.agent.policy import OwnersRules, Policy
from covey.shared.mqtt.link import Down, Up
from covey.shared.wire.topics import Topics
from tests.agent.orders import TASK, order, ref, rest, status

REF = ref()


def fresh(**options: object) -> Session:
    return Session("pi", Topics("default"), session="s1", **options)  # type: ignore[arg-type]


def sentences(session: Session) -> list[str]:
    return [line.text for line in session.story()]


def test_the_story_of_a_whole_round_is_in_order() -> None:
    session = fresh()
    session.handle(Up(), 0.0)
    session.handle(e.CoordinatorSeen(status(task=True)), 1.0)
    session.handle(e.Inspected(TASK.digest, 80, 20), 2.0)
    session.handle(e.OrderSeen(order(1, REF)), 3.0)
    session.handle(e.ModelReady("0", REF.digest), 4.0)
    session.handle(e.WorkDone(1), 5.0)
    session.handle(e.Sent(1), 6.0)
    session.handle(e.OrderSeen(rest(accepted=1, closed=1)), 7.0)
    assert sentences(session) == [
        "Connected to the broker.",
        "The coordinator is online with run run-1.",
        "The data fits the task: 80 training and 20 test samples.",
        "Joined run run-1.",
        "Invited to round 1 of run run-1: step 1, train.",
        "Fetched model 0.",
        "Started the work of step 1.",
        "Finished the work of step 1; the report is in the outbox.",
        "Sent the report of step 1.",
        "The coordinator accepted the report of step 1.",
    ]
    assert [line.at for line in session.story()] == [0, 1, 2, 3, 3, 4, 4, 5, 6, 7]


def test_the_story_names_a_lost_link_and_a_report_that_came_too_late() -> None:
    session = fresh(models=[REF.digest])
    session.handle(Up(), 0.0)
    session.handle(e.OrderSeen(order(1, REF)), 1.0)
    session.handle(Down("timed out"), 2.0)
    session.handle(e.WorkDone(1), 3.0)
    session.handle(Up(), 4.0)
    session.handle(e.OrderSeen(rest(closed=1)), 5.0)
    assert sentences(session)[-5:] == [
        "Started the work of step 1.",
        "Lost the connection to the broker: timed out",
        "Finished the work of step 1; the report is in the outbox.",
        "Connected to the broker.",
        "Dropped the report of step 1: the coordinator closed the step without it.",
    ]


def test_the_story_names_a_refused_order_and_the_rule() -> None:
    session = fresh(rules=OwnersRules(Policy(refuse_phases=("train",))))
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    assert sentences(session)[1:] == [
        "Invited to round 1 of run run-1: step 1, train.",
        "Refused the order of step 1: policy of this device: refuse_phases: the phase train is refused",
    ]


def test_the_story_of_data_that_does_not_fit_has_the_detail_for_the_terminal() -> None:
    session = fresh()
    session.handle(e.CoordinatorSeen(status(task=True)), 0.0)
    session.handle(e.Inspected(TASK.digest, problem="no column", detail="no column y"), 1.0)
    assert sentences(session)[-1] == "Staying out of the run: no column y"


def test_an_order_that_is_published_again_is_one_invitation() -> None:
    session = fresh()
    session.handle(e.OrderSeen(order(1, REF)), 0.0)
    session.handle(e.OrderSeen(order(1, REF, again=1)), 1.0)
    assert sentences(session) == [
        "Joined run run-1.",
        "Invited to round 1 of run run-1: step 1, train.",
    ]


def test_the_story_names_a_coordinator_that_lost_an_accepted_report() -> None:
    asked = order(2, REF, accepted=1, again=2)
    assert asked.work is not None
    kept = e.Outboxed("run-1", accepted=2, kept=2, work=asked.work.digest, confirmed=1)
    session = fresh(outboxed=kept)
    session.handle(e.OrderSeen(asked), 0.0)
    assert sentences(session) == ["The coordinator lost what it accepted after step 1."]


def test_repetitions_are_counted_with_the_time_of_the_last() -> None:
    session = fresh()
    for now in (1.0, 2.0, 3.0):
        session.handle(Down("refused"), now)
    assert session.story() == (StorySentence(3.0, "Lost the connection to the broker: refused", 3),)


def test_the_story_is_bounded_and_forgets_the_oldest_first() -> None:
    story = Story()
    for step in range(MAX_LINES + 10):
        story.add(f"step {step}", float(step))
    assert len(story.lines) == MAX_LINES
    assert story.lines[0].text == "step 10"


def test_an_evaluation_belongs_to_the_round_before_it() -> None:
    session = fresh()
    session.handle(Up(), 0.0)
    session.handle(e.CoordinatorSeen(status(task=True)), 1.0)
    session.handle(e.OrderSeen(order(7, REF, round_=5, phase="evaluate")), 2.0)
    assert sentences(session)[-1] == (
        "Invited to the evaluation after round 5 of run run-1: step 7, evaluate."
    )
