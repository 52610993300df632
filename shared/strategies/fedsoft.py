"""FedSoft: one personal model per client, pulled towards every cluster by the share of its data that the cluster fits.

Ruan and Joe-Wong 2022, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, algorithm 1.
Our choices: the pulls to K models are one pull of strength lambda * U towards their
weighted mean c / U, so a round moves one vector each way and only an estimation moves K down. A void selection is
drawn again from those who were not asked. As in the authors' code the optimiser lives as long as the client, but it is
SGD with the training section's momentum and not Adam.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from covey.shared.errors import DataError
from covey.shared.numerics.averages import MEAN, PICKING, Average, Rule
from covey.shared.numerics.vectors import Vector, mean
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    LAST_MODEL,
    ClientId,
    ClientState,
    Expected,
    GradientCorrection,
    Job,
    Local,
    Mixture,
    Order,
    Phase,
    Report,
    Reports,
    Setup,
    Strategy,
    View,
)
from covey.shared.strategies.bases.losses import comparable
from covey.shared.strategies.bases.soft import SOFT, dominant, merged, unknown

VELOCITY = "velocity"  # in a client's state: its optimiser's (P,)


@dataclass(frozen=True)
class FedSoftState:
    """The common start and the K centres (d,); u_i (K,) and n_i of each client, who has a personal model, who came
    late and starts from the centres; rounds folded, the round of the last estimation, who was asked in vain."""

    start: Vector
    models: tuple[Vector, ...]
    seed: int
    participation: float
    importance: dict[ClientId, tuple[float, ...]] = field(default_factory=dict)
    samples: dict[ClientId, int] = field(default_factory=dict)
    trained: tuple[ClientId, ...] = ()
    late: tuple[ClientId, ...] = ()
    asked: tuple[ClientId, ...] = ()
    round: int = 0
    estimated: int = -1


class FedSoft(Strategy[FedSoftState]):
    """Clusters overlap, and every client keeps a model between them."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    summary: ClassVar[str] = (
        "soft clusters; each client trains one personal model pulled towards all of them"
    )
    source: ClassVar[str] = "Ruan and Joe-Wong 2022"

    name: Literal["fedsoft"] = "fedsoft"
    n_clusters: int = Field(2, ge=1, description="K, the number of clusters")
    pull: float = Field(
        0.1, alias="lambda", ge=0, description="strength of the pull towards the clusters; 0: none"
    )
    estimate_every: int = Field(
        2, ge=1, description="T_est, rounds between two estimations of importance by all"
    )
    selected: int | None = Field(
        None,
        ge=1,
        description="agents drawn per cluster and round; null: the run's share of all, split evenly",
    )
    persistent_optimizer: bool = Field(
        True,
        description="agents keep their optimiser's velocity across rounds, as in the authors' code",
    )
    smallest: float = Field(
        1e-4, gt=0, lt=1, description="sigma, the importance of a cluster that fits no sample"
    )

    @property
    def starts(self) -> int:
        return self.n_clusters

    def refuses(self, rule: Rule) -> str:
        return SOFT if rule in PICKING else ""

    def init(self, setup: Setup) -> FedSoftState:
        return FedSoftState(setup.starts[0], setup.starts, setup.seed, setup.participation)

    def plan(self, state: FedSoftState, view: View) -> Phase:
        importance = {"importance": Expected(self.n_clusters, most=1.0)}
        due = view.round < view.rounds and state.round % self.estimate_every == 0
        if due and state.estimated < state.round:
            return Phase("estimate", "all", ends_round=False, may_be_empty=True, numbers=importance)
        if newcomers := unknown(state.importance, state.asked, view):
            return Phase(
                "estimate", newcomers, ends_round=False, may_be_empty=True, numbers=importance
            )
        return Phase(cohort=self._cohort(state, view), sizes={"model": state.start.size})

    def order(self, state: FedSoftState, phase: Phase, client: ClientId) -> Order:
        if phase.name == "estimate":
            return Order(models=tuple(str(k) for k in range(self.n_clusters)))
        own = f"@{client}"
        first = client not in state.trained and client not in state.late
        numbers = {"pull": self.pull * math.fsum(self._importance(state, client))}
        return Order(
            (own, "start") if first else (own,), numbers, dominant(state.importance, client)
        )

    def model(self, state: FedSoftState, key: str) -> Vector:
        """The centres, the common start, or a client's anchor: the centres' mean weighted by u_i."""
        if key == "start":
            return state.start
        if key.startswith("@"):
            return mean(list(zip(state.models, self._importance(state, key[1:]), strict=True)))
        return state.models[int(key)]

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == "estimate":
            return Report(
                {}, local.examples, {"importance": self._estimate(job.models, local)}
            ), client_state
        anchor, strength = job.models[0], float(job.numbers["pull"])
        start = client_state[LAST_MODEL] if LAST_MODEL in client_state else job.models[-1]
        done = local.train(
            start, GradientCorrection(anchor, strength), velocity=client_state.get(VELOCITY)
        )
        kept = {**client_state, LAST_MODEL: done.end}
        if self.persistent_optimizer and done.velocity is not None:
            kept[VELOCITY] = done.velocity
        return Report(
            {"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}
        ), kept

    def fold(
        self, state: FedSoftState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> FedSoftState:
        if phase.name == "estimate":
            return self._learned(state, phase, reports)
        clients = [client for client, _ in reports]
        return replace(
            state,
            models=self._centres(state, phase, reports, average),
            samples=merged(state.samples, {client: report.examples for client, report in reports}),
            trained=tuple(sorted({*state.trained, *clients})),
            asked=(),
            round=state.round + 1,
        )

    def serve(self, state: FedSoftState, client: ClientId) -> Order:
        cluster = dominant(state.importance, client)
        if client in state.trained:
            return Order(cluster=cluster)
        return Order(
            models=(f"@{client}",) if client in state.importance else ("start",), cluster=cluster
        )

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        if LAST_MODEL in client_state:
            return ((1.0, client_state[LAST_MODEL]),)
        if not job.models:
            raise DataError(
                f"agent {job.client} has trained in this run but its model is gone: was its folder deleted?"
            )
        return ((1.0, job.models[0]),)

    def clusters(self, state: FedSoftState) -> tuple[Vector, ...]:
        return state.models

    def assignment(self, state: FedSoftState) -> Mapping[ClientId, int]:
        """Each client's most important cluster."""
        return {client: int(np.argmax(shares)) for client, shares in state.importance.items()}

    def memberships(self, state: FedSoftState) -> Mapping[ClientId, tuple[float, ...]]:
        return {
            client: tuple(share / math.fsum(shares) for share in shares)
            for client, shares in state.importance.items()
        }

    def notes(self, state: FedSoftState) -> dict[str, Any]:
        spread = (
            np.sum(list(self.memberships(state).values()), axis=0).tolist()
            if state.importance
            else []
        )
        return {"clusters": self.n_clusters, "importance": spread, "estimated": state.estimated}

    def _estimate(self, models: Sequence[Vector], local: Local) -> list[float]:
        """u_i: the share of samples that each cluster explains best, ties to the lowest."""
        losses = comparable([local.losses(model) for model in models])
        best = np.argmin(losses, axis=0)
        shares = np.bincount(best, minlength=len(models)) / local.examples
        return [max(float(share), self.smallest) for share in shares]

    def _learned(self, state: FedSoftState, phase: Phase, reports: Reports) -> FedSoftState:
        told = {client: report.numbers["importance"] for client, report in reports}
        news = {
            client: tuple(max(float(share), self.smallest) for share in shares)
            for client, shares in told.items()
        }
        late = (
            {client for client in news if client not in state.importance}
            if state.round > 0
            else set()
        )
        importance = merged(state.importance, news)
        invited = phase.cohort if isinstance(phase.cohort, tuple) else ()
        return replace(
            state,
            importance=importance,
            samples=merged(state.samples, {client: report.examples for client, report in reports}),
            late=tuple(sorted({*state.late, *late})),
            asked=tuple(sorted({*state.asked, *invited} - set(importance))),
            estimated=state.round,
        )

    def _importance(self, state: FedSoftState, client: ClientId) -> tuple[float, ...]:
        return state.importance.get(client, (1 / self.n_clusters,) * self.n_clusters)

    def _weights(self, state: FedSoftState, k: int, clients: Sequence[ClientId]) -> list[float]:
        """u_ik * n_i, which is v_ik but for a factor; who never told its samples counts as one of average size."""
        usual = sum(state.samples.values()) / len(state.samples) if state.samples else 1.0
        return [
            self._importance(state, client)[k] * state.samples.get(client, usual)
            for client in clients
        ]

    # -- selection: weighted, without replacement, and found again by `fold` from the cohort alone -----------------

    def _everybody(self, state: FedSoftState) -> bool:
        return self.selected is None and state.participation >= 1

    def _cohort(self, state: FedSoftState, view: View) -> Literal["all"] | tuple[ClientId, ...]:
        if self._everybody(state):
            return "all"
        left = view.present
        for _ in range(
            view.attempt
        ):  # a void draw: those next in line, and once all were asked, all again
            left = tuple(sorted(set(left) - self._drawn(state, left))) or view.present
        return tuple(sorted(self._drawn(state, left)))

    def _drawn(self, state: FedSoftState, clients: Sequence[ClientId]) -> set[ClientId]:
        return {
            client for k in range(self.n_clusters) for client in self._selection(state, k, clients)
        }

    def _selection(
        self, state: FedSoftState, k: int, clients: Sequence[ClientId]
    ) -> tuple[ClientId, ...]:
        """Sel_k: so many clients, drawn without replacement with probabilities v_.k.

        Each has an exponential waiting time of rate v_ik, and the first ones are taken (Efraimidis and Spirakis
        2006). Taking away clients that were not drawn changes nothing, so the cohort tells who stands for which k.
        """
        rates = self._weights(state, k, clients)
        draws = (generator(state.seed, "fedsoft", state.round, k, client) for client in clients)
        waits = {
            client: draw.exponential() / rate if rate > 0 else math.inf
            for client, draw, rate in zip(clients, draws, rates, strict=True)
        }
        return tuple(
            sorted(clients, key=lambda client: (waits[client], client))[: self._per_cluster(state)]
        )

    def _per_cluster(self, state: FedSoftState) -> int:
        known = len(state.importance) or 1
        return self.selected or max(round(state.participation * known / self.n_clusters), 1)

    def _centres(
        self, state: FedSoftState, phase: Phase, reports: Reports, average: Average
    ) -> tuple[Vector, ...]:
        """Uniform means over Sel_k among the reporters, for the draw has weighed them; weighted without a draw."""
        models = {
            client: report.vectors["model"] for client, report in reports if report.examples > 0
        }
        invited = phase.cohort if isinstance(phase.cohort, tuple) else tuple(models)
        centres = []
        for k, centre in enumerate(state.models):
            if self._everybody(state):
                members = list(models)
                weights = self._weights(state, k, members)
                shares = [self._importance(state, client)[k] for client in members]
            else:
                members = [
                    client for client in self._selection(state, k, invited) if client in models
                ]
                members.sort()
                weights = shares = [1.0] * len(members)
            pairs = [
                (models[client], weight) for client, weight in zip(members, weights, strict=True)
            ]
            centres.append(average.mean(pairs, shares) if sum(weights) > 0 else centre)
        return tuple(centres)
