"""What goes wrong in the history of a seed, and when: pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

HABITS = ("late", "doubled", "lost")  # of single deliveries
EVENTS = (
    "cut",
    "part",
    "kill agent",
    "kill coordinator",
    "kill aggregator",
    "restart broker",
    "clear retained",
    "power cut",
    "copy folder",
)
KINDS = (*HABITS, *EVENTS)


@dataclass(frozen=True)
class Fault:
    """A fault at `at` (virtual s) that lasts `lasts` (s). A habit lasts all the time, with this chance."""

    kind: str
    at: float = 0.0
    lasts: float = 0.0
    target: int = 0
    chance: float = 0.0

    def __str__(self) -> str:
        if self.kind in HABITS:
            return f"{self.kind}: {self.chance:.1%} of the deliveries"
        return f"{self.kind} {self.target} at {self.at:.2f} s for {self.lasts:.2f} s"


@dataclass(frozen=True)
class Plan:
    """A history that one seed fixes."""

    seed: int
    method: str
    shards: int
    aggregators: bool
    faults: tuple[Fault, ...]

    def without(self, dropped: Sequence[int]) -> Plan:
        """The same history with these faults, by number, switched off."""
        kept = tuple(
            fault for number, fault in enumerate(self.faults) if number not in set(dropped)
        )
        return replace(self, faults=kept)


def plan(seed: int, methods: Sequence[str], kinds: Sequence[str] = KINDS) -> Plan:
    """Draw the history of a seed."""
    draw = random.Random(f"plan {seed}")  # noqa: S311  bad luck, no secrets
    method = draw.choice(methods)
    shards = draw.choice((1, 1, 2))
    likes_aggregators = draw.random() < 1 / 2
    faults: list[Fault] = []
    for _ in range(draw.randint(1, 5)):
        kind = draw.choice(kinds)
        if kind in HABITS:
            faults.append(Fault(kind, chance=draw.uniform(0.005, 0.05)))
        else:
            faults.append(
                Fault(kind, draw.uniform(0, 6), draw.expovariate(1 / 4), draw.randrange(3))
            )
    aggregators = likes_aggregators or any(fault.kind == "power cut" for fault in faults)
    return Plan(seed, method, shards, aggregators, tuple(faults))
