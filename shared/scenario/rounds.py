"""The rounds section: who takes part in a round, when it closes, and when the rounds end early."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from covey.shared.numerics.measures import (
    MEASURES,
    OF_CLASSIFICATION,
    OF_REGRESSION,
    Measure,
    MeasureName,
)
from covey.shared.scenario.section import Section, Share
from covey.shared.written import FIRST


class Stop(Section):
    """When to end the rounds before rounds.count is reached. Needs evaluation.every."""

    metric: MeasureName | None = Field(
        None,
        description="The figure of mode `server` to watch, as its median over the agents: accuracy, f1, recall, auc or loss; for a "
        "regression rmse, mae, mse, r2 or loss. null: task.measure.",
    )
    target: float | None = Field(
        None,
        json_schema_extra=FIRST,
        description="End the rounds once the figure is as good as this. Accuracy, f1 and r2 are shares: 0.9 is 90 %. null: no "
        "target.",
    )
    patience: int | None = Field(
        None,
        ge=1,
        json_schema_extra=FIRST,
        description="End the rounds after this many evaluations in a row without an improvement by more than min_delta. null: "
        "never.",
    )
    min_delta: float = Field(
        0.0,
        ge=0,
        description="The smallest improvement that counts, in units of the figure. The default counts any improvement.",
    )

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if self.target is None and self.patience is None:
            raise ValueError("rounds.stop has no condition; set target, patience or both")
        return self

    def measure(self, usual: Measure, *, regression: bool) -> Measure:
        """The figure to watch; `usual` is that of the task.

        Raises:
            ValueError: it is no figure of the task, or no model reaches the target.
        """
        measure = usual if self.metric is None else MEASURES[self.metric]
        possible = OF_REGRESSION if regression else OF_CLASSIFICATION
        if measure.name not in possible:
            names = ", ".join(possible)
            raise ValueError(
                f"rounds.stop.metric is {measure.name}, and the task has {names}; choose one of them"
            )
        if self.target is not None and not measure.can_be_target(self.target):
            raise ValueError(
                f"rounds.stop.target is {self.target:g}; expected {measure.label} {measure.range_text}"
            )
        return measure


MAX_ROUNDS = 1_000_000


class AdaptiveDeadline(Section):
    """A deadline that follows from how long the invited agents took for earlier work of the same phase."""

    percentile: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="Share of the earlier work that was finished within the time that the factor multiplies.",
    )
    factor: float = Field(1.5, ge=1, description="The deadline is this many times the percentile.")
    least_s: float = Field(5.0, gt=0, description="Shortest deadline, in seconds.")
    most_s: float = Field(600.0, gt=0, description="Longest deadline, in seconds.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_plain_seconds(cls, data: Any) -> Any:
        """Name the key of a deadline that does not adapt."""
        if isinstance(data, int | float):
            raise ValueError(
                f"expected keys such as percentile and factor; for a fixed deadline set rounds.deadline_s: {data:g}"
            )
        return data

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.least_s > self.most_s:
            raise ValueError(
                f"least_s is {self.least_s:g}, but most_s is {self.most_s:g}; lower least_s or raise most_s"
            )
        return self


class Timing(Section):
    """Times that the engine allows. The defaults suit fleets on a network of their own and on the internet."""

    first_work_s: float = Field(
        60.0,
        ge=0,
        description="Additional time of a round in which an agent works for the first time, in seconds: its training process "
        "starts then and imports torch, which takes up to a minute on a small device. A simulated fleet starts its "
        "processes earlier, and needs none.",
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
    void_limit: int = Field(
        20,
        ge=1,
        description="Stop the run after this many void attempts in a row, or after three in which all agents failed for the same "
        "reason. A stopped run can be resumed.",
    )


class Rounds(Section):
    """Who takes part in a round and when it closes."""

    mode: Literal["synchronous", "buffered"] = Field(
        "synchronous",
        json_schema_extra=FIRST,
        description="synchronous: a round invites its agents together and waits for them. buffered: every agent works at its "
        "own pace, and a group's model is folded whenever buffer reports of it have arrived (FedBuff per group).",
    )
    count: int = Field(
        10,
        ge=1,
        le=MAX_ROUNDS,
        json_schema_extra=FIRST,
        description="R, the number of rounds to complete. Void rounds do not count. In buffered mode one fold is one round.",
    )
    buffer: int = Field(
        10,
        ge=1,
        description="m, the reports of one group that make a fold in buffered mode. A group with fewer agents folds when "
        "all of them have reported: choose m well below the size of the groups.",
    )
    staleness: float = Field(
        0.5,
        ge=0,
        description="a, how fast a report loses weight in buffered mode: it counts (1 + s)^-a after s folds of its cluster's "
        "model since its order. 0: every report counts in full.",
    )
    concurrent: int | None = Field(
        None,
        ge=1,
        description="Number of agents at work at once in buffered mode. null: as many as a synchronous round would invite.",
    )
    participation: float = Field(
        1.0,
        gt=0,
        le=1,
        json_schema_extra=FIRST,
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
    over_select: Annotated[float, Field(ge=1)] | Literal["auto"] = Field(
        1.0,
        description="Invite this many times m agents and close the round when m of them have reported. The default invites "
        "m, so that no agent trains for nothing. auto: m / (1 - d), with the share d (at most 0.5) of agents that dropped "
        "out of the latest 20 rounds.",
    )
    quorum: int = Field(
        1,
        ge=1,
        json_schema_extra=FIRST,
        description="Minimum number of reports. A round with fewer is void: it changes no model and is drawn again.",
    )
    first_quorum: Share = Field(
        0.5,
        description="The share of all agents that must report in a phase that asks all of them before a round: in which a "
        "method forms its groups, or the means of the fleet's data are found.",
    )
    deadline_s: float = Field(
        600.0,
        gt=0,
        json_schema_extra=FIRST,
        description="Time limit of a round, in seconds after it opened. With deadline: of the rounds before half of the invited "
        "agents have been timed.",
    )
    deadline: AdaptiveDeadline | None = Field(
        None,
        description="Adapt the time limit of each round to how long its agents took before. null: every round has deadline_s.",
    )
    grace_s: float | None = Field(
        None,
        ge=0,
        description="Time to wait for late reports once the quorum is reached, in seconds. null: the round closes when no "
        "report has arrived for ten times the median time of those that came, at least 30 s and at most half of the limit.",
    )
    start_agents: int | None = Field(
        None,
        ge=1,
        json_schema_extra=FIRST,
        description="Number of agents that must be online before the first phase. null: the whole simulated fleet, or 1 "
        "without a fleet section.",
    )

    stop: Stop | None = Field(
        None,
        json_schema_extra=FIRST,
        description="End the rounds early, at a target or when the models no longer improve. null: all rounds take place.",
    )
    timing: Timing = Field(
        Timing(), description="Times that the engine allows; few runs need others."
    )
    publish: Literal["end", "best", "rounds", "never"] = Field(
        "end",
        json_schema_extra=FIRST,
        description="The models that real devices with `--model-dir` get for use. end: those of the last round, when the run "
        "is finished. best: then those of the round with the best evaluation (needs evaluation.every). rounds: already during "
        "the run those of each round. never: only `coordinator promote` publishes models. A simulated fleet gets none.",
    )

    @property
    def longest_s(self) -> float:
        """The longest time limit that a round can have, in seconds."""
        if self.deadline is None:
            return self.deadline_s
        return max(self.deadline_s, self.deadline.most_s)

    @model_validator(mode="after")
    def _quorum_is_within_the_cohort(self) -> Self:
        if self.agents is not None and self.quorum > self.agents:
            raise ValueError(
                f"quorum is {self.quorum}, but a round has {self.agents} agents; lower quorum or raise agents"
            )
        return self
