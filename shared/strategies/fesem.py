"""FeSEM(K): K-means over client models, interleaved with federated training ("stochastic EM").

Long et al. 2023, Multi-center federated learning: clients clustering for better personalization, algorithm 1, and
its first version, Xie et al. 2020, which has no pull (mu = 0). Our choices: a warm-up
of all clients gives K-means something to cluster; E and M use the latest model of every client, invited or not;
the pull has a constant strength unless `prox` is "paper". E and M of the next round are done as soon as this
round's models are there, so that evaluation sees the newest centres. We follow the paper, not its code, whose
first points are noise, which skips clusters of one client, and which has no pull. Algorithm 1 repeats "while the stop condition
is not satisfied"; `stop` reads it as K-means does: assignments that rest, or J that hardly changes. By default rounds are counted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import Distance, distances, kmeans, nearest, refill, sketch
from covey.shared.numerics.vectors import Vector, mean
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    GradientCorrection,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Routes,
    Setup,
)
from covey.shared.strategies.bases.hard import Clustered, HardClustered, feature_span, joined, sizes

SKETCH = 2048  # dimensions of the random projection


@dataclass(frozen=True)
class FesemState(Clustered):
    """Besides the clusters: `span` of the features in a model; the latest model W_i (d,) of each client, the
    round from which it may be used, and its samples; sketches (2048,) of models and centres where features
    are sketched; rounds folded; J, the mean distance to the own centre, after the last E and after the last M; empty
    clusters seeded by the last E; successive E-steps up to now that met the stop condition."""

    span: tuple[int, int] = (0, 0)
    seed: int = 0
    stored: dict[ClientId, Vector] = field(default_factory=dict)
    since: dict[ClientId, int] = field(default_factory=dict)
    samples: dict[ClientId, int] = field(default_factory=dict)
    sketches: dict[ClientId, Vector] = field(default_factory=dict)
    centre_sketches: tuple[Vector, ...] = ()
    round: int = 0
    spread: float = 0.0
    reseeded: int = 0
    spread_after: float = 0.0
    settled: int = 0


class Fesem(HardClustered[FesemState]):
    """Each client follows the centre of the models most like its own."""

    signature_phases: ClassVar[tuple[str, ...]] = ("warmup", "entry")
    keeps_models: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "K-means over client models in every round, with a pull towards the own centre"
    )
    source: ClassVar[str] = "Long et al. 2023"

    name: Literal["fesem"] = "fesem"
    n_clusters: int = Field(2, ge=1, description="K, the number of centres")
    mu: float = Field(
        0.1, ge=0, description="strength of the pull towards the centre; 0: the version of 2020"
    )
    prox: Literal["constant", "paper"] = Field(
        "constant",
        description="paper: mu * mean samples / own samples, as its equation 7 weighs the loss",
    )
    distance: Distance = Field("l2sq", description="of a model's features to a centre's")
    features: Literal["full", "last_kernel", "last_layer", "sketch"] = Field(
        "full",
        description="what is compared: all parameters, a part, or a random projection to 2048 dimensions",
    )
    restarts: int = Field(
        20, ge=1, description="K-means runs after the warm-up; the tightest is taken"
    )
    warmup_epochs: int | None = Field(
        None, ge=1, description="epochs before clustering; null: as in a round"
    )
    warmup_quorum: float = Field(
        0.5, ge=0, le=1, description="share of agents that must report before clustering"
    )
    update_center_every: int = Field(1, ge=1, description="rounds between two E-steps")
    weighted_centers: bool = Field(
        False, description="centres weigh models by samples; the paper does not"
    )
    m_step: Literal["all", "participants"] = Field(
        "all",
        description="centres are means of all members' latest models, or of this round's reporters",
    )
    max_age: int | None = Field(
        None, ge=0, description="leave models older than so many rounds out of E and M"
    )
    newcomer_start: Literal["mean", "start"] = Field(
        "mean",
        description="where a newcomer's first training starts: the mean of the centres, or the common start",
    )
    stop: Literal["never", "assignments", "objective"] = Field(
        "never",
        description="end the run before rounds.count: once no agent changes its cluster, or once J hardly changes",
    )
    stop_after: int = Field(
        3, ge=1, description="successive E-steps that must meet the stop condition"
    )
    stop_tolerance: float = Field(
        1e-3,
        ge=0,
        description="stop: objective: largest change of J after the M-step that counts as none, as a share of J",
    )

    @model_validator(mode="after")
    def _sketches_keep_no_l1(self) -> Self:
        if self.features == "sketch" and self.distance == "l1":
            raise ValueError(
                "a random projection does not keep l1 distances: take distance l2sq or cosine"
            )
        return self

    def init(self, setup: Setup) -> FesemState:
        span = feature_span("full" if self.features == "sketch" else self.features, setup.layout)
        return FesemState(setup.starts[0], span=(span.start, span.stop), seed=setup.seed)

    def clustering_phase(self, state: FesemState) -> Phase:
        return Phase(
            "warmup", "all", self.entry_sizes(state), ends_round=False, quorum=self.warmup_quorum
        )

    def entry_sizes(self, state: FesemState) -> Mapping[str, int]:
        return {"model": state.start.size}

    def entry_order(self, state: FesemState) -> Order:
        key = "mean" if state.models and self.newcomer_start == "mean" else "start"
        return Order(
            models=(key,), numbers={"epochs": self.warmup_epochs} if self.warmup_epochs else {}
        )

    def member_order(self, state: FesemState, client: ClientId) -> Order:
        k = state.assign[client]
        return Order(models=(str(k),), numbers={"mu": self._mu(state, client)}, cluster=k)

    def model(self, state: FesemState, key: str) -> Vector:
        if key == "mean":
            return mean([(centre, 1.0) for centre in state.models])
        return super().model(state, key)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        pull = (
            GradientCorrection(job.models[0], job.numbers["mu"])
            if job.numbers.get("mu")
            else GradientCorrection()
        )
        done = local.train(job.models[0], pull, epochs=job.numbers.get("epochs"))
        return Report(
            {"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}
        ), client_state

    def form_clusters(
        self, state: FesemState, reports: Reports, average: Average = MEAN
    ) -> FesemState:
        state = self._keep(state, reports)
        clients = tuple(state.stored)
        rows = [self._features(state, client) for client in clients]
        few = min(self.n_clusters, len(rows))
        best = kmeans(rows, few, n_init=self.restarts, seed=state.seed, distance=self.distance)
        everybody = (mean([(model, 1.0) for model in state.stored.values()]),) * self.n_clusters
        sketched = (
            (mean([(one, 1.0) for one in state.sketches.values()]),) * self.n_clusters
            if state.sketches
            else ()
        )
        state = replace(
            state,
            models=everybody,  # and there a centre stays that has no members yet
            centre_sketches=sketched,
            assign=dict(zip(clients, best.labels.tolist(), strict=True)),
            spread=best.inertia / len(rows),
        )
        return self._measured(self._maximise(state, clients, average))

    def assign_newcomers(self, state: FesemState, reports: Reports) -> FesemState:
        """A newcomer joins the centre nearest to its first model; the model counts in the next M-step."""
        if not reports:
            return state
        state = self._keep(state, reports)
        clients = [client for client, _ in reports]
        labels, _ = self._nearest(state, clients)
        return joined(state, dict(zip(clients, labels.tolist(), strict=True)))

    def aggregate(self, state: FesemState, reports: Reports, average: Average = MEAN) -> FesemState:
        before = state
        state = self._keep(replace(state, round=state.round + 1), reports)
        moved: tuple[ClientId, ...] = ()
        has_e_step = state.round % self.update_center_every == 0
        if has_e_step:
            state, moved = self._expect(state)
        reporters = {
            client for client, _ in reports
        }  # who seeds an empty cluster counts with its latest model
        counted = (
            sorted(reporters.union(moved)) if self.m_step == "participants" else self._fresh(state)
        )
        state = self._measured(self._maximise(state, counted, average))
        if not has_e_step:
            return state
        return replace(state, settled=before.settled + 1 if self._rests(before, state) else 0)

    def stop_reason(self, state: FesemState) -> str:
        if self.stop == "never" or state.settled < self.stop_after:
            return ""
        if self.stop == "assignments":
            return f"no agent changed its cluster in {state.settled} successive E-steps"
        share = f"{self.stop_tolerance:.3g}"
        return f"J changed by no more than {share} of itself in {state.settled} successive E-steps"

    def private_routes(self) -> Routes:
        wrong = {
            "m_step": self.m_step != "participants",
            "weighted_centers": self.weighted_centers,
            "prox": self.prox == "paper",
            "features": self.features == "sketch",
            "max_age": self.max_age is not None,
            "stop": self.stop != "never",
        }
        named = [name for name, found in wrong.items() if found]
        if named:
            raise ValueError(
                f"fesem's {' and '.join(named)} would use stored models or numbers of samples outside the account; set "
                "m_step: participants, and leave weighted_centers, prox, features: sketch, max_age and stop at their defaults"
            )
        return "chosen"

    def private_choices(self, state: FesemState, reports: Reports) -> Mapping[ClientId, int]:
        """E for those who reported, each by its own model alone; an empty cluster is given nobody."""
        if (state.round + 1) % self.update_center_every:
            return {client: state.assign[client] for client, _ in reports}
        span = slice(*state.span)
        rows = [report.vectors["model"][span] for _, report in reports]
        centres = [centre[span] for centre in state.models]
        labels, _ = nearest(rows, centres, self.distance) if rows else (np.empty(0, np.int64), None)
        return dict(zip([client for client, _ in reports], labels.tolist(), strict=True))

    def private_fold(
        self, state: FesemState, models: tuple[Vector, ...], choices: Mapping[ClientId, int]
    ) -> FesemState:
        """The stored models stay the noised ones of the warm-up, so that nothing else is ever used."""
        return joined(replace(state, models=models, round=state.round + 1, asked=()), choices)

    def check_local_privacy(self) -> None:
        """A report holds the trained model and nothing else."""

    def signature_base(self, job: Job, signature: Vector) -> Vector:
        return job.models[0]

    def notes(self, state: FesemState) -> dict[str, Any]:
        if not state.models:
            return {}
        facts = {
            **super().notes(state),
            "J": state.spread,
            "J_after_M": state.spread_after,
            "reseeded": state.reseeded,
        }
        largest, everybody = max(sizes(state)), len(state.assign)
        if 1 < self.n_clusters <= everybody / 2 and everybody - largest < self.n_clusters:
            facts["warning"] = (
                f"{largest} of {everybody} agents share one of {self.n_clusters} clusters: the clusters have collapsed. "
                "Longer local training or a weaker pull (strategy.mu) tells the models apart"
            )
        return facts

    def _expect(self, state: FesemState) -> tuple[FesemState, tuple[ClientId, ...]]:
        """E: every client goes to the nearest centre; an empty cluster gets the client that lies farthest out.

        Returns those that were moved to empty clusters, too.
        """
        clients, fresh = tuple(state.stored), self._fresh(state)
        labels = np.array([state.assign[client] for client in clients])
        apart = np.full(len(clients), -math.inf)  # a stale model stays where it is
        if fresh:
            place = {client: i for i, client in enumerate(clients)}
            at = [place[client] for client in fresh]
            labels[at], apart[at] = self._nearest(state, fresh)
        filled = refill(labels, apart, self.n_clusters)
        moved = tuple(clients[i] for i in np.flatnonzero(filled != labels))
        state = replace(
            state,
            assign=dict(zip(clients, filled.tolist(), strict=True)),
            spread=float(np.mean(apart[np.isfinite(apart)])) if fresh else state.spread,
            reseeded=len(moved),
        )
        return state, moved

    def _maximise(
        self, state: FesemState, clients: Collection[ClientId], average: Average
    ) -> FesemState:
        """M: each centre is the average of its members among `clients`; without any it stays."""
        models, sketched = list(state.models), list(state.centre_sketches)
        for k in range(self.n_clusters):
            members = [client for client in clients if state.assign[client] == k]
            if not members:
                continue
            weights = [
                float(state.samples[client]) if self.weighted_centers else 1.0 for client in members
            ]
            if sum(weights) == 0:
                continue
            models[k] = average.mean(
                [(state.stored[one], weight) for one, weight in zip(members, weights, strict=True)]
            )
            if sketched and average.rule != "mean":
                sketched[k] = sketch([models[k][slice(*state.span)]], SKETCH, state.seed)[0]
            elif sketched:  # a projection of the mean is the mean of the projections
                sketched[k] = mean(
                    [(state.sketches[one], w) for one, w in zip(members, weights, strict=True)]
                )
        return replace(state, models=tuple(models), centre_sketches=tuple(sketched))

    def _measured(self, state: FesemState) -> FesemState:
        """The state with J after the M-step: over the clients whose models the last E may use, to their own new centre."""
        total, count = 0.0, 0
        fresh = set(self._fresh(state))
        for k, centre in enumerate(self._centres(state)):
            members = [
                client for client in state.stored if client in fresh and state.assign[client] == k
            ]
            if members:
                rows = [self._features(state, client) for client in members]
                total += float(distances(rows, [centre], self.distance).sum())
                count += len(members)
        return replace(state, spread_after=total / count) if count else state

    def _rests(self, before: FesemState, after: FesemState) -> bool:
        """Did this E-step, with the M-step behind it, change nothing that `stop` asks for?"""
        if self.stop == "objective":
            change = abs(after.spread_after - before.spread_after)
            return change <= self.stop_tolerance * before.spread_after
        return all(after.assign[client] == cluster for client, cluster in before.assign.items())

    def _keep(self, state: FesemState, reports: Reports) -> FesemState:
        """The reports' models as they are: these may be memory-mapped and are not copied."""
        sketched: dict[ClientId, Vector] = {}
        if self.features == "sketch" and reports:
            rows = [report.vectors["model"][slice(*state.span)] for _, report in reports]
            projected = sketch(rows, SKETCH, state.seed)
            sketched = {client: projected[i].copy() for i, (client, _) in enumerate(reports)}
        return replace(
            state,
            stored=_with(
                state.stored, {client: report.vectors["model"] for client, report in reports}
            ),
            since=_with(state.since, {client: state.round for client, _ in reports}),
            samples=_with(state.samples, {client: report.examples for client, report in reports}),
            sketches=_with(state.sketches, sketched),
        )

    def _nearest(self, state: FesemState, clients: Sequence[ClientId]) -> tuple[Any, Any]:
        rows = [self._features(state, client) for client in clients]
        return nearest(rows, self._centres(state), self.distance)

    def _centres(self, state: FesemState) -> Sequence[Vector]:
        return state.centre_sketches or [centre[slice(*state.span)] for centre in state.models]

    def _features(self, state: FesemState, client: ClientId) -> Vector:
        return (
            state.sketches[client] if state.sketches else state.stored[client][slice(*state.span)]
        )

    def _fresh(self, state: FesemState) -> list[ClientId]:
        if self.max_age is None:
            return list(state.stored)
        return [
            client for client in state.stored if state.round - state.since[client] <= self.max_age
        ]

    def _mu(self, state: FesemState, client: ClientId) -> float:
        if self.prox == "constant":
            return self.mu
        average = sum(state.samples.values()) / len(state.samples)
        return self.mu * average / max(state.samples[client], 1)


def _with(before: Mapping[ClientId, Any], news: Mapping[ClientId, Any]) -> dict[ClientId, Any]:
    return dict(sorted({**before, **news}.items()))
