"""The ids of simulated agents, and which of them are there when."""

from __future__ import annotations

from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator


def agent_name(index: int, agents: int) -> str:
    """The id of a simulated agent: padded, so that ids sort like indices."""
    return f"agent-{index:0{len(str(agents - 1))}d}"


def newcomers(scenario: Scenario) -> frozenset[str]:
    """The ids of the simulated agents that come after the last round."""
    fleet = scenario.fleet
    if fleet is None:
        return frozenset()
    return frozenset(
        agent_name(i, fleet.agents) for i in range(fleet.agents - fleet.newcomers, fleet.agents)
    )


def late_agents(scenario: Scenario) -> frozenset[int]:
    """Which simulated agents arrive only at `faults.late_round`: a share of the fleet, drawn on the seed."""
    fleet = scenario.fleet
    if fleet is None:
        return frozenset()
    order = generator(scenario.seed, "late").permutation(fleet.agents)
    return frozenset(int(i) for i in order[: round(fleet.faults.late * fleet.agents)])


def starting_agents(scenario: Scenario) -> tuple[int, ...]:
    """The simulated agents that are there from the start, by index."""
    fleet = scenario.fleet
    if fleet is None:
        return ()
    later = late_agents(scenario).union(*(line.agents for line in fleet.timeline if line.joins))
    return tuple(i for i in range(fleet.agents) if i not in later)
