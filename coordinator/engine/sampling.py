"""Which agents a round invites: a seeded walk over everybody known, taking those who are present.

The walk is over all known agents and not over those present, so that a short absence of one agent
changes the draw for that agent alone, and a restarted coordinator draws what it would have drawn.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId

Listed = tuple[tuple[ClientId, ...], ...]  # the participants of each round


def cohort_size(known: int, participation: float, agents: int | None) -> int:
    """m = max(floor(C * N), 1) (McMahan et al. 2017), or the fixed number of agents."""
    # the small addition keeps 0.29 * 100 at 29, where floats give 28.999999999999996
    return agents if agents is not None else max(math.floor(participation * known + 1e-9), 1)


def invitation_order(
    known: Collection[ClientId], seed: int, round_: int, attempt: int, purpose: str
) -> tuple[ClientId, ...]:
    """Everybody known in the order in which this attempt at this round would invite them."""
    ids = sorted(known)
    order = generator(seed, "cohort", purpose, round_, attempt).permutation(len(ids))
    return tuple(ids[i] for i in order)


def expected_share(scenario: Scenario, listed: Listed | None) -> float:
    """C, the share of all agents that a round invites on average; 1 only where every round invites everybody.

    `listed` are the participants of each round where the scenario lists them.
    """
    rounds, fleet = scenario.rounds, scenario.fleet
    if fleet is None:
        if rounds.agents is None:
            return rounds.participation
        known = max(rounds.start_agents or 0, rounds.agents)  # more may come at any time
        return min(rounds.agents / known, math.nextafter(1.0, 0.0))
    invited = sum(map(len, listed)) / len(listed) if listed else rounds.agents
    return (
        rounds.participation
        if invited is None
        else min(invited / (fleet.agents - fleet.newcomers), 1.0)
    )
