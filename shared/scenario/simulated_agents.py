"""The ids of simulated agents, which of them are present when, and who has whose data after a drift (`fleet.drift`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator

Groups = npt.NDArray[Any]  # (N,) the true cluster of each agent
ROUNDING = 1e-9  # keeps 0.3 * 10 at 3


def agent_name(index: int, agents: int) -> str:
    """The id of a simulated agent, padded with zeros so that ids sort like indices.

    Args:
        index: from 0 to `agents` - 1.
        agents: size of the fleet.
    """
    digits = len(str(agents - 1))
    return f"agent-{index:0{digits}d}"


def newcomers(scenario: Scenario) -> frozenset[str]:
    """The ids of the simulated agents that join after the last round: the last ones by index."""
    fleet = scenario.fleet
    if fleet is None:
        return frozenset()
    first = fleet.agents - fleet.newcomers
    return frozenset({agent_name(index, fleet.agents) for index in range(first, fleet.agents)})


def starting_agents(scenario: Scenario) -> tuple[int, ...]:
    """The indices of the simulated agents that are present from the start, ascending."""
    fleet = scenario.fleet
    if fleet is None:
        return ()
    later: set[int] = set()
    for line in fleet.timeline:
        if line.joins:  # an agent that joins in round 0 is there from the start
            later.update(line.agents)
    return tuple([index for index in range(fleet.agents) if index not in later])


@dataclass(frozen=True)
class Holders:
    """Whose data each agent has after the drift, by index; an agent that keeps its own is missing."""

    from_round: int = 0  # rounds that are complete when the data changes
    drifts: Mapping[int, int] = field(default_factory=dict)

    def index_in(self, round_: int, agent: int) -> int:
        """Whose data an agent has once this number of rounds is complete."""
        if round_ < self.from_round:
            return agent
        return self.drifts.get(agent, agent)


def drift_round(scenario: Scenario) -> int | None:
    """After how many complete rounds the data changes; None without a drift."""
    fleet = scenario.fleet
    if fleet is None or fleet.drift is None:
        return None
    return math.ceil(fleet.drift.at * scenario.rounds.count - ROUNDING)


def holders_of(scenario: Scenario, groups: Groups | None) -> Holders:
    """Who has whose data after the drift.

    The drawn agents stand in a circle, group by group, and each gets the data of the one that stands as many places on
    as the largest group has members: that one belongs to another group, unless one group has most of those drawn.

    Args:
        scenario: with a fleet.
        groups: the true cluster of each agent (N,); None: every agent counts as a group of its own.
    """
    round_ = drift_round(scenario)
    fleet = scenario.fleet
    if round_ is None:
        return Holders()
    if fleet is None or fleet.drift is None:
        return Holders()
    drift = fleet.drift
    federated = fleet.agents - fleet.newcomers
    number = round(drift.share * federated)
    drawn: list[int] = generator(scenario.seed, "drift").permutation(federated)[:number].tolist()
    group_of: dict[int, int] = {}
    for agent in drawn:
        group_of[agent] = agent
        if groups is not None:
            group_of[agent] = int(groups[agent])
    circle = sorted(drawn, key=group_of.__getitem__)
    step = max(Counter(group_of.values()).values(), default=0)
    drifts: dict[int, int] = {}
    for place, agent in enumerate(circle):
        giver = circle[(place + step) % number]
        if giver != agent:
            drifts[agent] = giver
    return Holders(round_, drifts)
