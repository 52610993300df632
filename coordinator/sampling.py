"""Which agents a round invites: a seeded walk over everybody known, taking those who are present.

The walk is over all known agents and not over those present, so that a short absence of one agent
changes the draw for that agent alone, and a restarted coordinator draws what it would have drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path

from shared.errors import UserError
from shared.scenario import Scenario, agent_name
from shared.seeds import generator
from shared.strategy import ClientId


def cohort_size(known: int, participation: float, agents: int | None) -> int:
    """m = max(floor(C * N), 1) (McMahan et al. 2017), or the fixed number of agents."""
    # the small addition keeps 0.29 * 100 at 29, where floats give 28.999999999999996
    return agents if agents is not None else max(math.floor(participation * known + 1e-9), 1)


def walk(known: Collection[ClientId], seed: int, round_: int, attempt: int, purpose: str) -> tuple[ClientId, ...]:
    """Everybody known in the order in which this attempt at this round would invite them."""
    ids = sorted(known)
    order = generator(seed, "cohort", purpose, round_, attempt).permutation(len(ids))
    return tuple(ids[i] for i in order)


def listed_participants(scenario: Scenario) -> tuple[tuple[ClientId, ...], ...] | None:
    """Who takes part in each round, where a file says so. Raises UserError for a file that does not suit the fleet."""
    path, fleet = scenario.rounds.participants, scenario.fleet
    if path is None:
        return None
    if fleet is None:
        raise UserError("rounds.participants names agents by index and needs a fleet section")
    try:
        rows = json.loads(Path(path).read_text())
        listed = tuple(tuple(agent_name(int(i), fleet.agents) for i in row) for row in rows)
        strangers = sorted({int(i) for row in rows for i in row if not 0 <= int(i) < fleet.agents})
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: a JSON list of lists of agent indices is wanted ({error})") from None
    if strangers:
        raise UserError(f"{path}: agents {strangers} do not exist, the fleet has 0 to {fleet.agents - 1}")
    if len(listed) < scenario.rounds.count or not all(listed):
        raise UserError(f"{path}: {len(listed)} rounds are listed, {scenario.rounds.count} non-empty ones are wanted")
    return listed


def expected_share(scenario: Scenario) -> float:
    """C, the share of all agents that a round invites on average; 1 only where every round invites everybody."""
    rounds, fleet = scenario.rounds, scenario.fleet
    if fleet is None:
        if rounds.agents is None:
            return rounds.participation
        known = max(rounds.start_agents or 0, rounds.agents)  # more may come at any time
        return min(rounds.agents / known, math.nextafter(1.0, 0.0))
    listed = listed_participants(scenario)
    invited = sum(map(len, listed)) / len(listed) if listed else rounds.agents
    return rounds.participation if invited is None else min(invited / (fleet.agents - fleet.newcomers), 1.0)
