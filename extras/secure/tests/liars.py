"""Who is in which sum while agents lie or drop out, by the product's own grouping and suspicion, without messages or keys.

A round draws groups among those who are there; some of them drop out before they report. The sum of a group with a liar that
lies is out of range. A round without any sum moves no model: those who answered are bound, as the coordinator remembers them.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import chain

from covey.extras.secure.grouping import Grouping
from covey.extras.secure.progress import Progress
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.base import ClientId

STILL = 20


@dataclass
class Outcome:
    named: dict[ClientId, int] = field(default_factory=dict)  # complete rounds
    lost: int = 0  # sums out of range
    sums: int = 0
    rounds: int = 0

    @property
    def is_stuck(self) -> bool:
        """Whether no model has moved any more: everybody is bound by a lost sum."""
        return self.still >= STILL

    still: int = 0  # rounds in a row without a sum


def fleet(count: int) -> list[ClientId]:
    return [f"agent-{number:03}" for number in range(count)]


def play(
    agents: Collection[ClientId],
    liars: Collection[ClientId],
    *,
    gone: float = 0.0,
    rounds: int = 60,
    lies: float = 1.0,
    seed: int = 0,
) -> Outcome:
    """A run.

    Args:
        agents: of the fleet.
        liars: those of them who lie.
        gone: the chance with which an agent drops out of a round, half of them before the groups are drawn.
        rounds: at most.
        lies: the chance with which a liar lies in a round.
        seed: of what happens.
    """
    chance = random.Random(f"liars {seed}")  # noqa: S311 - no secrets
    grouping = Grouping(SecureSettings(), None, lambda _: 0)
    progress, found = Progress(), Outcome()
    for number in range(rounds):
        here = [one for one in agents if one not in found.named and chance.random() >= gone / 2.0]
        good: list[list[ClientId]] = []
        lost: list[list[ClientId]] = []
        for members, least in grouping.drawn(here, "0", progress):
            group = grouping.size(len(members), 0, least)
            reported = [one for one in members if chance.random() >= gone / 2.0]
            if group is None or len(reported) < group.least:
                continue
            lied = any(chance.random() < lies for one in reported if one in liars)
            (lost if lied else good).append(reported)
        found.rounds += 1
        found.lost += len(lost)
        found.sums += len(good)
        suspicion = progress.suspicion.after(good, lost)
        for one in suspicion.named:
            found.named.setdefault(one, found.rounds)
        suspicion = suspicion.without(suspicion.named)
        found.still = 0 if good else found.still + 1
        bound = {*progress.standing.get("0", {}).get("bound", ()), *chain(*lost)}
        standing = {"0": {"bound": sorted(bound), "members": lost[-1] if lost else ()}}
        progress = replace(
            progress,
            round=number + 1,
            suspicion=suspicion,
            standing={} if good or not bound else standing,
        )
        if found.is_stuck:
            break
        if liars and found.named.keys() >= set(liars):
            break
    return found
