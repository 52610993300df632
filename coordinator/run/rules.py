"""The engine's rules for a scenario, and the participants of each round if a file lists them."""

from __future__ import annotations

import pathlib

from pydantic import StrictInt, TypeAdapter, ValidationError

from covey.coordinator.engine.cohort import Listed
from covey.coordinator.engine.rules import DeadlineRule, RoundRules
from covey.shared.errors import UserError
from covey.shared.scenario.fleet import Fleet
from covey.shared.scenario.rounds import AdaptiveDeadline
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name, newcomers, starting_agents
from covey.shared.strategies.base import TaskData

Rows = TypeAdapter(list[list[StrictInt]])  # of rounds.participants: agents by index
Indices = list[list[int]]


def rules_of(scenario: Scenario) -> RoundRules:
    """The engine's rules, with agents' names in place of indices.

    Raises UserError, before anything starts, for a method that cannot train on the task.
    """
    task = scenario.task
    strategy = scenario.strategy
    refusal = strategy.refuses(TaskData(task.features, task.kind))
    if refusal:
        raise UserError(f"method {strategy.name} is not for this task: {refusal}")
    rounds = scenario.rounds
    timing = rounds.timing
    is_simulated = scenario.fleet is not None
    # without `grace_s`, a round waits at most half of its deadline for the last reports
    patience_s = rounds.deadline_s / 2 if rounds.grace_s is None else None
    over_select = 1.0 if rounds.over_select == "auto" else rounds.over_select
    return RoundRules(
        seed=scenario.seed,
        rounds=rounds.count,
        participation=rounds.participation,
        agents=rounds.agents,
        over_select=over_select,
        auto_over_select=rounds.over_select == "auto",
        quorum=rounds.quorum,
        first_quorum=rounds.first_quorum,
        deadline_s=rounds.deadline_s,
        deadline=_deadline_rule(rounds.deadline),
        first_work_s=0.0 if is_simulated else timing.first_work_s,
        grace_s=rounds.grace_s,
        patience_s=patience_s,
        start_agents=_start_agents(scenario),
        start_wait_s=timing.start_wait_s if is_simulated else None,
        rollcall_s=timing.rollcall_s,
        absence_s=timing.absence_s,
        void_limit=timing.void_limit,
        participants=listed_participants(scenario),
        newcomers=newcomers(scenario),
        quarantine_after=scenario.aggregation.quarantine_after,
        buffer=rounds.buffer if rounds.mode == "buffered" else None,
        concurrent=rounds.concurrent,
    )


def _deadline_rule(deadline: AdaptiveDeadline | None) -> DeadlineRule | None:
    if deadline is None:
        return None
    return DeadlineRule(
        percentile=deadline.percentile,
        factor=deadline.factor,
        least_s=deadline.least_s,
        most_s=deadline.most_s,
    )


def _start_agents(scenario: Scenario) -> int:
    """How many agents the first round waits for."""
    asked_for = scenario.rounds.start_agents
    if asked_for:
        return asked_for
    if scenario.fleet is None:
        return 1
    return max(len(starting_agents(scenario)), 1)


def listed_participants(scenario: Scenario) -> Listed | None:
    """The participants of each round, if a file lists them. Raises UserError for a file that does not suit the fleet."""
    path = scenario.rounds.participants
    fleet = scenario.fleet
    if path is None:
        return None
    if fleet is None:
        raise UserError("rounds.participants counts simulated agents: expected a section fleet")
    rows = _read_rows(path)
    _check_agents(path, rows, fleet)
    expected = scenario.rounds.count
    if len(rows) < expected or not all(rows):
        listed_rounds = f"{len(rows)} rounds are listed"
        raise UserError(f"{path}: {listed_rounds}; expected {expected} that are not empty")
    return tuple(tuple(agent_name(i, fleet.agents) for i in row) for row in rows)


def _read_rows(path: str) -> Indices:
    content = pathlib.Path(path).read_bytes()
    try:
        return Rows.validate_json(content)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False)
        place = list(first["loc"])
        at = f"{first['msg']}, at {place}"
        raise UserError(f"{path}: expected a JSON list of lists of agent indices ({at})") from None


def _check_agents(path: str, rows: Indices, fleet: Fleet) -> None:
    """Raises UserError for a row that names an agent twice, and for agents that cannot take part in a round."""
    federated = fleet.agents - fleet.newcomers
    strangers: set[int] = set()
    for row in rows:
        strangers |= {i for i in row if not 0 <= i < federated}
    if strangers:
        what = f"agents {sorted(strangers)} do not exist or are newcomers"
        raise UserError(f"{path}: {what}; 0 to {federated - 1} may be named")
    for number, row in enumerate(rows):
        if len(set(row)) < len(row):
            raise UserError(f"{path}: round {number} names an agent twice; name it once")
