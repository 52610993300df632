"""CLoVE: agents whose losses on all K models are alike train one of these models together.

Paper. Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty 2025, CLoVE: Personalized Federated Learning
through Clustering of Loss Vector Embeddings, algorithm 1 with model averaging, as in the authors'
code: K-means on the vectors of losses, then the matching of clusters to models with the least sum
of losses.

Our deviations.
- K-means has ten starts, the authors' code has one.
- Without `n_clusters` agents send a card first, and K is the number of groups that the cards show.
  The authors choose the best silhouette of the loss vectors.
- Agents are clustered in every round; the authors' code can stop once clusters are stable.
- Under secure sums losses have two digits.
- An agent that is evaluated has the model of its last round; one that was in none takes the model
  with its lowest loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from covey.shared.numerics import metrics
from covey.shared.numerics.clustering import kmeans
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    LARGEST,
    MODEL,
    SIGNATURE,
    TRAIN,
    ClientId,
    Expected,
    Facts,
    Order,
    Phase,
    Reports,
    Sealed,
    Setup,
    Shown,
    Sums,
    Terms,
    View,
    without,
)
from covey.shared.strategies.bases.cut import (
    CARD_ORDER,
    CARDS_ALONE,
    WHOLE_CARD_ASKED,
    Numbered,
    Tested,
    shift_facts,
    with_card,
    with_tests,
)
from covey.shared.strategies.bases.hard import ManyModels, joined
from covey.shared.strategies.bases.losses import LARGEST_LOSS, comparable
from covey.shared.strategies.bases.single import sample_term
from covey.shared.strategies.client_half import ClientState, Job, Local, Report, trained_report
from covey.shared.strategies.phase_names import CHOOSE

STARTS = 10  # of K-means


@dataclass(frozen=True)
class CloveState(Tested):
    """The cluster of a client is that of its last round."""

    count: int = 0  # K; 0 until the cards have come, if agents are asked for them
    seed: int = 0
    round: int = 0  # rounds that are complete
    spare: tuple[Vector, ...] = ()  # initial models
    chosen: dict[ClientId, int] = field(default_factory=dict)  # clusters of the present round


class Clove(Numbered, ManyModels[CloveState]):
    """The server clusters what IFCA's clients decide by: their losses."""

    facts: ClassVar[Facts] = Facts(
        numbers={SIGNATURE: WHOLE_CARD_ASKED},
        sealed=Sealed({SIGNATURE: "signature", CHOOSE: "choice"}),
    )

    summary: ClassVar[str] = "K models; agents with alike losses on all of them train one together"
    source: ClassVar[str] = "Bhatia et al. 2025"

    name: Literal["clove"] = "clove"

    @property
    def starts(self) -> int:
        return self.most_clusters

    def init(self, setup: Setup) -> CloveState:
        asks = self.asks_in(setup)
        state = CloveState(setup.starts[0], seed=setup.seed, spare=setup.starts, asks=asks)
        return state if asks else self._begun(state, self.count())

    def _begun(self, state: CloveState, count: int) -> CloveState:
        return replace(state, count=count, models=state.spare[:count], spare=())

    def plan(self, state: CloveState, view: View) -> Phase:
        if not state.count:
            return CARDS_ALONE
        if state.chosen and not view.attempt:
            return Phase(cohort=tuple(state.chosen), sizes={MODEL: state.start.size})
        losses = Expected(state.count, most=LARGEST)
        return Phase(CHOOSE, ends_round=False, numbers={"losses": losses}, draw=TRAIN)

    def order(self, state: CloveState, phase: Phase, client: ClientId) -> Order:
        if not state.count:
            return CARD_ORDER
        if phase.name == CHOOSE:
            every = tuple(str(k) for k in range(state.count))
            return Order(models=every, cluster=state.assign.get(client))
        cluster = state.chosen.get(client, 0)
        return Order(models=(str(cluster),), cluster=cluster)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == SIGNATURE:
            return with_card(Report({}, local.examples), job, local), client_state
        if job.phase == CHOOSE:
            losses = comparable([local.loss(model) for model in job.models]).tolist()
            return Report({}, local.examples, {"losses": losses}), client_state
        return trained_report(local.train(job.models[0]), local), client_state

    def terms(self, state: CloveState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name != TRAIN:
            return ()
        return sample_term(report, str(state.chosen.get(client, 0)))

    def fold(self, state: CloveState, phase: Phase, sums: Sums, reports: Reports) -> CloveState:
        if phase.name == SIGNATURE:
            state, cards = with_tests(state, reports)
            return self._begun(state, self.count(state.chances, cards))
        if phase.name == CHOOSE:
            losses = {client: report.numbers["losses"] for client, report in reports}
            return replace(state, chosen=matched(losses, state.seed) if losses else {})
        models = [sums.mean(str(k), otherwise=model) for k, model in enumerate(state.models)]
        trained = {client: state.chosen.get(client, 0) for client, _ in reports}
        moved = replace(state, models=tuple(models), chosen={}, round=state.round + 1)
        return joined(moved, trained)

    def shown(self, state: CloveState) -> Shown:
        facts = dict(super().shown(state).notes)
        if self.gate == "cards":
            facts |= shift_facts(state, self.gate)
        return Shown(facts)

    def forget(self, state: CloveState, client: ClientId) -> CloveState:
        return replace(super().forget(state, client), chosen=without(state.chosen, client))


def matched(losses: Mapping[ClientId, list[float]], seed: int) -> dict[ClientId, int]:
    """The model of each client: clusters of the vectors of losses, matched to models at the least sum of losses.

    Args:
        losses: of each client on all K models.
        seed: of K-means.
    """
    rows = np.minimum(np.array(list(losses.values())), LARGEST_LOSS)
    clusters = min(rows.shape[1], len(rows))
    labels = kmeans(list(rows.astype(np.float32)), clusters, n_init=STARTS, seed=seed).labels
    # as many columns as there are clusters: some may be empty where vectors are equal
    sums = np.stack([rows[labels == k].sum(axis=0) for k in range(int(labels.max()) + 1)], axis=1)
    model_of = metrics.matching(sums)
    return {client: model_of[label] for client, label in zip(losses, labels.tolist(), strict=True)}
