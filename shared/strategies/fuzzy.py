"""Fuzzy-CFL: a small head on the model sorts each client's samples into K clusters, and clusters mix by the counts.

Tang et al. 2024, Fuzzy Clustered Federated Learning under Mixed Data Distributions (extended abstract), equations
2 to 4; there is no code. Our choices: signatures are the columns of the assignments; an
entropy term (`kappa`), which the abstract does not mention, keeps the head from putting everything into one cluster;
somebody without counts gets the plain mean of the cluster models, counts with it and is then served like the others.
Everybody counts with the model as it was received (`counts: received`): the head of a model that has just been trained on the
agent's own samples has learned to spread them over all clusters, which hides the agent's mixture.
The head is part of the model and needs task.model.options.head = n_clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from covey.shared.numerics.averages import MEAN, PICKING, Average, Rule
from covey.shared.numerics.vectors import Vector, mean
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    Contrast,
    Expected,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Setup,
    Strategy,
    View,
)
from covey.shared.strategies.bases.single import averaged
from covey.shared.strategies.bases.soft import SOFT, dominant, merged, unknown

Counted = Literal["received", "trained"]
Variant = Literal["full", "fedavg+clu", "fedavg+clusteredFL"]


@dataclass(frozen=True)
class FuzzyState:
    """The K cluster models (d,), the latest counts (K,) of each client, whether a round was folded, and the newcomers
    that were asked in vain since."""

    models: tuple[Vector, ...]
    counts: dict[ClientId, tuple[float, ...]] = field(default_factory=dict)
    begun: bool = False
    asked: tuple[ClientId, ...] = ()


class Fuzzy(Strategy[FuzzyState]):
    """Soft clusters for the traffic of FedAvg: one personal model down, one model and K counts up."""

    summary: ClassVar[str] = (
        "a contrastive head counts each client's samples per cluster; models mix by the counts"
    )
    source: ClassVar[str] = "Tang et al. 2024"

    name: Literal["fuzzy"] = "fuzzy"
    n_clusters: int = Field(
        2, ge=1, description="K, the number of clusters; also task.model.options.head"
    )
    beta: float = Field(
        1.0, ge=0, description="weight of the contrastive loss; 0: the head is not trained"
    )
    temperature: float = Field(1.0, gt=0, description="tau of the contrastive loss")
    kappa: float = Field(
        1.0, ge=0, description="weight of the entropy term, which favours clusters of equal size"
    )
    contrast: Literal["columns", "rows"] = Field(
        "columns", description="signatures of clusters, or of samples"
    )
    counts: Counted = Field(
        "received",
        description="samples are counted per cluster with the model as it was received, or after local training",
    )
    variant: Variant = Field(
        "full",
        description="ablations: fedavg+clu has the loss but one model, fedavg+clusteredFL known memberships but no loss",
    )
    known: dict[ClientId, tuple[float, ...]] = Field(
        {}, description="fedavg+clusteredFL: share of each cluster in an agent's data, by agent id"
    )

    @model_validator(mode="after")
    def _known_memberships_belong_to_their_ablation(self) -> Self:
        if (self.variant == "fedavg+clusteredFL") != bool(self.known):
            raise ValueError(
                "known memberships are what variant fedavg+clusteredFL needs, and no other takes"
            )
        for client, shares in self.known.items():
            if len(shares) != self.n_clusters or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
                raise ValueError(
                    f"known.{client}: {self.n_clusters} shares that sum to 1 are wanted, not {shares}"
                )
        return self

    @property
    def head(self) -> int:
        return (
            0 if self.n_clusters == 1 or self.variant == "fedavg+clusteredFL" else self.n_clusters
        )

    def refuses(self, rule: Rule) -> str:
        return (
            SOFT if rule in PICKING and self.n_clusters > 1 and self.variant != "fedavg+clu" else ""
        )

    def init(self, setup: Setup) -> FuzzyState:
        single = self.variant == "fedavg+clu"
        return FuzzyState((setup.starts[0],) * (1 if single else self.n_clusters))

    def plan(self, state: FuzzyState, view: View) -> Phase:
        counts = {"counts": Expected(self.n_clusters)}
        if (
            state.begun
            and len(state.models) > 1
            and (newcomers := unknown(state.counts, state.asked, view))
        ):
            return Phase("entry", newcomers, ends_round=False, may_be_empty=True, numbers=counts)
        return Phase(sizes={"model": state.models[0].size}, numbers=counts)

    def order(self, state: FuzzyState, phase: Phase, client: ClientId) -> Order:
        return self.serve(state, client)

    def serve(self, state: FuzzyState, client: ClientId) -> Order:
        if len(state.models) == 1:
            return Order(models=("0",))
        known = client in state.counts
        return Order(
            models=(f"@{client}" if known else "mean",), cluster=dominant(state.counts, client)
        )

    def model(self, state: FuzzyState, key: str) -> Vector:
        """A cluster's model, the mean of all, or a client's own: the mean weighted by its counts (equation 4)."""
        if key == "mean":
            return mean([(model, 1.0) for model in state.models])
        if key.startswith("@"):
            return mean(list(zip(state.models, state.counts[key[1:]], strict=True)))
        return state.models[int(key)]

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == "entry":
            return Report(
                {}, local.examples, {"counts": self._count(job, job.models[0], local)}
            ), client_state
        received = job.models[0]
        done = local.train(received, contrast=self._contrast())
        counted = received if self.counts == "received" else done.end
        numbers = {"counts": self._count(job, counted, local)}
        return Report(
            {"model": done.end}, local.examples, numbers, done.steps, done.loss, {"model": 0}
        ), client_state

    def fold(
        self, state: FuzzyState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> FuzzyState:
        told = {client: tuple(report.numbers["counts"]) for client, report in reports}
        counts = merged(state.counts, {client: own for client, own in told.items() if sum(own) > 0})
        if phase.name == "entry":
            invited = phase.cohort if isinstance(phase.cohort, tuple) else ()
            return replace(
                state, counts=counts, asked=tuple(sorted({*state.asked, *invited} - set(counts)))
            )
        if len(state.models) == 1:
            models: tuple[Vector, ...] = (
                averaged(reports, otherwise=state.models[0], average=average),
            )
        else:
            models = tuple(
                _gathered(model, k, reports, average) for k, model in enumerate(state.models)
            )
        return FuzzyState(models, counts, begun=True)

    def clusters(self, state: FuzzyState) -> tuple[Vector, ...]:
        return state.models

    def assignment(self, state: FuzzyState) -> Mapping[ClientId, int]:
        """Each client's cluster with the most samples."""
        if len(state.models) == 1:
            return {}
        return {client: int(np.argmax(counts)) for client, counts in state.counts.items()}

    def memberships(self, state: FuzzyState) -> Mapping[ClientId, tuple[float, ...]]:
        return {
            client: tuple(count / sum(counts) for count in counts)
            for client, counts in state.counts.items()
            if sum(counts) > 0
        }

    def notes(self, state: FuzzyState) -> dict[str, Any]:
        shares = np.array(list(self.memberships(state).values()))
        if not len(shares):
            return {}
        facts = {"clusters": len(state.models), "weights": shares.sum(axis=0).tolist()}
        if self.n_clusters > 1 and len(shares) > 1 and float(np.ptp(shares, axis=0).max()) < 0.02:
            facts["warning"] = (
                "all agents have the same share of each cluster, so the clusters' models are one and the same. "
                "A smaller strategy.kappa lets shares differ"
            )
        return facts

    def _contrast(self) -> Contrast | None:
        """No contrast at all without weight: then the training is FedAvg's, sample for sample."""
        if self.beta == 0 or self.head == 0:
            return None
        return Contrast(self.n_clusters, self.beta, self.temperature, self.kappa, self.contrast)

    def _count(self, job: Job, model: Vector, local: Local) -> list[float]:
        """n_i^k, which sum to n_i: by the head, or by what is known; a single cluster has everything."""
        if self.n_clusters == 1:
            return [float(local.examples)]
        if self.variant == "fedavg+clusteredFL":
            even = (1 / self.n_clusters,) * self.n_clusters
            return [share * local.examples for share in self.known.get(job.client, even)]
        return [float(count) for count in local.memberships(model, self.n_clusters)]


def _gathered(before: Vector, k: int, reports: Reports, average: Average) -> Vector:
    """Equation 3: the mean of the reported models weighted by their counts in cluster k; without any it stays."""
    counts: list[float] = []
    shares: list[float] = []
    for _, report in reports:
        own = report.numbers["counts"]
        total = math.fsum(own)
        fair = min(1.0, report.examples / total) if total > report.examples * (1 + 1e-9) else 1.0
        counts.append(float(own[k]) * fair)  # claimed samples are capped, and counts are samples
        shares.append(own[k] / total if total > 0 else 0.0)
    pairs = [
        (report.vectors["model"], count) for (_, report), count in zip(reports, counts, strict=True)
    ]
    return average.mean(pairs, shares) if sum(counts) > 0 else before
