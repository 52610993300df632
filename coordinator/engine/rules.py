"""The rules of a run: how many agents a round needs, and how long it waits for them."""

from __future__ import annotations

from dataclasses import dataclass

from covey.coordinator.engine.deadline import DeadlineRule
from covey.shared.errors import UserError
from covey.shared.strategies.base import ClientId


@dataclass(frozen=True)
class Rules:
    """A scenario's `rounds` section, with the agents' names filled in. Times are in seconds.

    Raises UserError where `participants` lists fewer rounds than the run has.
    """

    seed: int = 0
    rounds: int = 1
    participation: float = 1.0  # C, the share of all known agents that a round draws
    agents: int | None = None  # a fixed number in its place
    over_select: float = 1.0  # invited agents per needed report
    auto_over_select: bool = False  # as many as agents that drop out make necessary, in its place
    refill: bool = True  # a vacant slot goes to a spare agent
    quorum: int = 1
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
