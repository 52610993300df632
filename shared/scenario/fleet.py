"""The fleet section: simulated agents, their data and their faults."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from covey.shared.scenario.partition import Iid, Partition
from covey.shared.scenario.section import Section, Share


class Timeline(Section):
    """When certain agents (by index) come and go, in rounds. A newcomer joins; a returner leaves and returns."""

    agents: tuple[int, ...]
    joins: int | None = Field(None, ge=0)
    leaves: int | None = Field(None, ge=0)
    returns: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.returns is not None and self.leaves is None:
            raise ValueError("an agent that returns must leave first")
        times = [time for time in (self.joins, self.leaves, self.returns) if time is not None]
        if times != sorted(set(times)):
            raise ValueError(f"joins, leaves, returns must be ascending rounds, not {times}")
        return self


class Faults(Section):
    """What goes wrong in a simulated fleet, on the scenario's seed."""

    die: Share = Field(0.0, description="chance that an invited agent is cut off in mid-round")
    back_after_s: float = Field(1.0, ge=0, description="how long a dead agent stays away")
    slow: Share = Field(0.0, description="share of agents that are slow")
    slow_s: float = Field(2.0, ge=0, description="how much longer a slow agent takes per job")
    late: Share = Field(0.0, description="share of agents that join only at late_round")
    late_round: int = Field(2, ge=1)


class Fleet(Section):
    """A simulated fleet: real agents, in few processes on this machine, over a real broker."""

    agents: int = Field(ge=1)
    data: str = Field(
        "digits",
        description="digits (embedded), fashion-mnist, cifar10, cifar100, svhn, emnist-byclass, emnist-letters, "
        "emnist-balanced, femnist, celeba, har, mnist-writer, or a path below the data root",
    )
    partition: Partition | str = Field(
        Iid(), description="a rule, or .npz with train_idx/train_ptr and test_idx/test_ptr"
    )
    test_share: float = Field(
        0.2, gt=0, lt=1, description="of data sets without a test split of their own"
    )
    newcomers: int = Field(
        0,
        ge=0,
        description="so many agents, the last ones, take part in no round: after the last round each gets a model by the "
        "method's rule for newcomers, and mode E-tuned fine-tunes it",
    )
    limit: int | None = Field(
        None, ge=1, description="use only so many examples of the data set, drawn on the seed"
    )
    workers: int = Field(0, ge=0, description="training processes; 0: one per core")
    timeline: tuple[Timeline, ...] = ()
    faults: Faults = Faults()

    @model_validator(mode="after")
    def _somebody_is_no_newcomer(self) -> Self:
        if self.newcomers >= self.agents:
            raise ValueError(
                f"newcomers {self.newcomers}: fewer than the fleet's {self.agents} agents are wanted"
            )
        return self

    @model_validator(mode="after")
    def _timeline_names_agents_of_the_fleet(self) -> Self:
        strangers = sorted(
            {i for line in self.timeline for i in line.agents if not 0 <= i < self.agents}
        )
        if strangers:
            raise ValueError(
                f"timeline names agents {strangers}, the fleet has 0 to {self.agents - 1}"
            )
        return self
