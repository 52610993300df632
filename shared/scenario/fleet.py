"""The fleet section: simulated agents, their data and their faults."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from covey.shared.scenario.partition import Iid, PartitionOrFile
from covey.shared.scenario.section import Section, Share
from covey.shared.written import FIRST

MAX_WORKERS = 1024  # all of them are started at once, and each takes some 200 MB
MAX_AGENTS = 1_000_000  # simulated on one machine; indices of that many still fit its memory


class Timeline(Section):
    """Rounds in which certain agents come and go. A newcomer joins; a returning agent leaves and returns."""

    agents: tuple[int, ...] = Field(description="Indices of the agents, counted from 0.")
    joins: int | None = Field(
        None, ge=0, description="Round in which the agents join. null: present from the start."
    )
    leaves: int | None = Field(
        None, ge=0, description="Round in which the agents leave. null: they stay."
    )
    returns: int | None = Field(
        None, ge=0, description="Round in which the agents return after leaving. null: they do not."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.returns is not None and self.leaves is None:
            raise ValueError("returns is set without leaves; set the round in which agents leave")
        events = (self.joins, self.leaves, self.returns)
        rounds = [round_ for round_ in events if round_ is not None]
        if rounds != sorted(set(rounds)):
            raise ValueError(f"joins, leaves, returns must be ascending rounds, not {rounds}")
        return self


class Faults(Section):
    """Faults of a simulated fleet, drawn on the scenario's seed. The defaults cause none."""

    die: Share = Field(
        0.0, description="Probability that an invited agent loses its connection during a phase."
    )
    back_after_s: float = Field(
        1.0, ge=0, description="Time until such an agent reconnects, in seconds."
    )
    slow: Share = Field(0.0, description="Share of agents that are slow.")
    slow_s: float = Field(
        2.0, ge=0, description="Additional time that a slow agent needs per job, in seconds."
    )


class Durations(Section):
    """How long agents take in a run without a broker: log-normal, in seconds of a virtual clock."""

    median_s: float = Field(
        1.0, gt=0, description="Median of the time from an order to its report."
    )
    sigma: float = Field(
        1.0,
        ge=0,
        description="Standard deviation of the logarithm. 1: the slowest of a hundred takes about ten times the median. 0: all "
        "take the same.",
    )


class Drift(Section):
    """Some agents' data changes during the run: they exchange it with agents of other groups."""

    at: Share = Field(
        0.5,
        description="When: after this share of the rounds. From then on orders use the new data.",
    )
    share: Share = Field(
        1 / 3, description="Share of the agents that exchange their data, drawn on the seed."
    )


class Fleet(Section):
    """A simulated fleet: real agents in a few processes on this machine, connected to a real broker."""

    agents: int = Field(
        ge=1, le=MAX_AGENTS, description="Number of simulated agents, newcomers included."
    )
    data: str = Field(
        "digits",
        json_schema_extra=FIRST,
        description="Data set that is divided among the agents: digits, fashion-mnist, cifar10, cifar100, svhn, "
        "emnist-byclass, emnist-letters, emnist-balanced, femnist, celeba, har, mnist-writer (an .npz below the data root each), a path "
        "below the data root or the working directory, module:function, or a data source of an installed package. A folder with one file or "
        "folder per device makes each of them a group for the rule by_group. The default comes with scikit-learn; code of "
        "your own needs --allow.",
    )
    partition: PartitionOrFile = Field(
        Iid(),
        json_schema_extra=FIRST,
        description="A partition rule such as {name: dirichlet, alpha: 0.5}, the name of a rule, or an .npz file with the arrays train_idx, "
        "train_ptr, test_idx and test_ptr.",
    )
    test_share: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of examples that is held out for testing if the data set has no test part of its own. Under the rule "
        "by_group it is a share of each agent's samples, also where the test part lacks one of the agents.",
    )
    newcomers: int = Field(
        0,
        ge=0,
        description="Number of agents, the last ones, that take part in no round. After the last round the method assigns "
        "each of them a model, and mode `tuned` fine-tunes it.",
    )
    limit: int | None = Field(
        None,
        ge=1,
        description="Use only this many examples of the data set, drawn on the seed. null: all.",
    )
    workers: int = Field(
        0,
        ge=0,
        le=MAX_WORKERS,
        json_schema_extra=FIRST,
        description="Number of training processes. 0: one for each processor core that may be used, but no more than agents.",
    )
    together: int | None = Field(
        None,
        ge=1,
        le=1000,  # each has a thread
        description="With --in-process: number of agents whose models a worker trains at once, which a GPU does in little more than the time of one. "
        "Figures agree with those of single agents, not bytes. null: one after the other.",
    )
    timeline: tuple[Timeline, ...] = Field(
        (), description="Agents that come and go during the run. Empty: all are present throughout."
    )
    faults: Faults = Field(Faults(), description="Faults that are simulated. The default is none.")
    drift: Drift | None = Field(
        None,
        description="A change of the agents' data during the run. Who exchanges data with whom is drawn on the seed: each gets "
        "that of an agent of another group, if the partition rule has groups. null: the data stays.",
    )
    durations: Durations | None = Field(
        None,
        description="How long agents take, on the virtual clock of --in-process; evaluations take no time. null: they answer at "
        "once. With a broker the agents take the time that they need.",
    )

    def workers_on(self, cores: int) -> int:
        """How many training processes there are on a machine with this many cores."""
        return min(self.workers or cores, self.agents)

    @model_validator(mode="after")
    def _some_agents_are_no_newcomers(self) -> Self:
        if self.newcomers >= self.agents:
            raise ValueError(
                f"newcomers is {self.newcomers}; expected fewer than the {self.agents} agents of the fleet"
            )
        return self

    @model_validator(mode="after")
    def _timeline_names_agents_of_the_fleet(self) -> Self:
        named = {index for line in self.timeline for index in line.agents}
        unknown = sorted(index for index in named if not 0 <= index < self.agents)
        if unknown:
            raise ValueError(
                f"timeline names agents {unknown}; expected indices from 0 to {self.agents - 1}"
            )
        return self
