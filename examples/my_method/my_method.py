"""One FedAvg for each group of agents whose first training moves the common model in the same direction.

Agents join the first cluster whose leader moved alike; an agent that resembles no leader leads a cluster of its own.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field

from covey.methods import (
    MEAN,
    SIGNATURE,
    START,
    TRAIN,
    Average,
    ClientState,
    Clustered,
    HardClustered,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Setup,
    Vector,
    cosine,
    trained_report,
)


@dataclass(frozen=True)
class State(Clustered):
    """The models and members of the clusters, and the direction (d,) in which the leader of each one moved."""

    leaders: tuple[Vector, ...] = ()


class MyMethod(HardClustered[State]):
    """Clusters by the direction of the first training."""

    summary: ClassVar[str] = "cluster once by the direction of a first training, then FedAvg"
    source: ClassVar[str] = "our own"
    facts = replace(HardClustered.facts, phases=(SIGNATURE,))  # agents refuse any other

    name: Literal["my_method"] = "my_method"
    alike: float = Field(0.3, ge=-1, le=1, description="least cosine with the leader of a group")

    # -- on each agent -----------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """Train the given model; before the rounds, report how it moved."""
        start = job.models[0]
        result = local.train(start)
        if job.phase == TRAIN:
            return trained_report(result, local), client_state
        return Report({SIGNATURE: result.end - start}, local.examples), client_state

    # -- on the coordinator ------------------------------------------------------------------------

    def init(self, setup: Setup) -> State:
        """The state before the first phase."""
        return State(setup.starts[0])

    def clustering_phase(self, state: State) -> Phase:
        """All agents report a signature."""
        return Phase(SIGNATURE, "all", self.entry_sizes(state), ends_round=False)

    def entry_sizes(self, state: State) -> dict[str, int]:
        """A signature is as long as the model."""
        return {SIGNATURE: state.start.size}

    def entry_order(self, state: State) -> Order:
        """An agent without a cluster begins with the common model."""
        return Order(models=(START,))

    def form_clusters(self, state: State, reports: Reports, average: Average = MEAN) -> State:
        """The first clusters."""
        return self.assign_newcomers(state, reports)

    def assign_newcomers(self, state: State, reports: Reports) -> State:
        """Each agent joins the first cluster whose leader moved alike, or founds one."""
        leaders, models, assign = list(state.leaders), list(state.models), dict(state.assign)
        for client, report in reports:
            if SIGNATURE not in report.vectors:
                continue  # it trained with a cluster before it had one
            direction = report.vectors[SIGNATURE]
            likeness = [cosine(direction, leader) for leader in leaders]
            place = next((k for k, c in enumerate(likeness) if c >= self.alike), len(leaders))
            if place == len(leaders):
                leaders.append(direction.copy())
                models.append(state.start)
            assign[client] = place
        in_order = dict(sorted(assign.items()))
        return replace(state, leaders=tuple(leaders), models=tuple(models), assign=in_order)
