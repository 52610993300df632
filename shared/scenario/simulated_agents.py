"""The ids of simulated agents, and which of them are present when."""

from __future__ import annotations

from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator


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


def late_agents(scenario: Scenario) -> frozenset[int]:
    """The indices of the agents that join only at `faults.late_round`: a share of the fleet, drawn on the seed."""
    fleet = scenario.fleet
    if fleet is None:
        return frozenset()
    count = round(fleet.faults.late * fleet.agents)
    return frozenset(generator(scenario.seed, "late").permutation(fleet.agents)[:count].tolist())


def starting_agents(scenario: Scenario) -> tuple[int, ...]:
    """The indices of the simulated agents that are present from the start, ascending."""
    fleet = scenario.fleet
    if fleet is None:
        return ()
    later = set(late_agents(scenario))
    for line in fleet.timeline:
        if line.joins:  # an agent that joins in round 0 is there from the start
            later.update(line.agents)
    return tuple([index for index in range(fleet.agents) if index not in later])
