"""The common ground of hard-clustered methods: K models, each client in one cluster, newcomers admitted.

A run has three kinds of phase: a first one that finds the clusters, "train" rounds, and an "entry" whenever
somebody is present who has no cluster. A newcomer whose entry brought nothing is not asked again before
the next round was folded, so a broken device cannot hold up the run. It may still be drawn for a round:
then it gets the entry's order, its report counts as its entry, and no cluster's model takes it in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import Linkage
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    Expected,
    Job,
    Local,
    Mixture,
    Order,
    Phase,
    Reports,
    Strategy,
    View,
)
from covey.shared.strategies.bases.losses import lowest
from covey.shared.strategies.bases.single import averaged

Features = Literal["full", "last_kernel", "last_layer"]


@dataclass(frozen=True)
class Clustered:
    """Common start (d,), the cluster models (none before the clusters exist), who is where.

    `asked` holds the newcomers whose entry failed since the last folded round.
    """

    start: Vector
    models: tuple[Vector, ...] = ()
    assign: dict[ClientId, int] = field(default_factory=dict)
    asked: tuple[ClientId, ...] = ()


H = TypeVar("H", bound=Clustered)


def lowest_loss(models: Sequence[Vector], local: Local) -> int:
    """The default newcomer rule: index of the model with the smallest training loss, ties to the lowest."""
    return lowest([local.loss(model) for model in models])


def unassigned(state: Clustered, view: View) -> tuple[ClientId, ...]:
    """Those present who have no cluster and were not asked in vain since the last folded round."""
    return tuple(sorted(set(view.present) - set(state.assign) - set(state.asked)))


def folded(state: Clustered, reports: Reports, average: Average = MEAN) -> tuple[Vector, ...]:
    """Each cluster's average of its own reporters; a cluster without any keeps its model."""
    models: list[Vector] = []
    for k, model in enumerate(state.models):
        own = [(client, report) for client, report in reports if state.assign.get(client) == k]
        models.append(averaged(own, otherwise=model, average=average))
    return tuple(models)


def sizes(state: Clustered) -> list[int]:
    """Members of each cluster."""
    counts = Counter(state.assign.values())
    return [counts[k] for k in range(len(state.models))]


def joined(state: H, clusters: Mapping[ClientId, int]) -> H:
    """The state with these clients in these clusters."""
    return replace(state, assign=dict(sorted({**state.assign, **clusters}.items())))


def feature_span(features: Features, layout: Layout) -> slice:
    """Where the features lie in a model; the last kernel is the last layer's largest tensor."""
    if features == "full":
        return slice(0, layout.parameters)
    if features == "last_layer":
        return layout.final_layer
    return max(layout.span_of(layout.modules[-1]), key=lambda span: span.stop - span.start)


def cut_defaults(data: Any, cuts: Sequence[str], *, rotations: Linkage, given: Linkage) -> Any:
    """What a method that cuts a tree was told, with `choose` and `linkage` filled in. Other than mappings pass unchanged.

    With one of the `cuts` given nothing chooses, and the tree has the linkage `given`, as in the runs that are on record.
    Otherwise rotations choose, on a tree of the linkage `rotations`.
    """
    if not isinstance(data, Mapping):
        return data
    has_cut = any(data.get(key) is not None for key in cuts)
    choose = data.get("choose", "gap" if has_cut else "rotations")
    linkage = data.get("linkage", rotations if choose == "rotations" else given)
    return {**data, "choose": choose, "linkage": linkage}


def useless(state: Clustered, *, chosen: bool) -> dict[str, str]:
    """A warning for the notes of a method that clusters once, where its clusters do nothing.

    `chosen`: the number of clusters was not given. No agent or a single one can have no useful clusters.
    """
    members = [size for size in sizes(state) if size]
    agents = sum(members)
    if agents < 2:
        return {}
    if len(members) == 1 and chosen:
        text = (
            f"the signatures of {agents} agents do not fall into groups beyond chance: one cluster, this run is FedAvg. "
            "Set strategy.n_clusters if you know of groups"
        )
        return {"warning_clusters": text}
    if len(members) == agents:
        text = (
            f"each of {agents} agents is a cluster of its own: no agent learns from another. "
            "Set strategy.n_clusters to make fewer clusters"
        )
        return {"warning_clusters": text}
    return {}


class ManyModels(Strategy[H], Generic[H]):
    """K models under the keys "0" to "K-1", each client with one of them: what is served, exported and noted."""

    def member_order(self, state: H, client: ClientId) -> Order:
        return Order(models=(str(state.assign[client]),), cluster=state.assign[client])

    def model(self, state: H, key: str) -> Vector:
        return state.start if key == "start" else state.models[int(key)]

    def serve(self, state: H, client: ClientId) -> Order:
        if client in state.assign:
            return Order(models=(str(state.assign[client]),), cluster=state.assign[client])
        return Order(models=tuple(str(k) for k in range(len(state.models))) or ("start",))

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        best = lowest_loss(job.models, local) if len(job.models) > 1 else 0
        return ((1.0, job.models[best]),)

    def clusters(self, state: H) -> tuple[Vector, ...]:
        return state.models

    def assignment(self, state: H) -> Mapping[ClientId, int]:
        return state.assign

    def notes(self, state: H) -> dict[str, Any]:
        return {"clusters": len(state.models), "sizes": sizes(state)}


class HardClustered(ManyModels[H], Generic[H]):
    """Plans the phases and routes the reports. A method says how clusters are found, improved and joined."""

    @abstractmethod
    def clustering_phase(self, state: H) -> Phase:
        """The phase that finds the clusters."""

    @abstractmethod
    def entry_sizes(self, state: H) -> Mapping[str, int]:
        """What a newcomer's entry report carries."""

    @property
    def entry_numbers(self) -> Mapping[str, Expected]:
        """Numbers that a newcomer's entry report carries."""
        return {}

    @abstractmethod
    def entry_order(self, state: H) -> Order:
        """What somebody without a cluster is told, in whichever phase."""

    @abstractmethod
    def form_clusters(self, state: H, reports: Reports, average: Average = MEAN) -> H:
        """Clusters from the first phase's reports, of which there is at least one."""

    @abstractmethod
    def assign_newcomers(self, state: H, reports: Reports) -> H:
        """Give newcomers their clusters. A report is an entry's, or a "train" report of the entry's order."""

    @abstractmethod
    def aggregate(self, state: H, reports: Reports, average: Average = MEAN) -> H:
        """The state after a round, from the reports of members."""

    def plan(self, state: H, view: View) -> Phase:
        if not state.models:
            return self.clustering_phase(state)
        if newcomers := unassigned(state, view):
            return Phase(
                "entry",
                newcomers,
                self.entry_sizes(state),
                ends_round=False,
                may_be_empty=True,
                numbers=self.entry_numbers,
            )
        return Phase(sizes={"model": state.start.size})

    def order(self, state: H, phase: Phase, client: ClientId) -> Order:
        if phase.name != "entry" and client in state.assign:
            return self.member_order(state, client)
        return self.entry_order(state)

    def fold(self, state: H, phase: Phase, reports: Reports, average: Average = MEAN) -> H:
        if not state.models:
            return self.form_clusters(state, reports, average) if reports else state
        newcomers = [(client, report) for client, report in reports if client not in state.assign]
        if phase.name == "entry":
            admitted = self.assign_newcomers(state, newcomers)
            in_vain = {*state.asked, *invited(phase)} - set(admitted.assign)
            return replace(admitted, asked=tuple(sorted(in_vain)))
        members = [(client, report) for client, report in reports if client in state.assign]
        return replace(
            self.assign_newcomers(self.aggregate(state, members, average), newcomers), asked=()
        )


def invited(phase: Phase) -> tuple[ClientId, ...]:
    """Those whom a phase that is being folded had asked."""
    return phase.cohort if isinstance(phase.cohort, tuple) else ()
