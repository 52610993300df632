"""The faults and the timeline of a simulated fleet. The scenario and its seed settle both in advance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from covey.shared.scenario.fleet import Fleet, Timeline
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator


class FaultPlan:
    """Which agents of a fleet are slow, late or cut off, and who is present in which round.

    Args:
        fleet: the fleet section of a scenario.
        seed: the scenario's seed.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        faults = fleet.faults
        self._faults = faults
        self._agents = fleet.agents
        self._timelines = _by_agent(fleet.timeline)
        self._seed = seed
        self._slow = self._draw_agents("slow", faults.slow)  # indices of agents
        self._late = self._draw_agents("late", faults.late)

    def __repr__(self) -> str:
        slow = len(self._slow)
        late = len(self._late)
        return f"<FaultPlan: {slow} slow and {late} late agents>"

    def dies(self, index: int, step: int) -> bool:
        """Whether this agent is cut off while it works on this step."""
        chance = self._faults.die
        if chance <= 0:
            return False
        drawn = float(generator(self._seed, "die", agent_name(index, self._agents), step).random())
        return drawn < chance

    @property
    def back_after_s(self) -> float:
        """How long an agent that died stays away."""
        return self._faults.back_after_s

    def delay_s(self, index: int) -> float:
        """How long this agent holds each report back after its work."""
        if index not in self._slow:
            return 0.0
        return self._faults.slow_s

    def present(self, index: int, round_: int) -> bool:
        """Whether this agent is part of the fleet in this round. All lines that name it must agree."""
        is_late = index in self._late
        if is_late and round_ < self._faults.late_round:
            return False
        return all(_includes(line, round_) for line in self._timelines[index])

    def _draw_agents(self, fault: str, share: float) -> frozenset[int]:
        """A share of the fleet, drawn from a stream of its own."""
        count = round(share * self._agents)
        return frozenset(generator(self._seed, fault).permutation(self._agents)[:count].tolist())


def _by_agent(timeline: Iterable[Timeline]) -> defaultdict[int, list[Timeline]]:
    """The lines of a timeline that name each agent; none for the others."""
    lines = defaultdict(list)
    for line in timeline:
        for index in line.agents:
            lines[index].append(line)
    return lines


def _includes(line: Timeline, round_: int) -> bool:
    """Whether this line of a timeline lets its agents take part in a round."""
    if line.joins is not None and round_ < line.joins:
        return False
    if line.leaves is None or round_ < line.leaves:
        return True
    if line.returns is None:
        return False
    return round_ >= line.returns
