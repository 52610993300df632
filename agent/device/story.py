"""What happened to this agent, in order, in sentences for a person. Pure: time is an argument.

The session adds a sentence for everything that a person would ask about: connections, invitations, models, work, reports
and refusals. The story is bounded: when it is full, the oldest sentence is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from covey.agent.device.events import (
    Actions,
    CancelWork,
    CommitMemory,
    ConditionsSeen,
    CoordinatorSeen,
    DropReport,
    Event,
    GoBack,
    Inspected,
    LoseMemory,
    ModelDamaged,
    ModelReady,
    ModelSettled,
    Notify,
    OrderRefused,
    OutboxDamaged,
    RefusalSeen,
    Sent,
    StartWork,
    SwitchRun,
    WorkDone,
    WorkerGone,
    YieldId,
)
from covey.shared.mqtt.link import Down, Echo, Up
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.strategies.phase_names import occasion
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.messages import OrderMessage

MAX_LINES = 200


@dataclass(frozen=True)
class StorySentence:
    """One sentence. Repetitions without anything in between are counted."""

    at: float  # when it happened last, in the session's time
    text: str
    times: int = 1


@dataclass(frozen=True)
class StoryContext:
    """What the sentences need to know besides an event and its actions."""

    coordinator: CoordinatorStatus | None  # its newest status
    order: OrderMessage | None  # what the agent works on
    accepted: int  # newest step whose report was accepted


class Story:
    """The newest sentences, at most `limit`."""

    def __init__(self, limit: int = MAX_LINES) -> None:
        self._lines: deque[StorySentence] = deque(maxlen=limit)

    def __repr__(self) -> str:
        return f"<Story: {len(self._lines)} lines>"

    @property
    def lines(self) -> tuple[StorySentence, ...]:
        return tuple(self._lines)

    def add(self, text: str, now: float) -> None:
        """Add a sentence that became true at `now`."""
        if self._lines and self._lines[-1].text == text:
            last = self._lines.pop()
            self._lines.append(replace(last, at=now, times=last.times + 1))
        else:
            self._lines.append(StorySentence(now, text))


def sentences(
    event: Event, actions: Actions, before: StoryContext, after: StoryContext
) -> Iterator[str]:
    """What a person would say about an event and what the session did about it."""
    if event_sentence := _of_event(event, before):
        yield event_sentence
    if isinstance(event, CoordinatorSeen):
        yield from _of_coordinator(before.coordinator, after.coordinator)
    for action in actions:
        if isinstance(action, SwitchRun):
            yield f"Joined run {action.run}."
    if after.order is not None and after.order != before.order:
        yield from _of_invitation(before.order, after.order)
    for action in actions:
        match action:
            case CancelWork():
                yield "Cancelled the work: the coordinator no longer needs it."
            case StartWork(order):
                yield f"Started the work of step {order.step}."
            case OrderRefused(step, why):
                yield f"Refused the order of step {step}: {why}"
            case CommitMemory(step):
                yield f"The coordinator accepted the report of step {step}."
            case DropReport(step) if step > after.accepted:
                yield f"Dropped the report of step {step}: the coordinator closed the step without it."
            case RefusalSeen(why):
                yield f"The coordinator refused a report: {why}"
            case GoBack(accepted):
                yield f"The coordinator lost what it accepted after step {accepted}."
            case LoseMemory(accepted):
                yield (
                    f"The coordinator accepted step {accepted}, but the state on this disk is older: "
                    "the agent's memory of earlier work is lost."
                )
            case Notify(text) if isinstance(event, TopicsRefused | Echo):
                yield text[:1].upper() + text[1:]
            case Notify(text):
                yield f"Staying out of the run: {text}"
            case YieldId():
                yield "Another agent with this id started earlier, so this one ends."


def _of_event(event: Event, before: StoryContext) -> str | None:
    match event:
        case Up():
            return "Connected to the broker."
        case Down(why=why):
            return f"Lost the connection to the broker: {why}"
        case Inspected(problem=None, samples=samples, test_samples=test_samples):
            return f"The data fits the task: {samples} training and {test_samples} test samples."
        case ModelReady(key) if before.order is not None:
            return f"Fetched model {key}."
        case ModelDamaged():
            return "A model on disk is damaged; it is fetched again."
        case WorkDone(step):
            return f"Finished the work of step {step}; the report is in the outbox."
        case WorkerGone(step, why):
            return f"The work of step {step} failed: {why}"
        case Sent(step, whole=True):
            return f"Sent the report of step {step}."
        case Sent(step):
            return f"The link broke while the report of step {step} was being sent."
        case ConditionsSeen(""):
            return "The owner's conditions for work hold."
        case ModelSettled(model) if model.note:
            return f"Model {model.note}."
        case OutboxDamaged(step):
            return f"The report of step {step} is damaged on disk."
    return None


def _of_coordinator(
    before: CoordinatorStatus | None, after: CoordinatorStatus | None
) -> Iterator[str]:
    was = (before.online, before.run) if before is not None else None
    if after is None or was == (after.online, after.run):
        return
    if after.online:
        yield f"The coordinator is online with run {after.run}."
    else:
        yield "The coordinator is offline."


def _of_invitation(before: OrderMessage | None, order: OrderMessage) -> Iterator[str]:
    """An order that is published again, with another count of restarts, is the same invitation."""
    if order.work is None:
        return
    if before is not None and (before.run, before.step) == (order.run, order.step):
        return
    phase = order.work.phase
    when = occasion(phase, order.work.round)
    yield f"Invited to {when} of run {order.run}: step {order.step}, {phase}."
