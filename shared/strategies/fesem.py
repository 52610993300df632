"""FeSEM(K): K-means over client models in every round, between rounds of training.

Papers. Long et al. 2023, Multi-center federated learning: clients clustering for better
personalization, algorithm 1 ("stochastic EM"), and its first version, Xie et al. 2020, which has no
proximal term (mu = 0).

Our deviations.
- A warm-up of all clients comes first, so that K-means has something to cluster.
- The E- and M-steps use the latest model of every client, invited in this round or not.
- The strength mu of the proximal term is constant unless `prox` is "paper".
- The E- and M-steps of the next round are done as soon as the models of this round are there, so
  that evaluation uses the newest centres.
- We follow the paper and not its code, whose first points are noise, which skips clusters of one
  client, and which has no proximal term.
- Without `n_clusters` agents send a card with their warm-up, and K is the number of groups that the
  cards show; one if no test fires.
- Algorithm 1 repeats "while the stop condition is not satisfied". `stop` reads it as K-means does:
  assignments that do not change, or J that hardly changes. By default rounds are counted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from covey.shared.numerics.averages import MEAN, Average, fair_weights
from covey.shared.numerics.clustering import (
    Distance,
    Labels,
    Matrix,
    distances,
    kmeans,
    nearest,
    refill,
    sketch,
)
from covey.shared.numerics.vectors import Vector, mean
from covey.shared.strategies.base import (
    CHOICE,
    ENTRY,
    MODEL,
    TRAIN,
    WARMUP,
    Buffering,
    ClientId,
    ClientState,
    Job,
    Local,
    Order,
    OrderNumbers,
    PrivacyFacet,
    Report,
    Reports,
    Setup,
    Shown,
    Sums,
    Trainings,
    trained_report,
)
from covey.shared.strategies.bases.centres import (
    MEAN_OF_CENTRES,
    Centred,
    MultiCentre,
    Warmup,
    pull,
)
from covey.shared.strategies.bases.cut import with_card
from covey.shared.strategies.bases.hard import START, feature_span, has_clusters, joined, sizes
from covey.shared.strategies.bases.options import Quorum, Restarts, WarmupEpochs
from covey.shared.strategies.bases.single import samples_of, vectors_of
from covey.shared.strategies.bases.soft import merged

SKETCH = 2048  # dimensions of the random projection


@dataclass(frozen=True)
class FesemState(Centred):
    """What K-means compares of the models, and how it went."""

    span: tuple[int, int] = (0, 0)  # start and stop of the features in a model
    since: dict[ClientId, int] = field(default_factory=dict)  # the round of that model
    samples: dict[ClientId, int] = field(default_factory=dict)  # n_i
    sketches: dict[ClientId, Vector] = field(default_factory=dict)  # (2048,), features: sketch
    centre_sketches: tuple[Vector, ...] = ()  # of the centres
    round: int = 0  # rounds that are complete
    spread_after: float = 0.0  # J after the last M-step
    settled: int = 0  # the last E-steps in a row that met the stop condition


class Fesem(MultiCentre[FesemState]):
    """Each client follows the centre of the models most like its own."""

    signature_phases: ClassVar[tuple[str, ...]] = (WARMUP, ENTRY)
    client_fields = ("assign", "asked", "stored", "since", "samples", "sketches")

    order_numbers: ClassVar[OrderNumbers] = {TRAIN: ("mu",)}
    summary: ClassVar[str] = (
        "K-means over client models in every round, with a pull towards the own centre"
    )
    source: ClassVar[str] = "Long et al. 2023"

    name: Literal["fesem"] = "fesem"
    mu: float = Field(
        0.1,
        ge=0,
        description="The strength of the proximal term, which pulls a client's model towards its "
        "centre. 0 is the paper's first version.",
    )
    prox: Literal["constant", "paper"] = Field(
        "constant",
        description="How strong the proximal term is. constant: mu. paper: mu * mean samples / own "
        "samples, as equation 7 weights the loss.",
    )
    distance: Distance = Field(
        "l2sq", description="The distance between the features of a model and of a centre."
    )
    features: Literal["full", "last_kernel", "last_layer", "sketch"] = Field(
        "full",
        description="The compared vector: all parameters, a part of them, or a random projection of "
        "all to 2048 dimensions (sketch).",
    )
    restarts: Restarts = 20
    warmup_epochs: WarmupEpochs = None
    warmup_quorum: Quorum = 0.5
    update_center_every: int = Field(
        1, ge=1, description="The number of rounds from one E-step to the next."
    )
    weighted_centers: bool = Field(
        False, description="Weight models by samples in a centre. The paper does not."
    )
    m_step: Literal["all", "participants"] = Field(
        "all",
        description="The models of which a centre is the mean: the latest of all its members, or "
        "those reported in this round.",
    )
    max_age: int | None = Field(
        None,
        ge=0,
        description="Leave models that are older than this many rounds out of E- and M-steps; "
        "null: use all.",
    )
    newcomer_start: Literal["mean", "start"] = Field(
        "mean",
        description="Where the first training of a newcomer starts: at the mean of the centres, or "
        "at the common initial model.",
    )
    stop: Literal["never", "assignments", "objective"] = Field(
        "never",
        description="End the run before rounds.count: once no agent changes its cluster "
        "(assignments), or once J hardly changes (objective).",
    )
    stop_after: int = Field(
        3, ge=1, description="The number of E-steps in a row that must meet the stop condition."
    )
    stop_tolerance: float = Field(
        1e-3,
        ge=0,
        description="For stop: objective, the largest change of J after the M-step that counts as "
        "none, as a share of J.",
    )

    @model_validator(mode="after")
    def _sketches_keep_no_l1(self) -> Self:
        if self.features == "sketch" and self.distance == "l1":
            raise ValueError(
                "a random projection does not keep l1 distances: take distance l2sq or cosine"
            )
        return self

    def init(self, setup: Setup) -> FesemState:
        compared = "full" if self.features == "sketch" else self.features
        features = feature_span(compared, setup.layout)
        return FesemState(
            setup.starts[0],
            asks=self.asks_in(setup),
            count=self.count(),
            span=(features.start, features.stop),
            seed=setup.seed,
        )

    # -- orders ------------------------------------------------------------------------------------

    @property
    def warmup(self) -> Warmup:
        return Warmup(self.warmup_epochs, self.warmup_quorum)

    def entry_order(self, state: FesemState) -> Order:
        is_from_mean = state.models and self.newcomer_start == "mean"
        key = MEAN_OF_CENTRES if is_from_mean else START
        return Order(models=(key,), numbers=self.entry_epochs)

    def member_order(self, state: FesemState, client: ClientId) -> Order:
        cluster = state.assign[client]
        key = str(cluster)
        mu = self._mu(state, client)
        return Order(models=(key,), numbers={"mu": mu}, cluster=cluster)

    def _mu(self, state: FesemState, client: ClientId) -> float:
        if self.prox == "constant":
            return self.mu
        average = sum(state.samples.values()) / len(state.samples)
        own = max(state.samples[client], 1)
        return self.mu * average / own

    # -- the client --------------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        centre = job.models[0]
        correction = pull(centre, job.numbers.get("mu"))
        result = local.train(centre, correction, epochs=job.numbers.get("epochs"))
        return with_card(trained_report(result, local), job, local), client_state

    # -- the server --------------------------------------------------------------------------------

    def form_clusters(
        self, state: FesemState, reports: Reports, average: Average = MEAN
    ) -> FesemState:
        state = self.keep(state, reports)
        clients = tuple(state.stored)
        rows = [self._features(state, client) for client in clients]
        clusters = min(state.count, len(rows))
        best = kmeans(rows, clusters, n_init=self.restarts, seed=state.seed, distance=self.distance)
        # a centre that has no members yet is the mean of all
        everybody = mean([(model, 1.0) for model in state.stored.values()])
        sketches: tuple[Vector, ...] = ()
        if state.sketches:
            mean_sketch = mean([(vector, 1.0) for vector in state.sketches.values()])
            sketches = (mean_sketch,) * state.count
        assign = dict(zip(clients, best.labels.tolist(), strict=True))
        state = replace(
            state,
            models=(everybody,) * state.count,
            centre_sketches=sketches,
            assign=assign,
            spread=best.inertia / len(rows),
        )
        state = self._m_step(state, clients, average)
        return self._measured(state)

    def aggregate(self, state: FesemState, sums: Sums, reports: Reports) -> FesemState:
        if all(CHOICE in report.numbers for _, report in reports):
            # under client-level privacy: the models of the warm-up, with noise, stay those stored
            chosen = {client: report.numbers[CHOICE] for client, report in reports}
            after = replace(super().aggregate(state, sums, reports), round=state.round + 1)
            return joined(after, chosen)
        before = state
        state = replace(state, round=state.round + 1)
        state = self.keep(state, reports)
        has_e_step = state.round % self.update_center_every == 0
        moved: tuple[ClientId, ...] = ()
        if has_e_step:
            state, moved = self._e_step(state)
        if self.m_step == "all":
            counted = self._fresh(state)
        else:
            # a client that was moved to an empty cluster counts with its latest model
            counted = sorted({client for client, _ in reports}.union(moved))
        state = self._m_step(state, counted, sums.average)
        state = self._measured(state)
        if not has_e_step:
            return state
        settled = 0
        if self._is_settled(before, state):
            settled = before.settled + 1
        return replace(state, settled=settled)

    def _e_step(self, state: FesemState) -> tuple[FesemState, tuple[ClientId, ...]]:
        """E-step: r_i = argmin_k Dist(W_i, W~_k). An empty cluster gets the farthest client.

        Returns:
            The state, and the clients that were moved to empty clusters.
        """
        clients = tuple(state.stored)
        fresh = self._fresh(state)
        labels = np.array([state.assign[client] for client in clients])
        apart = np.full(len(clients), -math.inf)  # a stale model stays where it is
        spread = state.spread
        if fresh:
            is_fresh = set(fresh)
            places = [i for i, client in enumerate(clients) if client in is_fresh]
            labels[places], apart[places] = self.nearest_centres(state, fresh)
            measured = apart[np.isfinite(apart)]
            spread = float(np.mean(measured))
        filled = refill(labels, apart, state.count)
        changed = np.flatnonzero(filled != labels)
        moved = tuple(clients[i] for i in changed)
        assign = dict(zip(clients, filled.tolist(), strict=True))
        state = replace(state, assign=assign, spread=spread, reseeded=len(moved))
        return state, moved

    def _m_step(
        self, state: FesemState, clients: Collection[ClientId], average: Average
    ) -> FesemState:
        """M-step: W~_k is the average of its members among `clients`; without any it stays."""
        models = list(state.models)
        sketches = list(state.centre_sketches)
        for k in range(state.count):
            members = [client for client in clients if state.assign[client] == k]
            claimed = [self._weight(state, client) for client in members]
            weights = fair_weights(claimed, average.share)
            if not sum(weights):
                continue
            stored = [state.stored[client] for client in members]
            models[k] = average.mean(list(zip(stored, weights, strict=True)))
            if not sketches:
                continue
            if not average.single:
                # a projection of the mean is the mean of the projections
                projected = [state.sketches[client] for client in members]
                projected_pairs = list(zip(projected, weights, strict=True))
                sketches[k] = mean(projected_pairs)
            else:
                span = slice(*state.span)
                features = models[k][span]
                sketches[k] = sketch([features], SKETCH, state.seed)[0]
        return replace(state, models=tuple(models), centre_sketches=tuple(sketches))

    def _weight(self, state: FesemState, client: ClientId) -> float:
        """The weight of a client in its centre."""
        return float(state.samples[client]) if self.weighted_centers else 1.0

    def _measured(self, state: FesemState) -> FesemState:
        """The state with J after the M-step.

        J is the mean distance to the own new centre, of those clients whose models count.
        """
        total = 0.0
        count = 0
        fresh = set(self._fresh(state))
        for k, centre in enumerate(self._centres(state)):
            members = [c for c in state.stored if c in fresh and state.assign[c] == k]
            if members:
                rows = [self._features(state, client) for client in members]
                apart = distances(rows, [centre], self.distance)
                total += float(apart.sum())
                count += len(members)
        if count == 0:
            return state
        return replace(state, spread_after=total / count)

    def keep(self, state: FesemState, reports: Reports) -> FesemState:
        models = vectors_of(reports)
        rounds = {client: state.round for client, _ in reports}
        samples = samples_of(reports)
        sketches: dict[ClientId, Vector] = {}
        if self.features == "sketch" and reports:
            span = slice(*state.span)
            projected = sketch([model[span] for model in models.values()], SKETCH, state.seed)
            for i, client in enumerate(models):
                sketches[client] = projected[i].copy()
        return replace(
            state,
            stored=merged(state.stored, models),
            since=merged(state.since, rounds),
            samples=merged(state.samples, samples),
            sketches=merged(state.sketches, sketches),
        )

    def nearest_centres(
        self, state: FesemState, clients: Sequence[ClientId]
    ) -> tuple[Labels, Matrix]:
        rows = [self._features(state, client) for client in clients]
        return nearest(rows, self._centres(state), self.distance)

    def _centres(self, state: FesemState) -> Sequence[Vector]:
        """The features of the centres."""
        if state.centre_sketches:
            return state.centre_sketches
        span = slice(*state.span)
        return [centre[span] for centre in state.models]

    def _features(self, state: FesemState, client: ClientId) -> Vector:
        """The features of a client's latest model."""
        if state.sketches:
            return state.sketches[client]
        span = slice(*state.span)
        return state.stored[client][span]

    def _fresh(self, state: FesemState) -> list[ClientId]:
        """The clients whose latest model is not too old."""
        if self.max_age is None:
            return list(state.stored)
        oldest = state.round - self.max_age
        return [client for client in state.stored if state.since[client] >= oldest]

    # -- buffered rounds ---------------------------------------------------------------------------

    @property
    def buffer(self) -> Buffering:
        """With `m_step: all` each fold makes all centres again, from the latest models of all clients."""
        return Buffering("", has_clusters, self._buffer_of, ages_together=self.m_step == "all")

    def _buffer_of(self, state: FesemState, client: ClientId, report: Report) -> int:
        """The centre nearest to the reported model."""
        span = slice(*state.span)
        features = report.vectors[MODEL][span]
        if state.centre_sketches:
            features = sketch([features], SKETCH, state.seed)[0]
        labels, _ = nearest([features], self._centres(state), self.distance)
        return int(labels[0])

    # -- the end of a run --------------------------------------------------------------------------

    def _is_settled(self, before: FesemState, after: FesemState) -> bool:
        """Whether this E-step and the M-step after it met the stop condition."""
        if self.stop == "objective":
            change = abs(after.spread_after - before.spread_after)
            return change <= self.stop_tolerance * before.spread_after
        return all(after.assign[client] == cluster for client, cluster in before.assign.items())

    def stop_reason(self, state: FesemState) -> str:
        if self.stop == "never" or state.settled < self.stop_after:
            return ""
        if self.stop == "assignments":
            return f"no agent changed its cluster in {state.settled} successive E-steps"
        share = f"{self.stop_tolerance:.3g}"
        return f"J changed by no more than {share} of itself in {state.settled} successive E-steps"

    def shown(self, state: FesemState) -> Shown:
        if not state.models:
            return Shown()
        facts = {**super().shown(state).notes, "J_after_M": state.spread_after}
        largest = max(sizes(state))
        everybody = len(state.assign)
        is_possible = 1 < state.count <= everybody / 2
        if is_possible and everybody - largest < state.count:
            facts["warning"] = (
                f"{largest} of {everybody} agents share one of {state.count} clusters: "
                "the clusters have collapsed. "
                "Longer local training or a weaker pull (strategy.mu) makes the models differ more"
            )
        return Shown(facts)

    # -- privacy -----------------------------------------------------------------------------------

    @property
    def privacy(self) -> PrivacyFacet:
        leaks = {
            "m_step": self.m_step != "participants",
            "weighted_centers": self.weighted_centers,
            "prox": self.prox == "paper",
            "features": self.features == "sketch",
            "max_age": self.max_age is not None,
            "stop": self.stop != "never",
        }
        named = " and ".join(name for name, leaks_data in leaks.items() if leaks_data)
        refusal = (
            f"fesem's {named} would use stored models or numbers of samples "
            "outside the account; set m_step: participants, and leave weighted_centers, prox, "
            "features: sketch, max_age and stop at their defaults"
        )
        return PrivacyFacet(
            Trainings(first_epochs=self.warmup_epochs),
            None if named else "chosen",
            refusal if named else "",
            self._nearest_of_each,
            lambda job, signature: job.models[0],
        )

    def _nearest_of_each(self, state: FesemState, reports: Reports) -> Mapping[ClientId, int]:
        """E-step of those who reported, each by its own model alone. Empty clusters stay empty."""
        clients = [client for client, _ in reports]
        if (state.round + 1) % self.update_center_every:
            return {client: state.assign[client] for client in clients}
        if not clients:
            return {}
        span = slice(*state.span)
        rows = [report.vectors[MODEL][span] for _, report in reports]
        labels, _ = nearest(rows, [centre[span] for centre in state.models], self.distance)
        return dict(zip(clients, labels.tolist(), strict=True))
