"""Robust(TKM): cluster the clients' own solutions once with trimmed K-means, then robust rounds.

Paper. Ghosh, Hong, Yin, Ramchandran 2019, Robust Federated Learning in a Heterogeneous Environment.
Stage 1 finds the empirical risk minimiser of each client, stage 2 clusters these, stage 3 optimises
each cluster with a robust aggregator.

Our deviations.
- E_0 epochs of local training stand for the minimiser.
- Trimmed K-means runs 20 times, and the least trimmed cost is used.
- All means have uniform weights.
- A newcomer goes through stage 1 and joins the nearest centre.
- `n_clusters: null` lets tests on cards decide whether there are clusters, and silhouettes of the
  solutions how many (bases/cut.py).
- Clusters are formed once, as in the paper. A public code that clusters again in every round is
  FeSEM with other means.

A trimmed mean drops the smallest and the largest values of every coordinate. Rows may be memory-mapped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import (
    KMeans,
    Labels,
    Matrix,
    Rows,
    by_first_member,
    euclidean,
    kmeans,
    lloyd,
    nearest,
    read,
    tiles,
)
from covey.shared.numerics.vectors import Vector, combine, dot
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    A_COUNT,
    ENTRY,
    MODEL,
    ClientState,
    Drill,
    Facts,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Settings,
    Setup,
    Shown,
    Sums,
    trained_report,
)
from covey.shared.strategies.bases.cut import CARD_ASKED, ClusteredOnce, Cut, Grouped, with_card
from covey.shared.strategies.bases.hard import START, joined
from covey.shared.written import FIRST


def dropped(count: int, share: float) -> int:
    """How many of `count` values a share trims, rounded down."""
    # the small addition makes 0.1 of 30 exactly 3
    return math.floor((share * count) + 1e-9)


def trimmed_mean(rows: Rows, share: float) -> Matrix:
    """The mean (d,) of each coordinate without its smallest and its largest values.

    Args:
        rows: n vectors (d,).
        share: of the values that are dropped on each side.

    Raises:
        ValueError: nothing is left.
    """
    count = len(rows)
    cut = dropped(count, share)
    if not 0 <= 2 * cut < count:
        raise ValueError(f"{share} trimmed on both sides leaves nothing of {count} rows")
    size = len(rows[0])
    result = np.empty(size)
    for span in tiles(count, size):
        block = read(rows, span)
        if cut:
            block = np.sort(block, axis=0)[cut : count - cut]
        result[span] = block.mean(axis=0)
    return result


def trimmed_kmeans(
    rows: Sequence[Vector], clusters: int, *, share: float, n_init: int, seed: int
) -> KMeans:
    """Lloyd's algorithm with robust centres: the run with the least trimmed cost.

    The cost of a cluster is the sum of squared distances to its centre without the farthest
    members; it is the result's inertia.

    Args:
        rows: n vectors (d,).
        clusters: K.
        share: of the members of a cluster that are trimmed.
        n_init: the number of runs.
        seed: of the draws.

    Raises:
        ValueError: there are fewer rows than clusters.
    """
    if dropped(len(rows), share) == 0:
        return kmeans(rows, clusters, n_init=n_init, seed=seed, most=ITERATIONS)
    if not 1 <= clusters <= len(rows):
        raise ValueError(f"{len(rows)} rows cannot make {clusters} clusters")

    def centre(members: list[Any]) -> Matrix:
        return trimmed_mean(members, share)

    partitions: list[Labels] = []
    costs: list[float] = []
    for run in range(n_init):
        draw = generator(seed, "kmeans", run)
        labels, apart = lloyd(rows, clusters, draw, most=ITERATIONS, centre=centre)
        partitions.append(labels)
        costs.append(trimmed_cost(labels, apart, share))
    best = costs.index(min(costs))
    labels = by_first_member(partitions[best])
    centres: list[Vector] = []
    for k in range(labels.max() + 1):
        members = [rows[i] for i in np.flatnonzero(labels == k).tolist()]
        of_cluster = centre(members)
        centres.append(of_cluster.astype(np.float32))
    return KMeans(labels, tuple(centres), costs[best])


def trimmed_cost(labels: Labels, apart: Matrix, share: float) -> float:
    """The sum of the distances (n,) without the largest `share` of each cluster."""
    kept: list[float] = []
    for k in set(labels.tolist()):
        own = apart[labels == k]
        ascending = np.sort(own)
        cut = dropped(len(own), share)
        kept += ascending[: (len(own) - cut)].tolist()
    return math.fsum(kept)


SOLVE = "solve"  # phase of stage 1
ITERATIONS = 50  # of a run of K-means, at most


@dataclass(frozen=True)
class RobustState(Grouped):
    """Besides the clusters, the centres of stage 2."""

    parameters: int = 0  # P, the values at the front of a model that are compared
    seed: int = 0
    centres: tuple[Vector, ...] = ()  # u_k, of the features
    inertia: float = 0.0  # the trimmed cost of stage 2


class Robust(ClusteredOnce[RobustState]):
    """A few broken or hostile clients can change neither the clusters nor the models."""

    facts: ClassVar[Facts] = replace(
        ClusteredOnce.facts,
        individual=True,
        numbers=ClusteredOnce.facts.numbers_with(
            {SOLVE: {**CARD_ASKED, "epochs": A_COUNT}, ENTRY: {"epochs": A_COUNT}}
        ),
        sealed=None,
    )

    summary: ClassVar[str] = (
        "trimmed K-means over locally trained models, once, then trimmed means per cluster"
    )
    source: ClassVar[str] = "Ghosh et al. 2019"

    name: Literal["robust"] = "robust"
    n_clusters: int | None = Field(
        2,
        ge=1,
        json_schema_extra=FIRST,
        description="K: the number of clusters; null: found from cards and solutions.",
    )
    beta: float = Field(
        0.05,
        ge=0,
        lt=0.5,
        description="The share that stage 2 drops; with trim: mean, on each side.",
    )
    round_beta: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="The share of each coordinate's values that a round drops on each side.",
    )
    restarts: int = Field(
        20,
        ge=1,
        description="The number of runs of trimmed K-means. The one with the least trimmed cost is "
        "used.",
    )
    first_epochs: int = Field(10, ge=1, description="E_0: the epochs of stage 1.")

    def refuses(self, settings: Settings) -> str:
        match settings:
            case Average() if settings.single:
                return "it has robust means of its own: strategy.beta and round_beta"
        return super().refuses(settings)

    @property
    def cut(self) -> Cut:
        return Cut("complete", gate=self.gate, n_clusters=self.n_clusters, min_group=self.min_group)

    def init(self, setup: Setup) -> RobustState:
        return RobustState(
            setup.starts[0],
            asks=self.cut.asks(setup),
            parameters=setup.layout.parameters,
            seed=setup.seed,
        )

    def clustering_phase(self, state: RobustState) -> Phase:
        return Phase(SOLVE, "all", self.entry_sizes(state), ends_round=False)

    def entry_sizes(self, state: RobustState) -> Mapping[str, int]:
        return {MODEL: state.start.size}

    def entry_order(self, state: RobustState) -> Order:
        return Order(models=(START,), numbers={"epochs": self.first_epochs})

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        model = job.models[0]
        result = local.train(model, Drill(epochs=job.numbers.get("epochs")))  # E_0 in stage 1
        report = trained_report(result, local)
        return with_card(report, job, local), client_state

    def form_clusters(
        self, state: RobustState, reports: Reports, average: Average = MEAN
    ) -> RobustState:
        if not reports:
            return state
        rows = [report.vectors[MODEL][: state.parameters] for _, report in reports]
        clusters = min(self._clusters(state, rows), len(rows))
        best = trimmed_kmeans(
            rows, clusters, share=self.beta, n_init=self.restarts, seed=state.seed
        )
        clients = [client for client, _ in reports]
        solutions = [report.vectors[MODEL] for _, report in reports]
        labels = best.labels.tolist()
        models: list[Vector] = []
        for k in range(clusters):
            members = [w for w, label in zip(solutions, labels, strict=True) if label == k]
            if members:
                models.append(trimmed_mean(members, self.beta).astype(np.float32))
        return replace(
            state,
            models=tuple(models),
            assign=dict(zip(clients, labels, strict=True)),
            centres=best.centres,
            inertia=best.inertia,
        )

    def assign_newcomers(self, state: RobustState, reports: Reports) -> RobustState:
        """A newcomer's solution joins the nearest centre of stage 2."""
        if not reports:
            return state
        clients = [client for client, _ in reports]
        rows = [report.vectors[MODEL][: state.parameters] for _, report in reports]
        labels, _ = nearest(rows, state.centres)
        return joined(state, dict(zip(clients, labels.tolist(), strict=True)))

    def aggregate(self, state: RobustState, sums: Sums, reports: Reports) -> RobustState:
        """Stage 3: the trimmed mean of each cluster; one without reporters keeps its model."""
        models = list(state.models)
        for k in range(len(models)):
            members = [report for client, report in reports if state.assign[client] == k]
            if members:
                vectors = [report.vectors[MODEL] for report in members]
                models[k] = trimmed_mean(vectors, self.round_beta).astype(np.float32)
        return replace(state, models=tuple(models))

    def shown(self, state: RobustState) -> Shown:
        if not state.models:
            return Shown()
        return Shown({**super().shown(state).notes, "trimmed_cost": state.inertia})

    def _clusters(self, state: RobustState, rows: list[Vector]) -> int:
        """K as it is given, or else from the directions of the solutions as seen from the start."""
        if self.n_clusters is not None:
            return self.n_clusters
        start = state.start[: state.parameters]
        moves = [combine([(row, 1.0), (start, -1.0)]) for row in rows]
        lengths = [max(dot(move, move) ** 0.5, 1e-12) for move in moves]
        units = [combine([(m, 1.0 / size)]) for m, size in zip(moves, lengths, strict=True)]
        choice = self.cut.choice(euclidean(units), state.chances)
        return 1 if choice is None else choice.clusters
