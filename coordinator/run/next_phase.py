"""Which phase comes next: the run's own ones first, then what the strategy asks for. Pure."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal

from covey.coordinator.engine.members import Members
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.run.run_state import RunState
from covey.shared.candidate_names import DELIVERED
from covey.shared.numerics.mixture import REFITS
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, View
from covey.shared.strategies.phase_names import EVALUATE, MOMENTS


def next_phase(
    scenario: Scenario, state: Any, facts: RunState, *, engine: RoundEngine, view: View
) -> Phase | None:
    """The next phase; None where the run is complete.

    Args:
        state: the strategy's.
        facts: the run's memory.
        engine: knows the agents, and those of them that take part in nothing before the last round.
        view: what it shows of the run: rounds, and who is present.
    """
    if scenario.task.asks_fleet_for and facts.scaling is None:
        return Phase(MOMENTS, "all", ends_round=False)
    phase: Phase | None
    sums = scenario.sums
    if sums is not None and sums.is_evaluating(state):
        return _evaluation(scenario, state, view)
    if view.round < view.rounds:
        phase = scenario.method.plan(state, view)
    else:
        phase = _entry(scenario, state, view, engine.rules.newcomers)
    is_trained = view.round > max(facts.evaluated, 0)
    if (phase is None or _evaluation_is_due(scenario, view)) and is_trained:
        return _evaluation(scenario, state, view)
    if phase is None and 0 < len(facts.fleets) <= REFITS:
        return _evaluation(scenario, state, view, _judges(engine.members, facts.evaluated))
    return phase


def _evaluation(
    scenario: Scenario,
    state: Any,
    view: View,
    agents: tuple[ClientId, ...] | Literal["all"] = "all",
) -> Phase:
    """The next phase of an evaluation; under secure sums of all agents, which have to be the same ones again."""
    if scenario.sums is None:
        return Phase(EVALUATE, agents, ends_round=False, may_be_empty=True)
    return scenario.sums.plan_evaluation(state, view)


def _judges(members: Members, evaluated: int) -> tuple[ClientId, ...]:
    """The agents that have answered the last evaluation: these get the fleet's weights."""
    judges = [
        one.id
        for one in members
        if one.evaluation and DELIVERED in one.evaluation and one.evaluated_in == evaluated
    ]
    return tuple(sorted(judges))


def _evaluation_is_due(scenario: Scenario, view: View) -> bool:
    """Between rounds, every `evaluation.every` of them; the last evaluation comes after all rounds."""
    every = scenario.evaluation.every
    between_rounds = 0 < view.round < view.rounds
    if every == 0 or not between_rounds:
        return False
    return view.round % every == 0


def _entry(scenario: Scenario, state: Any, view: View, newcomers: Set[ClientId]) -> Phase | None:
    """After the last round: what the strategy needs from newcomers before it can serve them, and nothing else."""
    if not newcomers:
        return None
    phase = scenario.method.plan(state, view)
    if phase is None or phase.ends_round:
        return None
    if isinstance(phase.cohort, str):  # all agents, or a sample
        return None
    if newcomers.isdisjoint(phase.cohort):
        return None
    return phase
