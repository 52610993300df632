"""What one kind of phase costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PhaseCost:
    """One kind of phase. Bytes are MQTT packets of one invited agent; values are float32 numbers before encoding."""

    name: str
    times: int  # in the whole run
    invited: int  # agents
    down_bytes: int
    up_bytes: int
    down_values: int
    up_values: int
    published_bytes: int  # by the coordinator, once per phase
    idle_bytes: int = 0  # down to all agents that were not invited, together
    ends_round: bool = True

    @property
    def total_down(self) -> int:
        """Bytes to all agents in all phases of this kind."""
        return self.times * ((self.invited * self.down_bytes) + self.idle_bytes)

    @property
    def total_up(self) -> int:
        """Bytes from all agents in all phases of this kind."""
        return self.times * self.invited * self.up_bytes

    @property
    def values(self) -> int:
        """Float32 numbers, both ways, in all phases of this kind."""
        of_one = self.down_values + self.up_values
        return self.times * self.invited * of_one


def merged(phases: Iterable[PhaseCost]) -> list[PhaseCost]:
    """The phases with equal ones counted as one kind, in the order of their first time."""
    times: dict[PhaseCost, int] = {}
    for phase in phases:
        kind = replace(phase, times=0)
        times[kind] = times.get(kind, 0) + phase.times
    return [replace(kind, times=count) for kind, count in times.items()]
