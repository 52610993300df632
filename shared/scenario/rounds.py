"""The rounds section: who takes part in a round and when it closes."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from covey.shared.scenario.section import Section
from covey.shared.scenario.stop import Stop


class Rounds(Section):
    """Who takes part in a round and when it closes."""

    count: int = Field(
        10, ge=1, description="R, the number of rounds to complete. Void rounds do not count."
    )
    participation: float = Field(
        1.0,
        gt=0,
        le=1,
        description="C, the share of agents in a round: of N known agents, max(floor(C * N), 1) are invited. The default "
        "invites every agent.",
    )
    agents: int | None = Field(
        None,
        ge=1,
        description="m, the number of agents that each round invites. null: participation determines it.",
    )
    participants: str | None = Field(
        None,
        description="A .json file with one list of agent indices per round, to repeat the draws of another program. null: "
        "the seed determines who is invited.",
    )
    over_select: float = Field(
        1.0,
        ge=1,
        description="Invite this many times m agents and close the round when m of them have reported. The default invites "
        "m, so that no agent trains for nothing.",
    )
    refill: bool = Field(True, description="Invite another agent when an invited one disconnects.")
    quorum: int = Field(
        1,
        ge=1,
        description="Minimum number of reports. A round with fewer is void: it changes no model and is drawn again.",
    )
    deadline_s: float = Field(
        600.0, gt=0, description="Time limit of a round, in seconds after it opened."
    )
    first_work_s: float = Field(
        60.0,
        ge=0,
        description="Additional time of a round in which an agent works for the first time, in seconds: its training process "
        "starts then and imports torch, which takes up to a minute on a small device. A simulated fleet starts its "
        "processes earlier, and needs none.",
    )
    grace_s: float | None = Field(
        None,
        ge=0,
        description="Time to wait for late reports once the quorum is reached, in seconds. null: the round closes when no "
        "report has arrived for half of deadline_s.",
    )
    void_limit: int = Field(
        20,
        ge=1,
        description="Stop the run after this many void attempts in a row, or after three in which all agents failed for the same "
        "reason. A stopped run can be resumed.",
    )
    start_agents: int | None = Field(
        None,
        ge=1,
        description="Number of agents that must be online before the first phase. null: the whole simulated fleet, or 1 "
        "without a fleet section.",
    )
    start_wait_s: float = Field(
        60.0,
        ge=0,
        description="Start a simulated fleet with fewer than start_agents after this time, in seconds. Without a fleet "
        "section the coordinator waits without limit.",
    )
    absence_s: float = Field(
        1.0,
        ge=0,
        description="Ignore a lost connection when the agent is back within this time, in seconds.",
    )
    rollcall_s: float = Field(
        10.0, gt=0, description="Time that agents have to answer a roll call, in seconds."
    )

    stop: Stop | None = Field(
        None,
        description="End the rounds early, at a target or when the models no longer improve. null: all rounds take place.",
    )
    publish: Literal["last", "best", "none"] = Field(
        "last",
        description="The models that real devices with `--model-dir` get for use when the run is finished: those of the last "
        "round; those of the round with the best evaluation (evaluation.every); or none, so that only `coordinator "
        "promote` publishes models. A simulated fleet gets none.",
    )

    @model_validator(mode="after")
    def _quorum_is_within_the_cohort(self) -> Self:
        if self.agents is not None and self.quorum > self.agents:
            raise ValueError(
                f"quorum is {self.quorum}, but a round has {self.agents} agents; lower quorum or raise agents"
            )
        return self
