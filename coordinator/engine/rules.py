"""The rules of a run: how many agents a round needs, and how long it waits for them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from covey.shared.errors import UserError
from covey.shared.strategies.base import ClientId

ROUNDING = 1e-9  # of a rank: less than this above an integer is no further one


@dataclass(frozen=True)
class DeadlineRule:
    """How a deadline follows from durations: `factor` times their percentile, within the bounds.

    Work that was not finished when its step closed counts as slower than all work that was. It raises the percentile by at most
    half of the way to 1, so that agents which never answer do not stretch every deadline.
    """

    percentile: float  # between 0 and 1
    factor: float  # at least 1
    least_s: float
    most_s: float  # at least `least_s`

    def deadline_s(self, finished: Collection[float], unfinished: int) -> float | None:
        """Seconds from the opening of a step; None if no work was finished.

        Args:
            finished: durations of finished work (s), in any order.
            unfinished: how many steps closed while an agent was at work.
        """
        if not finished:
            return None
        ordered = sorted(finished)
        together = len(ordered) + unfinished
        halfway = (1.0 + self.percentile) / 2.0
        rank = _rank(self.percentile, together)
        highest = _rank(halfway, len(ordered))
        duration = ordered[min(rank, highest) - 1]
        return min(max(self.factor * duration, self.least_s), self.most_s)


@dataclass(frozen=True)
class RoundRules:
    """A scenario's `rounds` section, with the agents' names filled in. Times are in seconds.

    Raises UserError where `participants` lists fewer rounds than the run has.
    """

    seed: int = 0
    rounds: int = 1
    participation: float = 1.0  # C, the share of all known agents that a round draws
    agents: int | None = None  # a fixed number in its place
    over_select: float = 1.0  # invited agents per needed report
    auto_over_select: bool = False  # as many as agents that drop out make necessary, in its place
    quorum: int = 1
    # the share of all agents in a phase that asks all of them before a round
    first_quorum: float = 0.5
    deadline_s: float = 600.0
    deadline: DeadlineRule | None = None  # adapts it once durations are known
    first_work_s: float = 0.0  # more for a step that invites an agent for the first time
    grace_s: float | None = None  # after the quorum is there
    patience_s: float | None = None  # after the newest report, once the quorum is there
    start_agents: int = 1
    start_wait_s: float | None = None  # then the run starts with fewer; None: it never does
    rollcall_s: float = 10.0  # to answer a roll call
    absence_s: float = 0.0  # an agent that left counts as present for this time
    void_limit: int = 20  # attempts in a row
    alike_limit: int = 3  # attempts in a row that fail for the same reason
    participants: tuple[tuple[ClientId, ...], ...] | None = None  # of each round; None: drawn
    newcomers: frozenset[ClientId] = frozenset()  # they come after the last round
    quarantine_after: int | None = None  # steps with a refused report; None: never
    buffer: int | None = None  # reports of a cluster that make a fold; None: synchronous rounds
    concurrent: int | None = None  # buffered: agents at work at once; None: as many as a cohort has

    @property
    def is_buffered(self) -> bool:
        """Whether rounds are buffered (`pace`), and not in step."""
        return self.buffer is not None

    def __post_init__(self) -> None:
        if self.participants is not None and len(self.participants) < self.rounds:
            raise UserError(
                f"rounds.participants lists the agents of {len(self.participants)} rounds, but the run has "
                f"{self.rounds}: add the missing lists, or lower rounds.count"
            )


def _rank(share: float, count: int) -> int:
    """The nearest rank of a percentile among this many values, from 1."""
    return max(math.ceil(share * count - ROUNDING), 1)
