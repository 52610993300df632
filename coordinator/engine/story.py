"""What happened to each agent, in order, in sentences for a person. Pure: time is an argument.

The engine adds a sentence for everything that a person would ask about: who came and went, invitations, reports, refusals
and quarantine. The story is bounded: when it is full, the oldest sentences are forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from covey.coordinator.engine.events import (
    Action,
    Ask,
    Close,
    Event,
    Failed,
    Forgotten,
    Give,
    Ignored,
    Invite,
    Open,
    Quarantined,
    Refused,
    Released,
    Reported,
    ReportedTogether,
    Rested,
    SetAside,
    Unreadable,
    Void,
)
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.phase_names import occasion

MAX_NAMES = 100_000  # of agents in all kept sentences together; bounds the memory


@dataclass(frozen=True)
class StoryLine:
    """One sentence about some agents."""

    at: float  # when it happened, in the engine's time
    agents: Collection[ClientId]
    text: str


class Story:
    """The newest sentences about all agents."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._lines: deque[StoryLine] = deque()
        self._names = 0  # of agents in all lines

    def __repr__(self) -> str:
        return f"<Story: {len(self._lines)} lines>"

    def of(self, agent: ClientId) -> list[StoryLine]:
        """The sentences about one agent, in order, as far as they are not forgotten."""
        return [line for line in self._lines if agent in line.agents]

    def add(self, now: float, agents: Collection[ClientId], text: str) -> None:
        """Add a sentence about these agents."""
        if not agents:
            return
        self._lines.append(StoryLine(now, agents, text))
        self._names += len(agents)
        while self._names > self._limit and len(self._lines) > 1:
            forgotten = self._lines.popleft()
            self._names -= len(forgotten.agents)

    def add_all(self, now: float, event: Event, actions: Sequence[Action]) -> None:
        """Add what there is to say about an event and what the engine decided about it."""
        is_ignored = any(isinstance(action, Ignored) for action in actions)
        if not is_ignored:
            for agents, text in _of_event(event):
                self.add(now, agents, text)
        for action in actions:
            for agents, text in _of_action(action):
                self.add(now, agents, text)


Sentences = Iterator[tuple[Collection[ClientId], str]]


def _of_event(event: Event) -> Sentences:
    match event:
        case Reported(client, step):
            yield (client,), f"Its report of step {step} was accepted."
        case ReportedTogether(clients, step):
            yield clients, f"Its report of step {step} was accepted in the sum of an aggregator."
        case Failed(client, step, why):
            yield (client,), f"It could not do the work of step {step}: {why}"
        case Refused(client, why):
            yield (client,), f"A report was refused: {why}"
        case SetAside(reasons):
            for client, why in reasons.items():
                yield (client,), f"Its report was set aside at the fold: {why}"
        case Unreadable(clients, step):
            yield clients, f"Its report of step {step} cannot be read; it is asked for it again."


def _of_action(action: Action) -> Sentences:
    match action:
        case Open(step=step, round=number, phase=phase, cohort=cohort):
            when = occasion(phase.name, number)
            yield cohort, f"Invited to {when}: step {step}, {phase.name}."
        case Invite(step, client):
            yield (client,), f"Invited to step {step}, in the place of another agent."
        case Give(orders):
            for client, step in orders:
                yield (client,), f"Given order {step}."
        case Close(step, reporters, missing):
            yield reporters, f"Step {step} closed with its report."
            yield missing, f"Step {step} closed without its report."
        case Void(step, why, cohort):
            yield cohort, f"Step {step} came to nothing: {why}"
        case Ask(clients):
            yield clients, "Was silent until the step closed; asked whether it is online."
        case Quarantined(client, refused, why):
            yield (client,), f"Quarantined after refused reports in {refused} steps: {why}"
        case Rested(client, kind, _, _, why):
            yield (client,), f"Not invited for some rounds, because it is {kind}, {why}."
        case Released(client):
            yield (client,), "Released from quarantine."
        case Forgotten(client):
            yield (client,), "Forgotten by the operator."
        case Ignored(Reported(client, step) | Failed(client, step), why):
            yield (client,), f"Its report of step {step} was ignored: {why}"
