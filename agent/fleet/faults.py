"""The faults and the timeline of a simulated fleet. The scenario and its seed settle both in advance."""

from __future__ import annotations

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
        self._fleet = fleet
        self._seed = seed
        self._slow = self._draw_agents("slow", fleet.faults.slow)  # indices of agents
        self._late = self._draw_agents("late", fleet.faults.late)
        self._timelines: dict[int, list[Timeline]] = {}  # agent -> the lines that name it
        for line in fleet.timeline:
            for index in line.agents:
                lines = self._timelines.setdefault(index, [])
                lines.append(line)

    def __repr__(self) -> str:
        return f"<FaultPlan: {len(self._slow)} slow and {len(self._late)} late agents>"

    def dies(self, index: int, step: int) -> bool:
        """Is this agent cut off while it works on this step?"""
        chance = self._fleet.faults.die
        if chance <= 0:
            return False
        name = agent_name(index, self._fleet.agents)
        drawn = generator(self._seed, "die", name, step).random()
        return float(drawn) < chance

    @property
    def back_after_s(self) -> float:
        """How long an agent that died stays away."""
        return self._fleet.faults.back_after_s

    def delay_s(self, index: int) -> float:
        """How long this agent holds each report back after its work."""
        if index not in self._slow:
            return 0.0
        return self._fleet.faults.slow_s

    def present(self, index: int, round_: int) -> bool:
        """Is this agent part of the fleet in this round? All lines that name it must agree."""
        is_late = index in self._late and round_ < self._fleet.faults.late_round
        if is_late:
            return False
        lines = self._timelines.get(index, [])
        return all(_includes(line, round_) for line in lines)

    def _draw_agents(self, fault: str, share: float) -> frozenset[int]:
        """A share of the fleet, drawn from a stream of its own."""
        agents = self._fleet.agents
        count = round(share * agents)
        order = generator(self._seed, fault).permutation(agents).tolist()
        return frozenset(order[:count])


def _includes(line: Timeline, round_: int) -> bool:
    """Does this line of a timeline let its agents take part in a round?"""
    has_joined = line.joins is None or round_ >= line.joins
    has_left = line.leaves is not None and round_ >= line.leaves
    is_back = line.returns is not None and round_ >= line.returns
    return has_joined and (not has_left or is_back)
