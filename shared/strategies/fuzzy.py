"""Fuzzy-CFL: a head on the model counts each client's samples per cluster, and models mix by them.

Paper. Tang et al. 2024, Fuzzy Clustered Federated Learning under Mixed Data Distributions (extended
abstract), equations 2 to 4. There is no code. n_i^k is the number of samples of client i in cluster
k. The head is part of the model and needs task.model.options.head = n_clusters.

Our deviations, where the abstract is silent.
- The signatures that are contrasted are the columns of the assignments.
- An entropy term (`kappa`) keeps the head from putting everything into one cluster.
- A client without counts gets the plain mean of the cluster models, counts with it, and is then
  served like the others.
- Clients count with the model as they received it (`counts: received`). The head of a model that
  was just trained on a client's own samples has learned to spread them over all clusters, which
  hides the client's mixture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from covey.shared.numerics.averages import Average
from covey.shared.numerics.vectors import Vector, mean
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
    Settings,
    Setup,
    Shares,
    Shown,
    Strategy,
    Sums,
    TaskData,
    Term,
    Terms,
    View,
    without,
)
from covey.shared.strategies.bases.hard import unanswered
from covey.shared.strategies.bases.single import KEY, sample_term
from covey.shared.strategies.bases.soft import SOFT, dominant, merged, unknown
from covey.shared.strategies.client_half import (
    ClientState,
    Contrast,
    Drill,
    Job,
    Local,
    Report,
    trained_report,
)
from covey.shared.written import FIRST

# keys
MEAN_OF_CLUSTERS = "mean"
OWN = "@"  # a client's own mixture of the cluster models; its id follows

Counted = Literal["received", "trained"]
Variant = Literal["full", "fedavg+clu", "fedavg+clusteredFL"]


@dataclass(frozen=True)
class FuzzyState(Moving):
    """The cluster models and the clients' counts."""

    models: tuple[Vector, ...]  # K cluster models (d,)
    counts: dict[ClientId, Shares] = field(default_factory=dict)  # n_i^k (K,)
    begun: bool = False  # is a round complete?
    asked: tuple[ClientId, ...] = ()  # newcomers whose entry failed since the last complete round


class Fuzzy(Strategy[FuzzyState]):
    """Soft clusters for the traffic of FedAvg: one model down, one model and K counts up."""

    facts: ClassVar[Facts] = Facts(phases=(ENTRY,))
    summary: ClassVar[str] = (
        "a contrastive head counts each client's samples per group; models mix by the counts"
    )
    source: ClassVar[str] = "Tang et al. 2024"

    name: Literal["fuzzy"] = "fuzzy"
    n_clusters: int = Field(
        2,
        ge=1,
        json_schema_extra=FIRST,
        description="K: the number of groups. Set task.model.options.head to the same number.",
    )
    beta: float = Field(
        1.0, ge=0, description="The weight of the contrastive loss; 0: the head is not trained."
    )
    temperature: float = Field(
        1.0, gt=0, description="tau: the temperature of the contrastive loss."
    )
    kappa: float = Field(
        1.0, ge=0, description="The weight of the entropy term, which favours groups of equal size."
    )
    contrast: Literal["columns", "rows"] = Field(
        "columns",
        description="The signatures that are contrasted: of groups (columns) or samples (rows).",
    )
    counts: Counted = Field(
        "received",
        description="The model with which an agent counts its samples per group: as it was "
        "received, or after local training.",
    )
    variant: Variant = Field(
        "full",
        description="The ablations of the paper. fedavg+clu: the contrastive loss, but one model. "
        "fedavg+clusteredFL: known memberships, but no contrastive loss.",
    )
    known: dict[ClientId, Shares] = Field(
        {},
        description="The share of each group in an agent's data, by agent id "
        "(variant: fedavg+clusteredFL).",
    )

    @model_validator(mode="after")
    def _known_memberships_belong_to_their_ablation(self) -> Self:
        if (self.variant == "fedavg+clusteredFL") != bool(self.known):
            raise ValueError(
                "variant: fedavg+clusteredFL and known belong together: set both or neither"
            )
        for client, shares in self.known.items():
            has_all = len(shares) == self.n_clusters
            if not has_all or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
                raise ValueError(
                    f"known.{client}: expected {self.n_clusters} shares that sum to 1, got {shares}"
                )
        return self

    @property
    def projection_head(self) -> int:
        if self.n_clusters == 1 or self.variant == "fedavg+clusteredFL":
            return 0
        return self.n_clusters

    @property
    def _models(self) -> int:
        """The number of models on the server."""
        return 1 if self.variant == "fedavg+clu" else self.n_clusters

    def refuses(self, settings: Settings) -> str:
        match settings:
            case Average() if settings.picks and self._models > 1:
                return SOFT
            case TaskData(features) if self._contrast() is not None and not _is_image(features):
                return (
                    f"its contrastive loss needs images [1, height, width] or [3, height, width], and task.features is "
                    f"{list(features)}; set strategy.beta to 0, or strategy.variant to fedavg+clusteredFL"
                )
        return super().refuses(settings)

    def continued(self, state: FuzzyState, fresh: FuzzyState) -> FuzzyState:
        return replace(state, asked=())

    def init(self, setup: Setup) -> FuzzyState:
        return FuzzyState((setup.starts[0],) * self._models)

    def plan(self, state: FuzzyState, view: View) -> Phase:
        counts = {"counts": Expected(self.n_clusters)}
        if state.begun and len(state.models) > 1:
            newcomers = unknown(state.counts, state.asked, view)
            if newcomers:
                return Phase(ENTRY, newcomers, ends_round=False, may_be_empty=True, numbers=counts)
        return Phase(sizes={MODEL: state.models[0].size}, numbers=counts)

    def order(self, state: FuzzyState, phase: Phase, client: ClientId) -> Order:
        return self.serve(state, client)

    def serve(self, state: FuzzyState, client: ClientId) -> Order:
        if len(state.models) == 1:
            return Order(models=(KEY,))
        cluster = dominant(state.counts, client)
        key = MEAN_OF_CLUSTERS
        if client in state.counts:
            key = f"{OWN}{client}"
        return Order(models=(key,), cluster=cluster)

    def model(self, state: FuzzyState, key: str) -> Vector:
        """A cluster's model, the mean of all, or a client's own.

        Equation 4: a client's own is the mean of the cluster models weighted by its counts n_i^k.
        """
        if key == MEAN_OF_CLUSTERS:
            return mean([(model, 1.0) for model in state.models])
        if key.startswith(OWN):
            counts = state.counts[key.removeprefix(OWN)]
            return mean(list(zip(state.models, counts, strict=True)))
        return state.models[int(key)]

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        received = job.models[0]
        if job.phase == ENTRY:
            counts = self._count(job, received, local)
            return Report({}, local.examples, {"counts": counts}), client_state
        result = local.train(received, Drill(contrast=self._contrast()))
        counted = received if self.counts == "received" else result.end
        counts = self._count(job, counted, local)
        return trained_report(result, local, {"counts": counts}), client_state

    def terms(self, state: FuzzyState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name == ENTRY:
            return ()
        if len(state.models) == 1:
            return sample_term(report)
        [base] = self.serve(state, client).models
        return _by_counts(report, base)

    def fold(self, state: FuzzyState, phase: Phase, sums: Sums, reports: Reports) -> FuzzyState:
        reported: dict[ClientId, Shares] = {}
        for client, report in reports:
            own = tuple(report.numbers["counts"])
            if sum(own) > 0:
                reported[client] = own
        counts = merged(state.counts, reported)
        if phase.name == ENTRY:
            return replace(state, counts=counts, asked=unanswered(state.asked, phase, counts))
        models = [sums.mean(str(k), otherwise=before) for k, before in enumerate(state.models)]
        return FuzzyState(tuple(models), counts, begun=True)

    def clusters(self, state: FuzzyState) -> tuple[Vector, ...]:
        return state.models

    def assignment(self, state: FuzzyState) -> Mapping[ClientId, int]:
        """Each client's cluster with the most samples."""
        if len(state.models) == 1:
            return {}
        return {client: int(np.argmax(counts)) for client, counts in state.counts.items()}

    def _memberships(self, state: FuzzyState) -> Mapping[ClientId, Shares]:
        memberships: dict[ClientId, Shares] = {}
        for client, counts in state.counts.items():
            total = sum(counts)
            if total > 0:
                memberships[client] = tuple(count / total for count in counts)
        return memberships

    def shown(self, state: FuzzyState) -> Shown:
        shares = np.array(list(self._memberships(state).values()))
        if not len(shares):
            return Shown({}, self._memberships(state))
        total = shares.sum(axis=0)
        facts = {"clusters": len(state.models), "weights": total.tolist()}
        differences = np.ptp(shares, axis=0)
        largest = float(differences.max())
        if self.n_clusters > 1 and len(shares) > 1 and largest < 0.02:
            facts["warning"] = (
                "all agents have the same share of each group, so the groups' models are "
                "one and the same. A smaller strategy.kappa lets shares differ"
            )
        return Shown(facts, self._memberships(state))

    def _contrast(self) -> Contrast | None:
        """The contrastive loss; None without weight, so that training is exactly FedAvg's."""
        if self.beta == 0 or self.projection_head == 0:
            return None
        return Contrast(self.n_clusters, self.beta, self.temperature, self.kappa, self.contrast)

    def _count(self, job: Job, model: Vector, local: Local) -> list[float]:
        """n_i^k (K,), which sum to n_i: counted by the head, or from known memberships."""
        if self.n_clusters == 1:
            return [float(local.examples)]
        if self.variant == "fedavg+clusteredFL":
            equal = (1 / self.n_clusters,) * self.n_clusters
            return [share * local.examples for share in self.known.get(job.client, equal)]
        counts = local.memberships(model, self.n_clusters)
        return [float(count) for count in counts]

    def forget(self, state: FuzzyState, client: ClientId) -> FuzzyState:
        return replace(
            state, counts=without(state.counts, client), asked=without(state.asked, client)
        )


def _is_image(features: Sequence[int]) -> bool:
    return len(features) == 3 and features[0] in (1, 3)


def _by_counts(report: Report, base: str) -> Terms:
    """Equation 3: a reported model, trained from that of key `base`, counts in cluster k with the weight n_i^k."""
    counts = report.numbers["counts"]
    total = math.fsum(counts)
    # claimed samples are capped, and counts are samples
    fair = 1.0
    if total > report.examples * (1 + 1e-9):
        fair = min(1.0, report.examples / total)
    terms: list[Term] = []
    for k, count in enumerate(counts):
        if count > 0:
            weight = float(count) * fair
            terms.append(Term(str(k), weight, base=base, share=count / total))
    return tuple(terms)
