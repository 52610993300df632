"""The rounds section: who takes part in a round and when it closes."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from covey.shared.scenario.section import Section


class Rounds(Section):
    """Who takes part in a round and when it closes."""

    count: int = Field(10, ge=1, description="R, rounds to fold; void rounds do not count")
    participation: float = Field(
        1.0, gt=0, le=1, description="C: max(floor(C * N), 1) agents are invited, N known agents"
    )
    agents: int | None = Field(
        None, ge=1, description="m, invited agents per round; overrides participation"
    )
    participants: str | None = Field(
        None, description=".json with a list per round of agent indices, instead of a draw"
    )
    over_select: float = Field(
        1.0, ge=1, description="invite this many times m, close when m have reported"
    )
    refill: bool = Field(True, description="invite another agent in place of one that vanished")
    quorum: int = Field(1, ge=1, description="a round with fewer reports is void and drawn again")
    deadline_s: float = Field(
        600.0, gt=0, description="a round closes at the latest this long after it opened"
    )
    grace_s: float | None = Field(
        None,
        ge=0,
        description="once the quorum is there, wait at most this long for the rest; null: until no report has come for "
        "half of deadline_s",
    )
    void_limit: int = Field(
        20, ge=1, description="give up (resumable) after so many void attempts in a row"
    )
    start_agents: int | None = Field(
        None,
        ge=1,
        description="agents that must be there before the first phase; null: the whole fleet, or 1",
    )
    start_wait_s: float = Field(
        60.0,
        ge=0,
        description="fleet: start with fewer after this; without a fleet the coordinator waits for ever",
    )
    absence_s: float = Field(
        1.0, ge=0, description="an agent that is back within this time has not left"
    )
    rollcall_s: float = Field(
        10.0, gt=0, description="how long agents may take to answer a roll call"
    )

    @model_validator(mode="after")
    def _quorum_is_within_the_cohort(self) -> Self:
        if self.agents is not None and self.quorum > self.agents:
            raise ValueError(
                f"quorum {self.quorum} is more than the {self.agents} agents of a round"
            )
        return self
