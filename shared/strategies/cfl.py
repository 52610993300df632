"""CFL, also FedCluster: FedAvg, until the members of a cluster pull in different directions; then split it in two.

Sattler, Müller, Samek 2019, Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints, algorithms 1 to 3, with the exact bipartition; `linkage` complete is what its code does. The
paper needs every member's update of the same round. With partial participation (our extension) the two norms are watched over those who report; where they call for a split, all members are asked to take
part in the next round, and this round, judged by the same norms, is what splits. An update of an earlier
round is never used. Who missed it walks down the tree as a newcomer does, from the split on.

The two thresholds grow with the model, the rate and the epochs, and no pair of them serves every fleet. So by default
(`trigger: rotations`, ours) a cluster is split where the directions of its members' updates fall into clusters beyond chance
(shared/numerics/choose_k.py), in three rounds in a row, along Ward's bipartition of these directions. `trigger: norms` is the paper's.

`trigger: rounds` with gamma 0.13, linkage average and the last kernel is the variant of Long et al. 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.choose_k import by_rotations
from covey.shared.numerics.clustering import (
    Labels,
    Matrix,
    across,
    agglomerative,
    bipartition_min_cross,
    gram,
)
from covey.shared.numerics.vectors import Vector, combine, cosine, mean
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Setup,
    View,
)
from covey.shared.strategies.bases.hard import (
    Clustered,
    Features,
    ManyModels,
    feature_span,
    invited,
    joined,
    sizes,
    unassigned,
)
from covey.shared.strategies.bases.single import averaged

IN_A_ROW = 3  # rounds: by chance 1 in 8000, where each is wrong once in 20
SPLIT = "split"  # model key of the node that split s divided


@dataclass(frozen=True)
class CflState(Clustered):
    """Besides the clusters: the splits in the order in which they were made. Split s divides cluster `divided[s]`, whose
    model was `nodes[s]` (d,), into the part that keeps its number and moved along `stays[s]`, and cluster s + 1, which
    moved along `goes[s]` (span,). `walks` is the split at which a client without a cluster stands (0, where not named).
    `streak` counts the rounds in a row in which a cluster's updates fell into clusters beyond chance. `rounds` is how many the run has. `due` are the clusters whose members are all asked into the next round, `tried` the rounds folded up to a cluster's last
    split or refused one, `peak` the largest mean norm so far, `norms` the last (mean, largest) of each cluster, `across` the cross similarity
    of the halves of those that were tried in this round."""

    span: tuple[int, int] = (0, 0)
    parameters: int = 0
    rounds: int = 0
    everybody: bool = True
    round: int = 0
    divided: tuple[int, ...] = ()
    nodes: tuple[Vector, ...] = ()
    stays: tuple[Vector, ...] = ()
    goes: tuple[Vector, ...] = ()
    walks: dict[ClientId, int] = field(default_factory=dict)
    due: tuple[int, ...] = ()
    streak: dict[str, int] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    peak: float = 0.0
    norms: dict[str, tuple[float, float]] = field(default_factory=dict)
    across: dict[str, float] = field(default_factory=dict)


class Cfl(ManyModels[CflState]):
    """Finds out by itself whether clusters are needed, and how many."""

    summary: ClassVar[str] = (
        "FedAvg that splits a cluster in two where its members' updates disagree"
    )
    source: ClassVar[str] = "Sattler et al. 2019"

    name: Literal["cfl"] = "cfl"
    trigger: Literal["rotations", "norms", "rounds"] = Field(
        "rotations",
        description="when a split is tried: updates cluster beyond chance, three rounds in a row; small mean and large single "
        "updates; or after so many rounds",
    )
    eps_mode: Literal["absolute", "relative"] = Field(
        "absolute",
        description="relative: eps_1 and eps_2 are shares of the largest mean norm so far",
    )
    eps_1: float | None = Field(
        None, ge=0, description="split below this norm of the mean update; null: 0.4, or 0.1"
    )
    eps_2: float | None = Field(
        None, ge=0, description="split above this largest norm of one; null: 1.6, or 0.3"
    )
    every: int = Field(
        30, ge=1, description="trigger rounds: rounds of FedAvg before a cluster is tried"
    )
    warmup: int = Field(
        20, ge=0, description="rounds before the first split; 0 where rotations trigger it"
    )
    min_size: int = Field(
        2, ge=1, description="only clusters with more members than this are split"
    )
    gamma: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="refuse a split unless sqrt((1 - cross similarity) / 2) is more",
    )
    linkage: Literal["ward", "single", "complete", "average"] = Field(
        "ward",
        description="ward where rotations trigger the split, else single: the exact bipartition; complete is the authors' "
        "code, average FeSEM's",
    )
    features: Features = Field(
        "full", description="the part of the updates whose directions are compared"
    )
    weights: Literal["samples", "uniform"] = Field(
        "samples", description="of the clients in all means"
    )
    full_quorum: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a cluster's invited members that must report before it is split",
    )
    retry: int = Field(
        10,
        ge=1,
        description="partial participation: rounds between two attempts to split a cluster",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_trigger(cls, data: Any) -> Any:
        """The paper's thresholds are made for its warm-up and its bipartition; evidence needs no warm-up."""
        if not isinstance(data, Mapping):
            return data
        paper = bool(
            {"eps_mode", "eps_1", "eps_2"}
            & {key for key, value in data.items() if value is not None}
        )
        trigger = data.get("trigger", "norms" if paper else "rotations")
        usual = (
            {"warmup": 0, "linkage": "ward"}
            if trigger == "rotations"
            else {"warmup": 20, "linkage": "single"}
        )
        return {**usual, **data, "trigger": trigger}

    def init(self, setup: Setup) -> CflState:
        span = feature_span(self.features, setup.layout)
        start = setup.starts[0]
        return CflState(
            start,
            models=(start,),
            span=(span.start, span.stop),
            parameters=setup.layout.parameters,
            rounds=setup.rounds,
            everybody=setup.participation >= 1,
        )

    # -- phases ----------------------------------------------------------------------------------------

    def plan(self, state: CflState, view: View) -> Phase:
        carried = {"model": state.start.size}
        newcomers = unassigned(state, view)
        if state.divided and newcomers:
            return Phase("entry", newcomers, carried, ends_round=False, may_be_empty=True)
        members = {client for client in view.present if state.assign.get(client) in state.due}
        if state.due and not state.divided:
            members.update(newcomers)
        return Phase(cohort=tuple(sorted(members)) if members else "sample", sizes=carried)

    def order(self, state: CflState, phase: Phase, client: ClientId) -> Order:
        if client in state.assign:
            return self.member_order(state, client)
        if not state.divided:
            return Order(models=("0",), cluster=0)
        return Order(models=(f"{SPLIT}{state.walks.get(client, 0)}",))

    def model(self, state: CflState, key: str) -> Vector:
        return (
            state.nodes[int(key.removeprefix(SPLIT))]
            if key.startswith(SPLIT)
            else super().model(state, key)
        )

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        done = local.train(job.models[0])
        return Report(
            {"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}
        ), client_state

    def fold(
        self, state: CflState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> CflState:
        if not state.divided:
            state = joined(state, {client: 0 for client, _ in reports})
        members = [(client, report) for client, report in reports if client in state.assign]
        walkers = [(client, report) for client, report in reports if client not in state.assign]
        if phase.name == "entry":
            in_vain = {*state.asked, *invited(phase)} - {client for client, _ in reports}
            return replace(self._descend(state, walkers), asked=tuple(sorted(in_vain)))
        state = self._round(self._descend(state, walkers), phase, members, average)
        return replace(state, asked=(), round=state.round + 1)

    def notes(self, state: CflState) -> dict[str, Any]:
        norms = {
            k: {"mean": mean_norm, "largest": largest}
            for k, (mean_norm, largest) in state.norms.items()
        }
        return {
            **super().notes(state),
            "norms": norms,
            **({"clustered_rounds": state.streak} if self.trigger == "rotations" else {}),
            "cross_similarity": state.across,
            "split": list(state.divided),
            "full_round_next": list(state.due),
            **self._never_split(state),
        }

    def _never_split(self, state: CflState) -> dict[str, str]:
        """A warning after the last round, where there is one cluster still."""
        if state.divided or len(state.assign) < 2 or not 0 < state.rounds <= state.round:
            return {}
        seen = {
            "rotations": "the updates never fell into groups beyond chance",
            "norms": "the norms never passed both eps_1 and eps_2 after the warm-up (see norms in the record)",
            "rounds": "no split was tried, or each was refused by gamma",
        }
        return {
            "warning_clusters": f"no cluster was split, this run was FedAvg: {seen[self.trigger]}"
        }

    # -- rounds and splits -----------------------------------------------------------------------------

    def _round(self, state: CflState, phase: Phase, reports: Reports, average: Average) -> CflState:
        before, asked_all = state, state.due
        state = replace(state, due=(), norms={}, across={})
        for k in range(len(before.models)):
            own = [
                (client, report)
                for client, report in reports
                if before.assign[client] == k and report.examples > 0
            ]
            if own:
                full = before.everybody or k in asked_all
                state = self._cluster(state, k, own, phase, average, full=full)
            elif k in asked_all:  # none of its members was there
                state = replace(state, due=(*state.due, k))
        return state

    def _cluster(
        self,
        state: CflState,
        k: int,
        reports: Reports,
        phase: Phase,
        average: Average,
        *,
        full: bool,
    ) -> CflState:
        products = gram(
            [report.vectors["model"][: state.parameters] for _, report in reports], state.models[k]
        )
        state = self._watched(state, k, reports, products)
        if self.trigger == "rotations":
            clustered = by_rotations(self._apart(state, k, reports, products)).clusters > 1
            state = replace(
                state,
                streak={**state.streak, str(k): (state.streak.get(str(k), 0) + 1) * clustered},
            )
        wanted = self._wants_split(state, k, full=full)
        nowhere = None if state.divided else 0  # before the first split everybody is in cluster 0
        members = [client for client in invited(phase) if state.assign.get(client, nowhere) == k]
        enough = full and len(reports) >= max(self.full_quorum * len(members), 2)
        if wanted and enough:
            labels, cross = self._halves(state, k, reports, products)
            state = replace(state, across={**state.across, str(k): cross})
            if math.sqrt(max((1 - cross) / 2, 0.0)) > self.gamma or self.gamma == 0:
                return self._split(state, k, reports, labels, average)
        uniform = self.weights == "uniform"
        model = averaged(reports, otherwise=state.models[k], uniform=uniform, average=average)
        state = replace(state, models=_put(state.models, k, model))
        if (
            full and not state.everybody
        ):  # refused: the next attempt costs another round of all members
            return replace(state, tried={**state.tried, str(k): state.round + 1})
        return replace(state, due=(*state.due, k)) if wanted and not full else state

    def _watched(self, state: CflState, k: int, reports: Reports, products: Matrix) -> CflState:
        """The norms of the mean and of the largest update of a cluster."""
        share = np.array(
            [1.0 if self.weights == "uniform" else float(r.examples) for _, r in reports]
        )
        share = share / share.sum()
        of_mean = math.sqrt(max(float(share @ products @ share), 0.0))
        norms = (of_mean, math.sqrt(float(products.diagonal().max())))
        return replace(state, norms={**state.norms, str(k): norms}, peak=max(state.peak, of_mean))

    def _wants_split(self, state: CflState, k: int, *, full: bool) -> bool:
        since = state.round + 1 - state.tried.get(str(k), 0)
        if state.round < self.warmup or sizes(state)[k] <= self.min_size:
            return False
        if self.trigger == "rotations":
            return state.streak[str(k)] >= IN_A_ROW
        if self.trigger == "rounds":
            return since > self.every - (not full)  # the round of all members comes on top
        relative = self.eps_mode == "relative"
        unit = state.peak if relative else 1.0
        eps_1 = (0.1 if relative else 0.4) if self.eps_1 is None else self.eps_1
        eps_2 = (0.3 if relative else 1.6) if self.eps_2 is None else self.eps_2
        of_mean, largest = state.norms[str(k)]
        rested = full or str(k) not in state.tried or since > self.retry
        return rested and of_mean < eps_1 * unit and largest > eps_2 * unit

    def _halves(
        self, state: CflState, k: int, reports: Reports, products: Matrix
    ) -> tuple[Labels, float]:
        """Labels 0 and 1 of the reporters, and the largest similarity across."""
        similarity = self._similarity(state, k, reports, products)
        if self.linkage == "single":
            return bipartition_min_cross(similarity)
        labels = agglomerative(
            self._apart(state, k, reports, products), self.linkage, n_clusters=2
        ).labels
        return labels, across(similarity, labels)

    def _similarity(self, state: CflState, k: int, reports: Reports, products: Matrix) -> Matrix:
        """Cosines (n, n) of the reporters' updates."""
        if self.features != "full":
            span = slice(*state.span)
            products = gram(
                [report.vectors["model"][span] for _, report in reports], state.models[k][span]
            )
        norms = np.sqrt(products.diagonal())
        similarity: Matrix = products / (np.outer(norms, norms) + 1e-12)
        return similarity

    def _apart(self, state: CflState, k: int, reports: Reports, products: Matrix) -> Matrix:
        """Distances (n, n) of the updates' directions: 1 - cosine, or, for Ward, between their ends on the unit sphere."""
        similarity = self._similarity(state, k, reports, products)
        apart = np.maximum(1 - (similarity + similarity.T) / 2, 0.0)
        np.fill_diagonal(apart, 0.0)
        return np.sqrt(2 * apart) if self.linkage == "ward" else apart

    def _split(
        self, state: CflState, k: int, reports: Reports, labels: Labels, average: Average
    ) -> CflState:
        """The children part ways in this very round; members who did not report have to walk from here."""
        new, node, number = len(state.models), state.models[k], len(state.divided)
        halves = [
            [pair for pair, label in zip(reports, labels, strict=True) if label == half]
            for half in (0, 1)
        ]
        uniform = self.weights == "uniform"
        kept, gone = (
            averaged(half, otherwise=node, uniform=uniform, average=average) for half in halves
        )
        stays, goes = (self._direction(state, node, half) for half in halves)
        placed = {
            client: cluster
            for half, cluster in zip(halves, (k, new), strict=True)
            for client, _ in half
        }
        away = {
            client: number
            for client, cluster in state.assign.items()
            if cluster == k and client not in placed
        }
        rest = {client: cluster for client, cluster in state.assign.items() if client not in away}
        return replace(
            joined(replace(state, assign=rest), placed),
            models=(*_put(state.models, k, kept), gone),
            divided=(*state.divided, k),
            nodes=(*state.nodes, node),
            stays=(*state.stays, stays),
            goes=(*state.goes, goes),
            walks=dict(sorted({**state.walks, **away}.items())),
            streak={**state.streak, str(k): 0},
            tried={**state.tried, str(k): state.round + 1, str(new): state.round + 1},
        )

    def _direction(self, state: CflState, node: Vector, reports: Reports) -> Vector:
        span = slice(*state.span)
        middle = mean([(report.vectors["model"][span], 1.0) for _, report in reports])
        return combine([(middle, 1.0), (node[span], -1.0)])

    # -- newcomers -------------------------------------------------------------------------------------

    def _descend(self, state: CflState, reports: Reports) -> CflState:
        """One step down the tree for each: towards the child that moved more like it, ties to the older."""
        walks, arrived = dict(state.walks), {}
        for client, report in reports:
            at = walks.pop(client, 0)
            moved = self._direction(state, state.nodes[at], [(client, report)])
            older = cosine(moved, state.stays[at]) >= cosine(moved, state.goes[at])
            cluster = state.divided[at] if older else at + 1
            below = [s for s in range(at + 1, len(state.divided)) if state.divided[s] == cluster]
            if below:
                walks[client] = below[0]
            else:
                arrived[client] = cluster
        return joined(replace(state, walks=dict(sorted(walks.items()))), arrived)


def _put(models: tuple[Vector, ...], k: int, model: Vector) -> tuple[Vector, ...]:
    return (*models[:k], model, *models[k + 1 :])
