"""FedSoft: one personal model per client, pulled towards every cluster that fits its data.

Paper. Ruan and Joe-Wong 2022, FedSoft: Soft Clustered Federated Learning with Proximal Local
Updating, algorithm 1. u_ik is the importance of cluster k for client i, the share of its samples
that the cluster explains best.

Our deviations.
- The K proximal terms are one term of strength lambda * U_i towards the weighted mean of the
  centres, where U_i = sum_k u_ik. It has the same gradient, so a round sends one vector each way,
  and only an estimation sends K down.
- If a selection fails, the next one is drawn from those who were not asked.
- The optimiser lives as long as the client, as in the authors' code, but it is SGD with the
  momentum of the training section and not Adam.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from covey.shared.errors import DataError
from covey.shared.numerics.averages import Average
from covey.shared.numerics.vectors import Vector, mean
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    MODEL,
    TRAIN,
    ClientId,
    Clients,
    Expected,
    Facts,
    Models,
    Moving,
    Order,
    Phase,
    Reports,
    Serves,
    Settings,
    Setup,
    Shares,
    Shown,
    Strategy,
    Sums,
    Term,
    Terms,
    View,
    without,
)
from covey.shared.strategies.bases.hard import START, invited, unanswered
from covey.shared.strategies.bases.losses import comparable
from covey.shared.strategies.bases.single import counted, samples_of
from covey.shared.strategies.bases.soft import SOFT, dominant, merged, unknown
from covey.shared.strategies.client_half import (
    LAST_MODEL,
    ClientState,
    Drill,
    GradientCorrection,
    Job,
    Local,
    Mixture,
    Report,
    trained_report,
)
from covey.shared.strategies.expected import STRENGTH
from covey.shared.strategies.phase_names import ESTIMATE
from covey.shared.written import FIRST

VELOCITY = "velocity"  # client state: that of the optimiser (P,)
OWN = "@"  # key of a client's anchor; its id follows
ESTIMATE_EVERY = 2  # T_est: rounds from one estimation of importance by all clients to the next
SMALLEST = 1e-4  # sigma: the importance of a cluster that fits no sample


@dataclass(frozen=True)
class FedSoftState(Moving):
    """The centres and what is known of the clients."""

    start: Vector  # the common initial model (d,)
    models: Models  # the K centres (d,)
    seed: int
    participation: float  # C
    importance: dict[ClientId, Shares] = field(default_factory=dict)  # u_i (K,)
    samples: dict[ClientId, int] = field(default_factory=dict)  # n_i
    trained: Clients = ()  # clients that have a personal model
    late: Clients = ()  # newcomers, who start from the centres
    asked: Clients = ()  # clients that did not answer since the last complete round
    round: int = 0  # rounds that are complete
    estimated: int = -1  # the round of the last estimation


class FedSoft(Strategy[FedSoftState]):
    """Clusters overlap, and each client keeps a model between them."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    facts: ClassVar[Facts] = Facts(phases=(ESTIMATE,), numbers={TRAIN: {"pull": STRENGTH}})

    summary: ClassVar[str] = (
        "soft groups; each client trains one personal model pulled towards all of them"
    )
    source: ClassVar[str] = "Ruan and Joe-Wong 2022"

    name: Literal["fedsoft"] = "fedsoft"
    n_clusters: int = Field(
        2, ge=1, json_schema_extra=FIRST, description="K: the number of groups."
    )
    pull: float = Field(
        0.1,
        alias="lambda",
        ge=0,
        description="The strength of the proximal term, which pulls a client's model towards the "
        "groups; 0: none.",
    )
    selected: int | None = Field(
        None,
        ge=1,
        description="The number of agents that are drawn per group and round; null: the share "
        "that the run invites, divided evenly.",
    )

    @property
    def starts(self) -> int:
        return self.n_clusters

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Average) and settings.picks:
            return SOFT
        return super().refuses(settings)

    def init(self, setup: Setup) -> FedSoftState:
        starts = setup.starts
        return FedSoftState(starts[0], starts, setup.seed, setup.participation)

    def plan(self, state: FedSoftState, view: View) -> Phase:
        if self._is_estimation_due(state, view):
            return self._estimation("all")
        newcomers = unknown(state.importance, state.asked, view)
        if newcomers:
            return self._estimation(newcomers)
        return Phase(cohort=self._cohort(state, view), sizes={MODEL: state.start.size})

    def _is_estimation_due(self, state: FedSoftState, view: View) -> bool:
        """Whether all clients estimate their importance before the next round."""
        if view.round >= view.rounds or state.estimated >= state.round:
            return False
        return state.round % ESTIMATE_EVERY == 0

    def _estimation(self, cohort: Literal["all"] | Clients) -> Phase:
        """The phase in which these clients estimate their importance."""
        importance = Expected(self.n_clusters, most=1.0)
        return Phase(
            ESTIMATE,
            cohort,
            ends_round=False,
            may_be_empty=True,
            numbers={"importance": importance},
        )

    def order(self, state: FedSoftState, phase: Phase, client: ClientId) -> Order:
        if phase.name == ESTIMATE:
            return Order(models=tuple(str(k) for k in range(self.n_clusters)))
        keys = [f"{OWN}{client}"]
        if client not in state.trained and client not in state.late:
            keys.append(START)
        importance = self._importance(state, client)
        total = math.fsum(importance)  # U_i
        numbers = {"pull": self.pull * total}
        cluster = dominant(state.importance, client)
        return Order(tuple(keys), numbers, cluster)

    def model(self, state: FedSoftState, key: str) -> Vector:
        """A centre, the common start, or a client's anchor: the centres' mean weighted by u_i."""
        if key == START:
            return state.start
        if key.startswith(OWN):
            importance = self._importance(state, key.removeprefix(OWN))
            return mean(list(zip(state.models, importance, strict=True)))
        k = int(key)
        return state.models[k]

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == ESTIMATE:
            importance = self._estimate(job.models, local)
            return Report({}, local.examples, {"importance": importance}), client_state
        anchor = job.models[0]
        start = job.models[-1]
        if LAST_MODEL in client_state:
            start = client_state[LAST_MODEL]
        correction = GradientCorrection(anchor, float(job.numbers["pull"]))
        result = local.train(start, Drill(correction, velocity=client_state.get(VELOCITY)))
        kept = {**client_state, LAST_MODEL: result.end}
        if result.velocity is not None:
            kept[VELOCITY] = result.velocity
        return trained_report(result, local), kept

    def terms(self, state: FedSoftState, phase: Phase, client: ClientId, report: Report) -> Terms:
        """A model counts in the clusters for which its client was drawn. The draw has weighted it.

        Without a draw it counts in all clusters, with weights.
        """
        if phase.name == ESTIMATE:
            return ()
        base = f"{OWN}{client}"
        if not self._takes_all(state):
            weight = counted(report, uniform=True)
            return tuple(
                Term(str(k), weight, base=base, share=1.0)
                for k in range(self.n_clusters)
                if client in self.selection(state, k, invited(phase))
            )
        terms: list[Term] = []
        for k, share in enumerate(self._importance(state, client)):
            [weight] = self._weights(state, k, [client]) if report.examples > 0 else [0.0]
            terms.append(Term(str(k), weight, base=base, share=share))
        return tuple(terms)

    def fold(self, state: FedSoftState, phase: Phase, sums: Sums, reports: Reports) -> FedSoftState:
        if phase.name == ESTIMATE:
            return self._with_estimates(state, phase, reports)
        samples = samples_of(reports)
        trained = set(state.trained)
        trained.update(samples)
        in_order = sorted(trained)
        centres = [sums.mean(str(k), otherwise=centre) for k, centre in enumerate(state.models)]
        return replace(
            state,
            models=tuple(centres),
            samples=merged(state.samples, samples),
            trained=tuple(in_order),
            asked=(),
            round=state.round + 1,
        )

    def serve(self, state: FedSoftState, client: ClientId) -> Order:
        cluster = dominant(state.importance, client)
        if client in state.trained:
            return Order(cluster=cluster)
        key = START
        if client in state.importance:
            key = f"{OWN}{client}"
        return Order(models=(key,), cluster=cluster)

    serves: ClassVar[Serves] = "own"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        if LAST_MODEL in client_state:
            return ((1.0, client_state[LAST_MODEL]),)
        if not job.models:
            raise DataError(
                f"agent {job.client} has trained in this run but its model is missing: "
                "was its folder deleted?"
            )
        served = job.models[0]
        return ((1.0, served),)

    def clusters(self, state: FedSoftState) -> Models:
        return state.models

    def assignment(self, state: FedSoftState) -> Mapping[ClientId, int]:
        """Each client's most important cluster."""
        return {
            client: int(np.argmax(importance)) for client, importance in state.importance.items()
        }

    def _memberships(self, state: FedSoftState) -> Mapping[ClientId, Shares]:
        memberships: dict[ClientId, Shares] = {}
        for client, importance in state.importance.items():
            total = math.fsum(importance)
            memberships[client] = tuple(share / total for share in importance)
        return memberships

    def shown(self, state: FedSoftState) -> Shown:
        total: list[float] = []
        if state.importance:
            total = np.sum(list(self._memberships(state).values()), axis=0).tolist()
        return Shown(
            {"clusters": self.n_clusters, "importance": total, "estimated": state.estimated},
            self._memberships(state),
        )

    # -- importance --------------------------------------------------------------------------------

    def _estimate(self, models: Sequence[Vector], local: Local) -> list[float]:
        """u_i (K,): the share of samples that each cluster explains best, ties to the lowest."""
        losses = comparable([local.losses(model) for model in models])
        samples = np.bincount(np.argmin(losses, axis=0), minlength=len(models))
        return _not_too_small((samples / local.examples).tolist())

    def _with_estimates(self, state: FedSoftState, phase: Phase, reports: Reports) -> FedSoftState:
        """The state after an estimation."""
        samples = samples_of(reports)
        estimates: dict[ClientId, Shares] = {}
        for client, report in reports:
            estimates[client] = tuple(_not_too_small(report.numbers["importance"]))
        late = set(state.late)
        if state.round > 0:
            newcomers = set(estimates)
            newcomers.difference_update(state.importance)
            late.update(newcomers)
        late_in_order = sorted(late)
        known = merged(state.importance, estimates)
        return replace(
            state,
            importance=known,
            samples=merged(state.samples, samples),
            late=tuple(late_in_order),
            asked=unanswered(state.asked, phase, known),
            estimated=state.round,
        )

    def _importance(self, state: FedSoftState, client: ClientId) -> Shares:
        """u_i (K,); equal shares for a client that never estimated them."""
        equal = ((1 / self.n_clusters),) * self.n_clusters
        return state.importance.get(client, equal)

    def _weights(self, state: FedSoftState, k: int, clients: Sequence[ClientId]) -> list[float]:
        """u_ik * n_i of each client, which is v_ik times a constant.

        A client that never reported its samples counts as one of average size.
        """
        usual = 1.0
        if state.samples:
            usual = sum(state.samples.values()) / len(state.samples)
        weights: list[float] = []
        for client in clients:
            samples = state.samples.get(client, usual)
            weights.append(self._importance(state, client)[k] * samples)
        return weights

    # -- selection ---------------------------------------------------------------------------------
    # Weighted, without replacement; `terms` finds it again from the cohort alone.

    def _takes_all(self, state: FedSoftState) -> bool:
        return self.selected is None and state.participation >= 1

    def _cohort(self, state: FedSoftState, view: View) -> Literal["all"] | Clients:
        if self._takes_all(state):
            return "all"
        candidates = view.present
        for _ in range(view.attempt):
            # a draw failed: the next in line, and all again once all were asked
            not_asked = set(candidates)
            not_asked -= self._drawn(state, candidates)
            in_order = sorted(not_asked)
            candidates = tuple(in_order) or view.present
        return tuple(sorted(self._drawn(state, candidates)))

    def _drawn(self, state: FedSoftState, clients: Sequence[ClientId]) -> set[ClientId]:
        """The union of the selections of all clusters."""
        drawn: set[ClientId] = set()
        for k in range(self.n_clusters):
            drawn.update(self.selection(state, k, clients))
        return drawn

    def selection(self, state: FedSoftState, k: int, clients: Sequence[ClientId]) -> Clients:
        """Sel_k: clients drawn without replacement with probabilities v_ik.

        Each has an exponential waiting time of rate v_ik, and the first ones are taken (Efraimidis
        and Spirakis 2006). Without a client that was not drawn the selection is the same, so the
        cohort is enough to find out who was drawn for which cluster.
        """
        rates = self._weights(state, k, clients)
        return _first(
            state.seed,
            state.round,
            k,
            clients=tuple(clients),
            rates=tuple(rates),
            count=self._per_cluster(state),
        )

    def _per_cluster(self, state: FedSoftState) -> int:
        """The number of clients drawn for each cluster."""
        if self.selected:
            return self.selected
        known = len(state.importance) or 1
        return max(round(state.participation * known / self.n_clusters), 1)

    def forget(self, state: FedSoftState, client: ClientId) -> FedSoftState:
        return replace(
            state,
            importance=without(state.importance, client),
            samples=without(state.samples, client),
            trained=without(state.trained, client),
            late=without(state.late, client),
            asked=without(state.asked, client),
        )


def _not_too_small(shares: Sequence[float]) -> list[float]:
    """The shares, none below sigma."""
    return [max(float(share), SMALLEST) for share in shares]


@lru_cache(maxsize=64)  # it is asked for once for each report of a round
def _first(
    seed: int, round_: int, k: int, *, clients: Clients, rates: Shares, count: int
) -> Clients:
    """The first `count` clients whose exponential waiting times, of these rates, are over."""
    arrivals: list[tuple[float, ClientId]] = []
    for client, rate in zip(clients, rates, strict=True):
        draw = generator(seed, "fedsoft", round_, k, client)
        wait = math.inf
        if rate > 0:
            wait = draw.exponential() / rate
        arrivals.append((wait, client))
    arrivals.sort()
    return tuple(client for _, client in arrivals[:count])
