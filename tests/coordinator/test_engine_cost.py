"""An event costs the round engine the same, however many agents there are.

Costs are compared within one run: processor time per event with a small and with a large fleet.
"""

from __future__ import annotations

import time

from covey.coordinator.engine.events import (
    Event,
    Failed,
    Folded,
    Joined,
    Left,
    Open,
    Planned,
    Reported,
    Tick,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.shared.strategies.base import Phase

COHORT = 100
SMALL, LARGE = 200, 20_000
MOST = 5.0  # a cost in proportion to the fleet would be 100 times as high


def events_of_a_round(engine: RoundEngine, step: int, cohort: tuple[str, ...]) -> list[Event]:
    """A tenth of the cohort fails, another vanishes and returns, and most of the others report."""
    events: list[Event] = []
    for client in cohort[:10]:
        events.append(Failed(client, step, "no memory"))
    for client in cohort[10:20]:
        events += [Left(client), Joined(client)]
    for client in cohort[20:70]:
        events.append(Reported(client, step))
    outsiders = sorted(engine.known - set(cohort))[:20]
    for client in outsiders:
        events += [Left(client), Joined(client), Reported(client, step)]
    return events


def seconds_per_event(agents: int) -> float:
    """Processor time for one event of a round and the question when to wake up, the best of three rounds."""
    names = [f"agent-{number:05}" for number in range(agents)]
    rules = RoundRules(start_agents=agents, participation=COHORT / agents, deadline_s=100.0)
    engine = RoundEngine(rules)
    for name in names:
        engine.handle(Joined(name), 0.0)
    best = float("inf")
    for _ in range(3):
        (opened, *_) = engine.handle(Planned(Phase()), 0.0)
        assert isinstance(opened, Open)
        assert len(opened.cohort) == COHORT
        events = events_of_a_round(engine, opened.step, opened.cohort)
        begin = time.process_time()
        for event in events:
            engine.handle(event, 1.0)
            assert engine.wake_at is not None
        took = time.process_time() - begin
        best = min(best, took / len(events))
        close_by_deadline(engine)
    return best


def close_by_deadline(engine: RoundEngine) -> None:
    """Fold the round and ask for the next plan."""
    engine.handle(Tick(), 200.0)
    engine.handle(Folded(), 0.0)


def test_an_event_costs_the_same_in_a_fleet_a_hundred_times_as_large() -> None:
    small = seconds_per_event(SMALL)
    large = seconds_per_event(LARGE)
    assert large < MOST * small, (
        f"{small * 1e6:.0f} us with {SMALL} agents, {large * 1e6:.0f} us with {LARGE}"
    )
