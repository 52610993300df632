"""What hard-clustered methods share: K models, each client in one cluster, newcomers that join.

A run has three kinds of phase: one that forms the clusters, "train" rounds, and an "entry" whenever
a client is present that has no cluster. A newcomer whose entry failed is not asked again before the
next complete round, so a broken device cannot hold up the run. It may still be drawn for a round:
it then gets the order of an entry, its report counts as its entry, and no cluster's model uses it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Literal, TypeVar

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.strategies.base import (
    ENTRY,
    MODEL,
    ClientId,
    Expected,
    Facts,
    Moving,
    Order,
    Phase,
    Reports,
    Serves,
    Shown,
    Strategy,
    Sums,
    Terms,
    View,
    without,
)
from covey.shared.strategies.bases.losses import lowest
from covey.shared.strategies.bases.single import sample_term
from covey.shared.strategies.client_half import ClientState, Job, Local, Mixture, Report

# fields of a state that a new run sets; what the earlier run found stays
SETTINGS = ("seed", "lr", "schedule", "settled")
START = "start"  # key of the common initial model
Features = Literal["full", "last_kernel", "last_layer"]


@dataclass(frozen=True)
class Clustered(Moving):
    """The state of a hard-clustered method."""

    start: Vector  # the common initial model (d,)
    models: tuple[Vector, ...] = ()  # K cluster models (d,); none before the clusters exist
    assign: dict[ClientId, int] = field(default_factory=dict)  # cluster of each member, sorted
    asked: tuple[ClientId, ...] = ()  # newcomers whose entry failed since the last complete round


H = TypeVar("H", bound=Clustered)


def lowest_loss(models: Sequence[Vector], local: Local) -> int:
    """The usual rule for newcomers: the model with the smallest training loss, ties to the lowest."""
    return lowest([local.loss(model) for model in models])


def unassigned(state: Clustered, view: View) -> tuple[ClientId, ...]:
    """Clients that are present, have no cluster, and were not asked since the last complete round."""
    clients = set(view.present)
    clients.difference_update(state.assign)
    clients.difference_update(state.asked)
    in_order = sorted(clients)
    return tuple(in_order)


def reports_of(assign: Mapping[ClientId, int], k: int, reports: Reports) -> Reports:
    """The reports of the members of cluster k."""
    return [(client, report) for client, report in reports if assign.get(client) == k]


def by_membership(assign: Mapping[ClientId, int], reports: Reports) -> tuple[Reports, Reports]:
    """The reports of clients that have a cluster, and those of the others."""
    members: list[tuple[ClientId, Report]] = []
    others: list[tuple[ClientId, Report]] = []
    for client, report in reports:
        if client in assign:
            members.append((client, report))
        else:
            others.append((client, report))
    return members, others


def sizes(state: Clustered) -> list[int]:
    """The number of members of each cluster."""
    counts = Counter(state.assign.values())
    clusters = range(len(state.models))
    return [counts[k] for k in clusters]


def joined(state: H, clusters: Mapping[ClientId, int]) -> H:
    """The state with these clients in these clusters."""
    assign = dict(state.assign)
    assign.update(clusters)
    in_order = sorted(assign.items())
    return replace(state, assign=dict(in_order))


def has_clusters(state: Clustered) -> bool:
    """Whether the clusters are formed."""
    return bool(state.models)


def feature_span(features: Features, layout: Layout) -> slice:
    """The part of a model by which clients are clustered.

    The last kernel is the largest tensor of the last layer.
    """
    match features:
        case "full":
            return slice(0, layout.parameters)
        case "last_layer":
            return layout.final_layer
        case "last_kernel":
            return max(layout.span_of(layout.modules[-1]), key=lambda span: span.stop - span.start)


class ManyModels(Strategy[H], Generic[H]):
    """K models under the keys "0" to "K-1", and each client has one of them."""

    def member_order(self, state: H, client: ClientId) -> Order:
        """The order of a client that has a cluster: that cluster's model."""
        cluster = state.assign[client]
        return Order(models=(str(cluster),), cluster=cluster)

    def continued(self, state: H, fresh: H) -> H:
        if not state.models:
            raise ValueError("that run has formed no groups")
        settings = {name: getattr(fresh, name) for name in SETTINGS if hasattr(fresh, name)}
        if settings.get("schedule"):
            raise ValueError(
                "the method counts rounds since its first run, and training.lr_steps is a schedule of one run; leave it out"
            )
        return replace(state, asked=(), **settings)

    def model(self, state: H, key: str) -> Vector:
        if key == START:
            return state.start
        return state.models[int(key)]

    def serve(self, state: H, client: ClientId) -> Order:
        if client in state.assign:
            cluster = state.assign[client]
            return Order(models=(str(cluster),), cluster=cluster)
        every_key = tuple(str(k) for k in range(len(state.models)))
        return Order(models=every_key or (START,))

    serves: ClassVar[Serves] = "chosen"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        best = 0
        if len(job.models) > 1:
            best = lowest_loss(job.models, local)
        return ((1.0, job.models[best]),)

    def clusters(self, state: H) -> tuple[Vector, ...]:
        return state.models

    def assignment(self, state: H) -> Mapping[ClientId, int]:
        return state.assign

    def shown(self, state: H) -> Shown:
        return Shown({"clusters": len(state.models), "sizes": sizes(state)})

    def forget(self, state: H, client: ClientId) -> H:
        return replace(
            state, assign=without(state.assign, client), asked=without(state.asked, client)
        )


class HardClustered(ManyModels[H], Generic[H]):
    """Plans the phases and gives each report to the right function.

    A method writes how clusters are formed (`clustering_phase`, `form_clusters`), how a round
    changes their models (`aggregate`) and how newcomers join (`assign_newcomers`).
    """

    facts: ClassVar[Facts] = Facts(phases=(ENTRY,))

    @abstractmethod
    def clustering_phase(self, state: H) -> Phase:
        """The phase whose reports `form_clusters` takes."""

    @abstractmethod
    def entry_sizes(self, state: H) -> Mapping[str, int]:
        """The vectors of a newcomer's entry report and their lengths, as in `Phase.sizes`."""

    @property
    def entry_numbers(self) -> Mapping[str, Expected]:
        """The numbers of a newcomer's entry report."""
        return {}

    @abstractmethod
    def entry_order(self, state: H) -> Order:
        """The order for a client without a cluster, in whichever phase."""

    @abstractmethod
    def form_clusters(self, state: H, reports: Reports, average: Average = MEAN) -> H:
        """The state with clusters, from one or more reports of the clustering phase."""

    @abstractmethod
    def assign_newcomers(self, state: H, reports: Reports) -> H:
        """The state in which those who reported have clusters.

        A report is that of an entry, or that of a "train" phase with the order of an entry.
        """

    def aggregate(self, state: H, sums: Sums, reports: Reports) -> H:
        """The state after a round, from the reports of members: here the averages of their sums."""
        models = [sums.mean(str(k), otherwise=model) for k, model in enumerate(state.models)]
        return replace(state, models=tuple(models))

    def plan(self, state: H, view: View) -> Phase:
        if not state.models:
            return self.clustering_phase(state)
        newcomers = unassigned(state, view)
        if newcomers:
            return Phase(
                ENTRY,
                newcomers,
                self.entry_sizes(state),
                ends_round=False,
                may_be_empty=True,
                numbers=self.entry_numbers,
            )
        return Phase(sizes={MODEL: state.start.size})

    def order(self, state: H, phase: Phase, client: ClientId) -> Order:
        if phase.name != ENTRY and client in state.assign:
            return self.member_order(state, client)
        return replace(self.entry_order(state), whole=True)

    def terms(self, state: H, phase: Phase, client: ClientId, report: Report) -> Terms:
        """A member's report counts in its cluster by samples; one that lets its client join is compared."""
        if self.facts.individual or phase.name == ENTRY or client not in state.assign:
            return ()
        return sample_term(report, str(state.assign[client]))

    def fold(self, state: H, phase: Phase, sums: Sums, reports: Reports) -> H:
        if not state.models:
            if not reports:
                return state
            return self.form_clusters(state, reports, sums.average)
        members, newcomers = by_membership(state.assign, reports)
        if phase.name == ENTRY:
            admitted = self.assign_newcomers(state, newcomers)
            return replace(admitted, asked=unanswered(state.asked, phase, admitted.assign))
        return self._with_newcomers(self.aggregate(state, sums, members), newcomers)

    def _with_newcomers(self, trained: H, newcomers: Reports) -> H:
        """The state after a round, with the clusters of those who joined in it."""
        return replace(self.assign_newcomers(trained, newcomers), asked=())


def invited(phase: Phase) -> tuple[ClientId, ...]:
    """The clients that were invited to a phase that is being folded."""
    if isinstance(phase.cohort, tuple):
        return phase.cohort
    return ()


def unanswered(
    asked: Sequence[ClientId], phase: Phase, answered: Collection[ClientId]
) -> tuple[ClientId, ...]:
    """Clients that were asked in this phase or before and have not answered, in ascending order.

    Args:
        asked: those that did not answer before.
        phase: names those who were invited.
        answered: all clients that need not be asked again.
    """
    clients = set(asked)
    clients.update(invited(phase))
    clients.difference_update(answered)
    in_order = sorted(clients)
    return tuple(in_order)
