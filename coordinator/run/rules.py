"""The engine's rules for a scenario, and the participants of each round if a file lists them."""

from __future__ import annotations

import pathlib

from pydantic import StrictInt, TypeAdapter, ValidationError

from covey.coordinator.engine.rules import Rules
from covey.coordinator.engine.sampling import Listed
from covey.shared.errors import UserError
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name, newcomers, starting_agents

Rows = TypeAdapter(list[list[StrictInt]])  # of rounds.participants: agents by index


def rules_of(scenario: Scenario) -> Rules:
    """The engine's rules, with agents' names in place of indices."""
    rounds, fleet = scenario.rounds, scenario.fleet
    start = rounds.start_agents or (len(starting_agents(scenario)) if fleet is not None else 1)
    return Rules(
        seed=scenario.seed,
        rounds=rounds.count,
        participation=rounds.participation,
        agents=rounds.agents,
        over_select=rounds.over_select,
        refill=rounds.refill,
        quorum=rounds.quorum,
        deadline_s=rounds.deadline_s,
        grace_s=rounds.grace_s,
        patience_s=rounds.deadline_s / 2 if rounds.grace_s is None else None,
        start_agents=max(start, 1),
        start_wait_s=None if fleet is None else rounds.start_wait_s,
        rollcall_s=rounds.rollcall_s,
        absence_s=rounds.absence_s,
        void_limit=rounds.void_limit,
        participants=listed_participants(scenario),
        newcomers=newcomers(scenario),
        quarantine_after=scenario.aggregation.quarantine_after,
    )


def listed_participants(scenario: Scenario) -> Listed | None:
    """The participants of each round, if a file lists them. Raises UserError for a file that does not suit the fleet."""
    path, fleet = scenario.rounds.participants, scenario.fleet
    if path is None:
        return None
    if fleet is None:
        raise UserError("rounds.participants names agents by index and needs a fleet section")
    try:
        rows = Rows.validate_json(pathlib.Path(path).read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = f"{first['msg']}, at {list(first['loc'])}"
        raise UserError(f"{path}: expected a JSON list of lists of agent indices ({at})") from None
    strangers = sorted(
        {i for row in rows for i in row if not 0 <= i < fleet.agents - fleet.newcomers}
    )
    if strangers:
        raise UserError(
            f"{path}: agents {strangers} do not exist or are newcomers; 0 to {fleet.agents - fleet.newcomers - 1} may be named"
        )
    twice = [number for number, row in enumerate(rows) if len(set(row)) < len(row)]
    if twice:
        raise UserError(f"{path}: round {twice[0]} names an agent twice")
    listed = tuple(tuple(agent_name(i, fleet.agents) for i in row) for row in rows)
    if len(listed) < scenario.rounds.count or not all(listed):
        raise UserError(
            f"{path}: {len(listed)} rounds are listed; expected {scenario.rounds.count} that are not empty"
        )
    return listed
