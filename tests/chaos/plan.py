"""What goes wrong in a run, and when: decided by the run's seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from tests.chaos.proxy import Party

METHODS = ("fedavg", "fedclust", "fesem", "ifca")

# kinds of faults with their weights: what costs another import of torch is rarer
KINDS: Mapping[str, float] = MappingProxyType(
    {
        "cut": 3,
        "cut in a packet": 2,
        "stall": 2,
        "throttle": 2,
        "duplicate": 3,
        "half-close": 2,
        "kill coordinator": 3,
        "freeze coordinator": 1,
        "freeze coordinator and cut": 1,
        "kill worker": 1,
        "kill fleet": 1,
        "freeze fleet": 1,
        "freeze worker": 1,
        "kill broker": 2,
        "freeze broker": 1,
        "broker empty": 2,
        "broker with an old database": 2,
        "broker with the database of another run": 2,
        "second coordinator": 1,
        "damage a spooled report": 2,
        "lose a spooled report": 2,
        "damage a checkpoint array": 1,
        "damage the start": 1,
        "damage an agent's report": 1,
        "damage an agent's model": 1,
        "damage an agent's memory": 1,
        "put back the run folder": 2,
        "full disk of the coordinator": 2,
        "full disk of the agents": 2,
    }
)


@dataclass(frozen=True)
class Fault:
    """One fault: it happens `delay_s` after the record of the run has `after` lines."""

    kind: str
    after: int
    delay_s: float
    seconds: float  # how long it lasts, where it does
    party: Party
    chance: float  # in [0, 1): picks a file or an agent, where there are several


@dataclass(frozen=True)
class Plan:
    """A run: which method, and what happens to it."""

    seed: int
    method: str
    faults: tuple[Fault, ...]


def plan(seed: int, kinds: Mapping[str, float] = KINDS) -> Plan:
    """The plan of a seed: methods take turns, two to four faults each, in the order in which they happen."""
    dice = random.Random(f"chaos/{seed}")  # noqa: S311 - bad luck, no secrets
    names = dice.choices(list(kinds), list(kinds.values()), k=dice.randint(2, 4))
    faults = [_fault(name, dice) for name in names]
    ordered = sorted(faults, key=lambda fault: (fault.after, fault.delay_s))
    return Plan(seed, METHODS[seed % len(METHODS)], tuple(ordered))


def _fault(name: str, dice: random.Random) -> Fault:
    parties: tuple[Any, ...] = get_args(Party)
    return Fault(
        kind=name,
        after=dice.randint(0, 4),
        delay_s=round(dice.uniform(0.0, 0.8), 3),
        seconds=round(dice.uniform(0.5, 3.0), 3),
        party=dice.choice(parties),
        chance=dice.random(),
    )
