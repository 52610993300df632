"""FedGWC: clusters from the losses that agents have while they train, and from nothing else.

Paper. Licciardi, Leo, Fanì, Caputo, Ciccone 2025, Interaction-Aware Gaussian Weighting for
Clustered Federated Learning (ICML), algorithms FedGW and FedGWC, as in the authors' code without
its resampling of losses. Each round rewards an agent for losses near the mean of its cluster's
cohort. The rewards of agents that were drawn together are kept in the interaction matrix P; once it
has settled, its columns are compared by a Gaussian kernel, and spectral clustering with the index
of Davies and Bouldin divides the cluster, or not.

Our deviations.
- The losses are the means of the local epochs. The paper has one for each step, but here agents
  have different numbers of steps.
- A round draws agents of all clusters together. The share alpha of the agents that were drawn, and
  the number of rounds for which P must have settled, follow from those of the cluster that reported.
- K-means in place of QR assigns agents in the spectral space, where the index is taken too. The
  authors take it in a space of one more dimension, in which a perfect division is wide.
- An agent without a cluster, once there are several, takes the one with its lowest loss.

Spectral clustering of a matrix of affinities, with the number of clusters by the index of Davies and Bouldin. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.clustering import Labels, Matrix, distances, kmeans
from covey.shared.strategies.base import (
    CHOICE,
    ENTRY,
    LARGEST,
    MODEL,
    ClientId,
    Expected,
    Facts,
    Order,
    Phase,
    Reports,
    Setup,
    Shown,
    Sums,
    Terms,
    View,
    without,
)
from covey.shared.strategies.bases.hard import (
    Clustered,
    ManyModels,
    joined,
    lowest_loss,
    unanswered,
    unassigned,
)
from covey.shared.strategies.bases.losses import comparable
from covey.shared.strategies.bases.single import sample_term
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    Job,
    Local,
    Report,
    TrainingResult,
    trained_report,
)

LEAST = 1e-12  # of a degree or a distance that something is divided by
STARTS = 10  # of K-means


def spectral(affinity: Matrix, most: int, seed: int, *, below: float = 1.0) -> Labels | None:
    """Labels (n,) of the division with the smallest Davies-Bouldin index; None if no index is below `below`.

    The division is that of Ng, Jordan and Weiss 2002: K-means on the rows of the first K eigenvectors of the normalised
    affinities, each of length 1. The index is that of these rows.

    Args:
        affinity: (n, n) symmetric, not negative.
        most: the largest number of clusters; from two on all are tried.
        seed: of K-means.
        below: what the index must be smaller than.
    """
    roots = np.sqrt(np.maximum(affinity.sum(axis=1), LEAST))
    _, vectors = np.linalg.eigh(affinity / np.outer(roots, roots))
    largest_first = vectors[:, ::-1]
    best: Labels | None = None
    for count in range(2, min(most, len(affinity) - 1) + 1):
        rows = largest_first[:, :count]
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), LEAST)
        labels = kmeans(list(rows.astype(np.float32)), count, n_init=STARTS, seed=seed).labels
        index = davies_bouldin(rows, labels)
        if index < below:
            best, below = labels, index
    return best


def davies_bouldin(rows: Matrix, labels: Labels) -> float:
    """How wide clusters are, relative to the distances of their centres: the mean over clusters of the worst pair.

    Args:
        rows: (n, d).
        labels: (n,) from 0 on.

    Returns:
        0 for points that are equal within each cluster; infinity for one cluster.
    """
    count = int(labels.max()) + 1
    if count < 2:
        return float("inf")
    centres = np.stack([rows[labels == k].mean(axis=0) for k in range(count)])
    widths = np.array(
        [np.linalg.norm(rows[labels == k] - centres[k], axis=1).mean() for k in range(count)]
    )
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    ratios = (widths[:, None] + widths[None]) / np.maximum(apart, LEAST)
    np.fill_diagonal(ratios, 0.0)
    return float(ratios.max(axis=1).mean())


LOSSES = "losses"  # number of a report: the mean loss of each local epoch
LEAST_SPREAD = 1e-16  # of the variance of losses
MOST_PARTS = 4  # into which a cluster is divided at once
LEAST_MEMBERS = 4  # of a cluster that is divided
GAMMA = 4.0  # the width of the Gaussian kernel that compares agents is 1 / gamma

Rewards = dict[ClientId, dict[ClientId, float]]


@dataclass(frozen=True)
class FedGwcState(Clustered):
    """The interaction matrix P, and how long the part of each cluster in it has been at rest."""

    seed: int = 0
    epochs: int = 1  # E, losses in a report
    round: int = 0  # rounds that are complete
    interaction: Rewards = field(
        default_factory=dict
    )  # P[i][j]: reward of i, where j was drawn too
    change: dict[str, float] = field(
        default_factory=dict
    )  # by cluster: running mean square change of P
    rest: dict[str, int] = field(
        default_factory=dict
    )  # by cluster: rounds in a row below `settled`


class FedGwc(ManyModels[FedGwcState]):
    """One model for all, until the losses of its agents fall into groups."""

    facts: ClassVar[Facts] = Facts(phases=(ENTRY,))
    summary: ClassVar[str] = "FedAvg that divides groups by the losses of their agents in training"
    source: ClassVar[str] = "Licciardi et al. 2025"

    name: Literal["fedgwc"] = "fedgwc"
    settled: float = Field(
        1e-5,
        gt=0,
        description="epsilon: the interaction matrix of a group has settled once its mean square change is below this.",
    )

    def init(self, setup: Setup) -> FedGwcState:
        start = setup.starts[0]
        epochs = setup.training.epochs
        return FedGwcState(start, models=(start,), seed=setup.seed, epochs=epochs)

    def plan(self, state: FedGwcState, view: View) -> Phase:
        newcomers = unassigned(state, view)
        if len(state.models) > 1 and newcomers:
            choice = {CHOICE: Expected(most=len(state.models) - 1, whole=True)}
            return Phase(ENTRY, newcomers, ends_round=False, may_be_empty=True, numbers=choice)
        losses = {LOSSES: Expected(state.epochs, most=LARGEST)}
        return Phase(sizes={MODEL: state.start.size}, numbers=losses)

    def order(self, state: FedGwcState, phase: Phase, client: ClientId) -> Order:
        if phase.name == ENTRY:
            return Order(models=tuple(str(k) for k in range(len(state.models))))
        cluster = state.assign.get(client, 0)
        return Order(models=(str(cluster),), cluster=cluster)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == ENTRY:
            return Report(
                {}, local.examples, {CHOICE: lowest_loss(job.models, local)}
            ), client_state
        result = TrainingResult(job.models[0], 0, 0.0)
        losses: list[float] = []
        steps = 0
        for _ in range(job.training.epochs):
            result = local.train(result.end, Drill(epochs=1, velocity=result.velocity))
            losses.append(result.loss)
            steps += result.steps
        whole = replace(result, steps=steps, loss=math.fsum(losses) / len(losses))
        numbers = {LOSSES: comparable(losses).tolist()}
        return trained_report(whole, local, numbers), client_state

    def terms(self, state: FedGwcState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name == ENTRY:
            return ()
        return sample_term(report, str(state.assign.get(client, 0)))

    def fold(self, state: FedGwcState, phase: Phase, sums: Sums, reports: Reports) -> FedGwcState:
        if phase.name == ENTRY:
            entered = joined(state, {client: report.numbers[CHOICE] for client, report in reports})
            return replace(entered, asked=unanswered(state.asked, phase, entered.assign))
        models = [sums.mean(str(k), otherwise=model) for k, model in enumerate(state.models)]
        drawn = {client: state.assign.get(client, 0) for client, _ in reports}
        state = replace(joined(state, drawn), models=tuple(models), asked=(), round=state.round + 1)
        for k in range(len(models)):
            state = self._watched(state, k, [one for one in reports if drawn[one[0]] == k])
        return state

    def _watched(self, state: FedGwcState, k: int, reports: Reports) -> FedGwcState:
        """The state after the losses of a cluster's reporters, with the cluster divided if its interactions have settled."""
        members = [client for client, cluster in state.assign.items() if cluster == k]
        if not reports or len(members) < LEAST_MEMBERS:
            return state
        alpha = len(reports) / len(members)
        shares = rewards(reports)
        interaction = {one: dict(row) for one, row in state.interaction.items()}
        squares: list[float] = []
        for one, share in shares.items():
            row = interaction.setdefault(one, {})
            for other in shares:
                before = row.get(other, len(members) ** -2)
                row[other] = (1 - alpha) * before + alpha * share
                squares.append((row[other] - before) ** 2)
        change = (1 - alpha) * state.change.get(str(k), 1.0)
        change += alpha * math.fsum(squares) / len(squares)
        rest = state.rest.get(str(k), 0) + 1 if change < self.settled else 0
        state = replace(
            state,
            interaction=interaction,
            change={**state.change, str(k): change},
            rest={**state.rest, str(k): rest},
        )
        return self._divided(state, k, members) if rest >= round(1 / alpha) else state

    def _divided(self, state: FedGwcState, k: int, members: list[ClientId]) -> FedGwcState:
        """The state with the cluster in parts, of which the first keeps its number; as one if it has none."""
        start = len(members) ** -2
        matrix = np.array(
            [[state.interaction.get(i, {}).get(j, start) for j in members] for i in members]
        )
        most = min(MOST_PARTS, len(members) // 2)
        labels = spectral(affinity(matrix, GAMMA), most, state.seed)
        first = len(state.models)
        parts = 1 if labels is None else int(labels.max()) + 1
        numbers = [k, *range(first, first + parts - 1)]
        if labels is not None:
            moved = zip(members, labels.tolist(), strict=True)
            state = joined(state, {client: numbers[label] for client, label in moved})
        fresh = {str(number): 1.0 for number in numbers}
        return replace(
            state,
            models=(*state.models, *[state.models[k]] * (parts - 1)),
            change={**state.change, **fresh},
            rest={**state.rest, **dict.fromkeys(fresh, 0)},
        )

    def shown(self, state: FedGwcState) -> Shown:
        facts = super().shown(state).notes
        return Shown({**facts, "change": state.change})

    def forget(self, state: FedGwcState, client: ClientId) -> FedGwcState:
        return replace(
            super().forget(state, client),
            interaction={
                one: without(row, client) for one, row in without(state.interaction, client).items()
            },
        )


def rewards(reports: Reports) -> Mapping[ClientId, float]:
    """The reward of each reporter over the sum of all: how near its losses are to the mean of all, epoch by epoch."""
    losses = np.array([report.numbers[LOSSES] for _, report in reports], np.float64)
    samples = np.array([max(report.examples, 1) for _, report in reports], np.float64)
    mean = np.average(losses, axis=0, weights=samples)
    variance = np.average((losses - mean) ** 2, axis=0, weights=samples) + LEAST_SPREAD
    found = np.exp(-0.5 * (losses - mean) ** 2 / variance).mean(axis=1)
    shares = found / max(found.sum(), LEAST_SPREAD)
    return {client: float(share) for (client, _), share in zip(reports, shares, strict=True)}


def affinity(interaction: Matrix, gamma: float) -> Matrix:
    """How alike agents see the others: exp(-gamma d^2) of two columns of P, each without the entries of the two agents.

    Args:
        interaction: P (n, n), which is brought to 0 to 1 first.
        gamma: of the kernel.
    """
    least = interaction.min()
    columns = (interaction - least).T / max(float(interaction.max() - least), 1e-8)
    own = (np.diag(columns)[:, None] - columns.T) ** 2  # of agents i and j, entry i
    squares = distances(columns, columns) - own - own.T
    kernel = np.exp(-gamma * np.maximum(squares, 0.0))
    np.fill_diagonal(kernel, 0.0)
    return np.asarray(kernel)
