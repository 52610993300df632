"""What the tests of the round engine share."""

import json
from typing import Any

from covey.coordinator.engine.events import Action, Event, Joined, Open, Planned, PlanPhase
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.shared.strategies.base import Phase, View

TRAIN = Phase()
ALL = Phase("warm-up", "all", ends_round=False)
LINGER: dict[str, Any] = {"deadline_s": 30.0, "rollcall_s": 10.0}


def gathered(*clients: str, **rules: Any) -> RoundEngine:
    """An engine that waits for the answer to its first `PlanPhase`."""
    engine = RoundEngine(RoundRules(**{**LINGER, "start_agents": len(clients), **rules}))
    actions = [action for client in clients for action in engine.handle(Joined(client), 0.0)]
    early = tuple(sorted(set(clients) - engine.rules.newcomers))
    assert actions == [PlanPhase(View(0, engine.rules.rounds, 0, early))]
    return engine


def opened(*clients: str, phase: Phase = TRAIN, **rules: Any) -> RoundEngine:
    """An engine with step 1 open since 0.0."""
    engine = gathered(*clients, **rules)
    (first, *rest) = engine.handle(Planned(phase), 0.0)
    assert isinstance(first, Open)
    assert rest == []
    return engine


def cohort(engine: RoundEngine) -> list[str]:
    """Who is invited to the open step, in order of invitation."""
    assert engine.step is not None
    return list(engine.step.cohort)


def feed(engine: RoundEngine, now: float, *events: Event) -> list[Action]:
    actions: list[Action] = []
    for event in events:
        actions += engine.handle(event, now)
        check_what_is_kept(engine)
    return actions


def check_what_is_kept(engine: RoundEngine) -> None:
    """The engine keeps some sets up to date, so that no event costs a look at the whole fleet: counting gives the same."""
    members = engine.members
    trusted = engine.present - engine.quarantined.keys()
    assert members.trusted == trusted
    assert members.barred == members.by_agent(lambda one: one.quarantine).keys()
    assert members.troubled == members.by_agent(lambda one: one.trouble).keys()
    leaving = members.by_agent(lambda one: one.leaves_at)
    assert members.next_leaves_at == min(leaving.values(), default=None)
    step = engine.step
    if step is None:
        return
    invited = set(step.cohort)
    assert step.awaited == (invited & engine.present) - step.reported - step.failed.keys()
    free = [client for client in step.spare if client in trusted - invited]
    assert step.free.first(trusted, invited) == next(iter(free), None)


def restarted(engine: RoundEngine, *reported: str, now: float) -> tuple[RoundEngine, list[Action]]:
    """The engine after a kill: its snapshot through JSON, the reports from the spool."""
    return RoundEngine.restore(
        engine.rules, json.loads(json.dumps(engine.snapshot())), reported, now
    )
