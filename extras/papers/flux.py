"""FLUX: after some rounds of FedAvg agents are clustered once by what their data look like to the common model.

Paper. Fenoglio et al. 2025, FLUX: Efficient Descriptor-Driven Clustered Federated Learning under
Arbitrary Distribution Shifts (arXiv 2511.22305). A descriptor has means and deviations of latent
features, over all samples and by class; DBSCAN with two samples per core makes the clusters, with
its radius at the knee of the sorted distances to the nearest neighbour. Outliers are clusters of
their own. That is single linkage, cut at this radius.

Our deviations.
- The latent features are the outputs of the common model, which every learner has.
- FedAvg lasts for three rounds, and not until an accuracy is reached.
- Descriptors have no noise, and newcomers send labels' means too: the paper assigns newcomers
  without labels by the means over all samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from covey.extras.papers.profile import (
    COMMON,
    PROFILE,
    WARMUP_ROUNDS,
    length_of,
    profile,
    refused,
    scaled,
)
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import Matrix, agglomerative
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    ENTRY,
    MODEL,
    SIGNATURE,
    TRAIN,
    Buffering,
    ClientId,
    Facts,
    Order,
    Phase,
    PrivacyFacet,
    Reports,
    Sealed,
    Settings,
    Setup,
    Shown,
    Sums,
    Terms,
    View,
)
from covey.shared.strategies.bases.hard import Clustered, HardClustered, has_clusters, joined
from covey.shared.strategies.bases.single import sample_term
from covey.shared.strategies.client_half import ClientState, Job, Local, Report, trained_report


@dataclass(frozen=True)
class FluxState(Clustered):
    """The common model is trained until the clusters are formed; it makes the profiles of newcomers too."""

    common: Vector | None = None  # (d,)
    outputs: int = 0
    round: int = 0  # complete rounds of the common model
    profiles: tuple[Vector, ...] = ()  # of the agents that were clustered
    labels: tuple[int, ...] = ()  # their clusters
    radius: float = 0.0


class Flux(HardClustered[FluxState]):
    """Clusters by descriptors of the data, from DBSCAN."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed({SIGNATURE: "signature", ENTRY: "signature"}))
    summary: ClassVar[str] = "FedAvg, then groups once by descriptors of the data (DBSCAN)"
    source: ClassVar[str] = "Fenoglio et al. 2025"

    name: Literal["flux"] = "flux"

    def init(self, setup: Setup) -> FluxState:
        start = setup.starts[0]
        return FluxState(start, common=start, outputs=setup.whole.outputs)

    def continued(self, state: FluxState, fresh: FluxState) -> FluxState:
        return super().continued(state, fresh) if state.models else replace(state, asked=())

    # -- phases and orders ------------------------------------------------------------------------

    def plan(self, state: FluxState, view: View) -> Phase:
        if not state.models and state.round < WARMUP_ROUNDS:
            return Phase(sizes={MODEL: state.start.size})
        return super().plan(state, view)

    def clustering_phase(self, state: FluxState) -> Phase:
        return Phase(SIGNATURE, "all", self.entry_sizes(state), ends_round=False)

    def entry_sizes(self, state: FluxState) -> Mapping[str, int]:
        return {PROFILE: length_of(state.outputs)}

    def entry_order(self, state: FluxState) -> Order:
        return Order(models=(COMMON,))

    def order(self, state: FluxState, phase: Phase, client: ClientId) -> Order:
        if phase.name == TRAIN and not state.models:
            return Order(models=(COMMON,))
        return super().order(state, phase, client)

    def model(self, state: FluxState, key: str) -> Vector:
        if key == COMMON:
            return state.start if state.common is None else state.common
        return super().model(state, key)

    def serve(self, state: FluxState, client: ClientId) -> Order:
        return super().serve(state, client) if state.models else Order(models=(COMMON,))

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == TRAIN:
            return trained_report(local.train(job.models[0]), local), client_state
        return Report({PROFILE: profile(local, job.models[0])}, local.examples), client_state

    # -- the server -------------------------------------------------------------------------------

    def terms(self, state: FluxState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name == TRAIN and not state.models:
            return sample_term(report, COMMON)
        return super().terms(state, phase, client, report)

    def fold(self, state: FluxState, phase: Phase, sums: Sums, reports: Reports) -> FluxState:
        if phase.name == TRAIN and not state.models:
            common = sums.mean(COMMON, otherwise=self.model(state, COMMON))
            return replace(state, common=common, round=state.round + 1)
        return super().fold(state, phase, sums, reports)

    def form_clusters(
        self, state: FluxState, reports: Reports, average: Average = MEAN
    ) -> FluxState:
        profiles = tuple(report.vectors[PROFILE].copy() for _, report in reports)
        apart = _distances(scaled(profiles, state.outputs))
        radius = _knee(apart)
        tree = agglomerative(apart, "single", threshold=radius)
        labels = tuple(tree.labels.tolist())
        return replace(
            state,
            models=(self.model(state, COMMON),) * tree.clusters,
            assign={client: label for (client, _), label in zip(reports, labels, strict=True)},
            profiles=profiles,
            labels=labels,
            radius=radius,
        )

    def assign_newcomers(self, state: FluxState, reports: Reports) -> FluxState:
        """The cluster whose mean profile is nearest; one that was drawn before it sent a profile waits for its entry."""
        entries = {c: report.vectors[PROFILE] for c, report in reports if PROFILE in report.vectors}
        if not entries:
            return state
        rows = scaled(state.profiles, state.outputs, tuple(entries.values()))
        known, new = np.split(rows, [len(state.profiles)])
        labels = np.array(state.labels)
        centres = np.stack([known[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
        nearest = ((new[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        return joined(state, dict(zip(entries, nearest.tolist(), strict=True)))

    def shown(self, state: FluxState) -> Shown:
        notes = dict(super().shown(state).notes)
        return Shown({**notes, "radius": state.radius} if state.models else {})

    @property
    def buffer(self) -> Buffering:
        return Buffering(is_ready=has_clusters)

    def refuses(self, settings: Settings) -> str:
        return refused(settings) or super().refuses(settings)

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(refusal="flux sends means of the data's outputs without noise")


def _distances(rows: Matrix) -> Matrix:
    """Euclidean distances (n, n) of rows."""
    return np.stack([np.sqrt(((rows - row) ** 2).sum(axis=1)) for row in rows])


def _knee(apart: Matrix) -> float:
    """Where the sorted distances to the nearest neighbour are farthest below the line from the first to the last one."""
    if len(apart) < 2:
        return 0.0
    nearest = np.sort(np.where(np.eye(len(apart), dtype=bool), np.inf, apart).min(axis=1))
    height = nearest - nearest[0]
    if not height[-1]:
        return float(nearest[0])
    below = np.linspace(0, 1, len(nearest)) - height / height[-1]
    return float(nearest[below.argmax()])
