"""FeSEM(K): K-means over client models in every round, between rounds of training.

Papers. Long et al. 2023, Multi-center federated learning: clients clustering for better
personalization, algorithm 1 ("stochastic EM"), and its first version, Xie et al. 2020, which has no
proximal term (mu = 0).

Our deviations.
- A warm-up of all clients comes first, so that K-means has something to cluster.
- The E- and M-steps use the latest model of every client, invited in this round or not.
- The strength mu of the proximal term is the same for all. With equation 7 it is larger for clients
  with fewer samples.
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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import (
    RUNS,
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
    Buffering,
    ClientId,
    Facts,
    Order,
    PrivacyFacet,
    Reports,
    Setup,
    Shown,
    Sums,
    Trainings,
    without,
)
from covey.shared.strategies.bases.centres import MEAN_OF_CENTRES, Centred, MultiCentre, pull
from covey.shared.strategies.bases.cut import with_card
from covey.shared.strategies.bases.hard import START, feature_span, has_clusters, joined, sizes
from covey.shared.strategies.bases.single import vectors_of
from covey.shared.strategies.bases.soft import merged
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    Job,
    Local,
    Report,
    trained_report,
)
from covey.shared.strategies.expected import STRENGTH
from covey.shared.strategies.phase_names import WARMUP

SKETCH = 2048  # dimensions of the random projection

# of the stop conditions: E-steps in a row, and the largest change of J that counts as none, as a share of J
STOP_AFTER = 3
STOP_TOLERANCE = 1e-3


@dataclass(frozen=True)
class FesemState(Centred):
    """What K-means compares of the models, and how it went."""

    span: tuple[int, int] = (0, 0)  # start and stop of the features in a model
    sketches: dict[ClientId, Vector] = field(default_factory=dict)  # (2048,), features: sketch
    centre_sketches: tuple[Vector, ...] = ()  # of the centres
    round: int = 0  # rounds that are complete
    spread_after: float = 0.0  # J after the last M-step
    settled: int = 0  # the last E-steps in a row that met the stop condition


class Fesem(MultiCentre[FesemState]):
    """Each client follows the centre of the models most like its own."""

    facts: ClassVar[Facts] = replace(
        MultiCentre.facts,
        signatures=(WARMUP, ENTRY),
        numbers=MultiCentre.facts.numbers_with({TRAIN: {"mu": STRENGTH}}),
    )

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
    distance: Distance = Field(
        "l2sq", description="The distance between the features of a model and of a centre."
    )
    features: Literal["full", "last_kernel", "last_layer", "sketch"] = Field(
        "full",
        description="The compared vector: all parameters, a part of them, or a random projection of "
        "all to 2048 dimensions (sketch).",
    )
    m_step: Literal["all", "participants"] = Field(
        "all",
        description="The models of which a centre is the mean: the latest of all its members, or "
        "those reported in this round.",
    )
    stop: Literal["never", "assignments", "objective"] = Field(
        "never",
        description="End the run before rounds.count: once in three E-steps in a row no agent changes its group "
        "(assignments), or J after the M-step changes by at most a thousandth (objective).",
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

    def entry_order(self, state: FesemState) -> Order:
        key = MEAN_OF_CENTRES if state.models else START
        return Order(models=(key,))

    def member_order(self, state: FesemState, client: ClientId) -> Order:
        cluster = state.assign[client]
        return Order(models=(str(cluster),), numbers={"mu": self.mu}, cluster=cluster)

    # -- the client --------------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        centre = job.models[0]
        correction = pull(centre, job.numbers.get("mu"))
        result = local.train(centre, Drill(correction))
        return with_card(trained_report(result, local), job, local), client_state

    # -- the server --------------------------------------------------------------------------------

    def form_clusters(
        self, state: FesemState, reports: Reports, average: Average = MEAN
    ) -> FesemState:
        state = self.keep(state, reports)
        clients = tuple(state.stored)
        rows = [self._features(state, client) for client in clients]
        clusters = min(state.count, len(rows))
        best = kmeans(rows, clusters, n_init=RUNS, seed=state.seed, distance=self.distance)
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
        state, moved = self._e_step(state)
        counted: Collection[ClientId] = state.stored
        if self.m_step == "participants":
            # a client that was moved to an empty cluster counts with its latest model
            counted = sorted({client for client, _ in reports}.union(moved))
        state = self._m_step(state, counted, sums.average)
        state = self._measured(state)
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
        labels, apart = self.nearest_centres(state, clients)
        spread = float(np.mean(apart[np.isfinite(apart)]))
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
            if not members:
                continue
            models[k] = average.mean([(state.stored[client], 1.0) for client in members])
            if not sketches:
                continue
            if not average.single:
                # a projection of the mean is the mean of the projections
                sketches[k] = mean([(state.sketches[client], 1.0) for client in members])
            else:
                span = slice(*state.span)
                features = models[k][span]
                sketches[k] = sketch([features], SKETCH, state.seed)[0]
        return replace(state, models=tuple(models), centre_sketches=tuple(sketches))

    def _measured(self, state: FesemState) -> FesemState:
        """The state with J after the M-step: the mean distance to the own new centre."""
        total = 0.0
        count = 0
        for k, centre in enumerate(self._centres(state)):
            members = [client for client in state.stored if state.assign[client] == k]
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
        sketches: dict[ClientId, Vector] = {}
        if self.features == "sketch" and reports:
            span = slice(*state.span)
            projected = sketch([model[span] for model in models.values()], SKETCH, state.seed)
            for i, client in enumerate(models):
                sketches[client] = projected[i].copy()
        return replace(
            state, stored=merged(state.stored, models), sketches=merged(state.sketches, sketches)
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
            return change <= STOP_TOLERANCE * before.spread_after
        return all(after.assign[client] == cluster for client, cluster in before.assign.items())

    def stop_reason(self, state: FesemState) -> str:
        if self.stop == "never" or state.settled < STOP_AFTER:
            return ""
        if self.stop == "assignments":
            return f"no agent changed its group in {state.settled} successive E-steps"
        share = f"{STOP_TOLERANCE:.3g}"
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
                f"{largest} of {everybody} agents share one of {state.count} groups: "
                "the groups have collapsed. "
                "Longer local training or a weaker pull (strategy.mu) makes the models differ more"
            )
        return Shown(facts)

    # -- privacy -----------------------------------------------------------------------------------

    @property
    def privacy(self) -> PrivacyFacet:
        leaks = {
            "m_step": self.m_step != "participants",
            "features": self.features == "sketch",
            "stop": self.stop != "never",
        }
        named = " and ".join(name for name, leaks_data in leaks.items() if leaks_data)
        refusal = (
            f"fesem's {named} would use stored models outside the account; set m_step: participants, "
            "and leave features: sketch and stop at their defaults"
        )
        return PrivacyFacet(
            Trainings(first_epochs=None),
            None if named else "chosen",
            refusal if named else "",
            self._nearest_of_each,
            lambda job, signature: job.models[0],
        )

    def _nearest_of_each(self, state: FesemState, reports: Reports) -> Mapping[ClientId, int]:
        """E-step of those who reported, each by its own model alone. Empty clusters stay empty."""
        clients = [client for client, _ in reports]
        if not clients:
            return {}
        span = slice(*state.span)
        rows = [report.vectors[MODEL][span] for _, report in reports]
        labels, _ = nearest(rows, [centre[span] for centre in state.models], self.distance)
        return dict(zip(clients, labels.tolist(), strict=True))

    def forget(self, state: FesemState, client: ClientId) -> FesemState:
        return replace(super().forget(state, client), sketches=without(state.sketches, client))
