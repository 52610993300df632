"""What goes wrong in a simulated fleet, and who is there when: both settled by the scenario and its seed."""

from __future__ import annotations

from covey.shared.scenario.fleet import Fleet, Timeline
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator


class Weather:
    """The faults and the timeline of a fleet."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet, self._seed = fleet, seed
        self._slow = self._chosen("slow", fleet.faults.slow)
        self._late = self._chosen("late", fleet.faults.late)
        self._lines: dict[int, list[Timeline]] = {}
        for line in fleet.timeline:
            for index in line.agents:
                self._lines.setdefault(index, []).append(line)

    def dies(self, index: int, step: int) -> bool:
        """Is this agent cut off while it works on this step?"""
        chance = self._fleet.faults.die
        name = agent_name(index, self._fleet.agents)
        return chance > 0 and float(generator(self._seed, "die", name, step).random()) < chance

    @property
    def back_after_s(self) -> float:
        return self._fleet.faults.back_after_s

    def delay_s(self, index: int) -> float:
        """How much longer than it takes a report of this agent waits."""
        return self._fleet.faults.slow_s if index in self._slow else 0.0

    def present(self, index: int, round_: int) -> bool:
        """Is this agent part of the fleet in this round? All of its timeline's lines must agree."""
        if index in self._late and round_ < self._fleet.faults.late_round:
            return False
        return all(_within(line, round_) for line in self._lines.get(index, []))

    def _chosen(self, fault: str, share: float) -> frozenset[int]:
        count = round(share * self._fleet.agents)
        order = generator(self._seed, fault).permutation(self._fleet.agents)
        return frozenset(order[:count].tolist())


def _within(line: Timeline, round_: int) -> bool:
    if line.joins is not None and round_ < line.joins:
        return False
    if line.leaves is None or round_ < line.leaves:
        return True
    return line.returns is not None and round_ >= line.returns
