"""Which agents a round invites: a seeded walk over all known agents, taking those who are present.

The walk is over all known agents and not over those present, so that a short absence of one agent
changes the draw for that agent alone, and a restarted coordinator draws what it would have drawn.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId

ROUNDING = 1e-9  # keeps 0.29 * 100 at 29, where floats give 28.999999999999996
Listed = tuple[tuple[ClientId, ...], ...]  # the participants of each round


def cohort_size(known: int, participation: float, agents: int | None) -> int:
    """m = max(floor(C * N), 1) (McMahan et al. 2017), or the fixed number of agents."""
    if agents is not None:
        return agents
    return max(math.floor((participation * known) + ROUNDING), 1)


def invitation_order(
    known: Collection[ClientId], seed: int, round_: int, attempt: int, purpose: str
) -> tuple[ClientId, ...]:
    """All known agents in the order in which this attempt at this round would invite them."""
    ids = sorted(known)
    rng = generator(seed, "cohort", purpose, round_, attempt)
    return tuple(ids[i] for i in rng.permutation(len(ids)))


def expected_share(scenario: Scenario, listed: Listed | None) -> float:
    """C, the share of all agents that a round invites on average; 1 only where every round invites all.

    `listed` are the participants of each round where the scenario lists them.
    """
    rounds = scenario.rounds
    fleet = scenario.fleet
    if fleet is not None and listed:
        federated = fleet.agents - fleet.newcomers
        share = _mean_length(listed) / federated
        return min(share, 1.0)
    if rounds.agents is None:
        return rounds.participation
    if fleet is not None:
        federated = fleet.agents - fleet.newcomers
        share = rounds.agents / federated
        return min(share, 1.0)
    # more agents than these may come at any time, so that a share of 1 is out of reach
    share = rounds.agents / max(rounds.start_agents or 0, rounds.agents)
    just_below_1 = math.nextafter(1.0, 0.0)
    return min(share, just_below_1)


def _mean_length(listed: Listed) -> float:
    """Participants of a round on average."""
    total = 0
    for clients in listed:
        total += len(clients)
    return total / len(listed)
