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

Means that a few extreme rows cannot move, and K-means with such centres.

A trimmed mean drops the smallest and the largest values of every coordinate. A ball drops the rows
that are farthest from the geometric median, at least one of two that differ. A median drops all but
the middle value. Rows may be memory-mapped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.shared.errors import PublicError
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import (
    RUNS,
    KMeans,
    Labels,
    Matrix,
    Rows,
    by_first_member,
    coordinates,
    euclidean,
    kmeans,
    lloyd,
    nearest,
    read,
    tiles,
)
from covey.shared.numerics.vectors import Vector, combine, dot, mean
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    ENTRY,
    GRADIENT,
    GRADIENTS,
    MODEL,
    TRAIN,
    Facts,
    Order,
    Phase,
    Reports,
    Settings,
    Setup,
    Shown,
    Sums,
    TaskData,
    View,
    needs_training,
)
from covey.shared.strategies.bases.cut import CARD_ASKED, ClusteredOnce, Cut, Grouped, with_card
from covey.shared.strategies.bases.hard import START, Features, feature_span, joined
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    Job,
    Local,
    Report,
    trained_report,
)
from covey.shared.strategies.expected import A_COUNT
from covey.shared.strategies.fedsgd import decayed
from covey.shared.strategies.training import Schedule, factor_in
from covey.shared.written import FIRST

Trim = Literal["mean", "ball", "median"]
ROUND_SHARE = 0.2  # of the values of a coordinate, which a round drops on each side
WEISZFELD = 100  # iterations towards the geometric median


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


def median(rows: Rows) -> Matrix:
    """The middle value (d,) of each coordinate."""
    size = len(rows[0])
    result = np.empty(size)
    for span in tiles(len(rows), size):
        result[span] = np.median(read(rows, span), axis=0)
    return result


def geometric_median(points: Matrix) -> Matrix:
    """The point (d,) with the least sum of distances to points (n, d).

    Weiszfeld's iteration from their mean.
    """
    centre: Matrix = points.mean(axis=0)
    for _ in range(WEISZFELD):
        near = 1.0 / np.maximum(np.linalg.norm(points - centre, axis=1), 1e-12)
        centre = near @ points / near.sum()
    return centre


def ball(rows: Rows, share: float) -> list[int]:
    """The rows whose distance to the geometric median is below the 1 - `share` quantile.

    All rows where none is.
    """
    points = read(coordinates(rows, "l2sq"), slice(None))
    apart = np.linalg.norm(points - geometric_median(points), axis=1)
    near = np.flatnonzero(apart < np.quantile(apart, 1 - share))
    if not near.size:
        return list(range(len(rows)))
    inside: list[int] = near.tolist()
    return inside


def robust_mean(rows: Rows, trim: Trim, share: float) -> Matrix:
    """The mean (d,) of rows (n, d) without a share of them, in float64."""
    match trim:
        case "mean":
            return trimmed_mean(rows, share)
        case "median":
            return median(rows)
        case "ball":
            return trimmed_mean([rows[i] for i in ball(rows, share)], 0.0)


def trimmed_kmeans(
    rows: Sequence[Vector],
    clusters: int,
    *,
    trim: Trim,
    share: float,
    n_init: int,
    seed: int,
    most: int = 50,
) -> KMeans:
    """Lloyd's algorithm with robust centres: the run with the least trimmed cost.

    The cost of a cluster is the sum of squared distances to its centre without the farthest
    members; it is the result's inertia.

    Args:
        rows: n vectors (d,).
        clusters: K.
        trim: what a centre is.
        share: of the members of a cluster that are trimmed.
        n_init: the number of runs.
        seed: of the draws.
        most: the largest number of iterations of a run.

    Raises:
        ValueError: there are fewer rows than clusters.
    """
    match trim:
        case "mean":
            nothing_is_trimmed = dropped(len(rows), share) == 0
        case "ball":
            nothing_is_trimmed = share == 0
        case "median":
            nothing_is_trimmed = False
    if nothing_is_trimmed:
        return kmeans(rows, clusters, n_init=n_init, seed=seed, most=most)
    if not 1 <= clusters <= len(rows):
        raise ValueError(f"{len(rows)} rows cannot make {clusters} groups")

    def centre(members: list[Any]) -> Matrix:
        return robust_mean(members, trim, share)

    # a rotation changes the order of a coordinate's values, which the other rules need
    points: Rows = rows
    if trim == "ball":
        points = coordinates(rows, "l2sq")
    partitions: list[Labels] = []
    costs: list[float] = []
    for run in range(n_init):
        draw = generator(seed, "kmeans", run)
        labels, apart = lloyd(points, clusters, draw, distance="l2sq", most=most, centre=centre)
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


STEPS = 200  # of the logistic regression
MOST_VALUES = 1 << 22  # of its coefficients
LOGREG = "logreg"  # features, and the name of their vector
SOLVE = "solve"  # phase of stage 1


@dataclass(frozen=True)
class RobustState(Grouped):
    """Besides the clusters, the centres of stage 2."""

    span: tuple[int, int] = (0, 0)  # start and stop of the features in a model
    seed: int = 0
    lr: float = 0.0  # the server's learning rate, where clients send gradients
    centres: tuple[Vector, ...] = ()  # u_k, of the features
    inertia: float = 0.0  # the trimmed cost of stage 2
    schedule: Schedule = ()  # of the server's rate
    round: int = 0  # rounds that are complete


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
        "trimmed K-means over locally trained models, once, then trimmed means per group"
    )
    source: ClassVar[str] = "Ghosh et al. 2019"

    name: Literal["robust"] = "robust"
    n_clusters: int | None = Field(
        2,
        ge=1,
        json_schema_extra=FIRST,
        description="K: the number of groups; null: found from cards and solutions.",
    )
    features: Features | Literal["logreg"] = Field(
        "full",
        description="The clustered vector: all parameters, a part of the final layer, or the "
        "coefficients of a logistic regression on the raw inputs (logreg).",
    )
    trim: Trim = Field(
        "mean",
        description="The centres of stage 2. mean: the mean without the extremes of each "
        "coordinate. ball: the mean without the farthest members. median: the median of each "
        "coordinate.",
    )
    beta: float = Field(
        0.05,
        ge=0,
        lt=0.5,
        description="The share that stage 2 drops; with trim: mean, on each side.",
    )
    first_epochs: int = Field(10, ge=1, description="E_0: the epochs of stage 1.")
    averaging: Literal["model", "gradient"] = Field(
        "model",
        description="What clients send in a round: a trained model, or one gradient, with which "
        "the server takes a step of size training.lr.",
    )

    def refuses(self, settings: Settings) -> str:
        match settings:
            case TaskData(has_classes=False) if self.features == LOGREG:
                return f"strategy.features: logreg needs classes, and the task has {settings.kind}; use full"
            case Average() if settings.single:
                return "it has robust means of its own: strategy.trim and beta"
            case _ if self.averaging == "gradient" and needs_training(settings):
                return GRADIENTS
        return super().refuses(settings)

    @property
    def cut(self) -> Cut:
        return Cut("complete", gate=self.gate, n_clusters=self.n_clusters, min_group=self.min_group)

    def init(self, setup: Setup) -> RobustState:
        compared = "full" if self.features == "logreg" else self.features
        span = feature_span(compared, setup.layout)
        return RobustState(
            setup.starts[0],
            asks=self.cut.asks(setup),
            span=(span.start, span.stop),
            seed=setup.seed,
            lr=setup.training.lr,
            schedule=setup.training.schedule(setup.rounds),
        )

    def clustering_phase(self, state: RobustState) -> Phase:
        return Phase(SOLVE, "all", self.entry_sizes(state), ends_round=False)

    def entry_sizes(self, state: RobustState) -> Mapping[str, int]:
        sizes = {MODEL: state.start.size}
        if self.features == "logreg":
            sizes[LOGREG] = -MOST_VALUES
        return sizes

    def entry_order(self, state: RobustState) -> Order:
        return Order(models=(START,), numbers={"epochs": self.first_epochs})

    def plan(self, state: RobustState, view: View) -> Phase:
        phase = super().plan(state, view)
        if phase.name == TRAIN:
            phase = replace(phase, sizes={self.averaging: state.start.size})
        return phase

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        model = job.models[0]
        if job.phase == TRAIN and self.averaging == "gradient":
            gradient = decayed(local.gradient(model), model, job)
            loss = local.loss(model)
            return Report({GRADIENT: gradient}, local.examples, steps=1, loss=loss), client_state
        result = local.train(model, Drill(epochs=job.numbers.get("epochs")))  # E_0 in stage 1
        report = trained_report(result, local)
        if job.phase != TRAIN and self.features == "logreg":
            coefficients = logistic(local, model)
            report = replace(report, vectors={**report.vectors, LOGREG: coefficients})
        return with_card(report, job, local), client_state

    def form_clusters(
        self, state: RobustState, reports: Reports, average: Average = MEAN
    ) -> RobustState:
        reports = self._comparable(state, reports)
        if not reports:
            return state
        rows = [self._features(state, report.vectors) for _, report in reports]
        clusters = min(self._clusters(state, rows), len(rows))
        best = trimmed_kmeans(
            rows, clusters, trim=self.trim, share=self.beta, n_init=RUNS, seed=state.seed
        )
        clients = [client for client, _ in reports]
        solutions = [report.vectors[MODEL] for _, report in reports]
        labels = best.labels.tolist()
        models: list[Vector] = []
        for k in range(clusters):
            members = [w for w, label in zip(solutions, labels, strict=True) if label == k]
            if members:
                models.append(self._first_model(state, members))
        return replace(
            state,
            models=tuple(models),
            assign=dict(zip(clients, labels, strict=True)),
            centres=best.centres,
            inertia=best.inertia,
        )

    def assign_newcomers(self, state: RobustState, reports: Reports) -> RobustState:
        """A newcomer's solution joins the nearest centre of stage 2."""
        reports = self._comparable(state, reports)
        if not reports:
            return state
        clients = [client for client, _ in reports]
        rows = [self._features(state, report.vectors) for _, report in reports]
        labels, _ = nearest(rows, state.centres)
        return joined(state, dict(zip(clients, labels.tolist(), strict=True)))

    def aggregate(self, state: RobustState, sums: Sums, reports: Reports) -> RobustState:
        """Stage 3: the trimmed mean of each cluster; one without reporters keeps its model."""
        models = list(state.models)
        rate = state.lr * factor_in(state.schedule, state.round)
        for k, model in enumerate(state.models):
            members = [report for client, report in reports if state.assign[client] == k]
            if not members:
                continue
            vectors = [report.vectors[self.averaging] for report in members]
            robust = trimmed_mean(vectors, ROUND_SHARE).astype(np.float32)
            if self.averaging == "model":
                models[k] = robust
            else:
                models[k] = combine([(model, 1.0), (robust, -rate)])
        return replace(state, models=tuple(models), round=state.round + 1)

    def shown(self, state: RobustState) -> Shown:
        if not state.models:
            return Shown()
        return Shown({**super().shown(state).notes, "trimmed_cost": state.inertia})

    def _clusters(self, state: RobustState, rows: list[Vector]) -> int:
        """K as it is given, or else from the directions of the solutions as seen from the start."""
        if self.n_clusters is not None:
            return self.n_clusters
        start = np.zeros_like(rows[0])
        if self.features != LOGREG:
            start = state.start[slice(*state.span)]
        moves = [combine([(row, 1.0), (start, -1.0)]) for row in rows]
        lengths = [max(dot(move, move) ** 0.5, 1e-12) for move in moves]
        units = [combine([(m, 1.0 / size)]) for m, size in zip(moves, lengths, strict=True)]
        choice = self.cut.choice(euclidean(units), state.chances)
        return 1 if choice is None else choice.clusters

    def _features(self, state: RobustState, vectors: Mapping[str, Vector]) -> Vector:
        """The features of a report."""
        if self.features == "logreg":
            return vectors[LOGREG]
        return vectors[MODEL][slice(*state.span)]

    def _comparable(self, state: RobustState, reports: Reports) -> Reports:
        """The reports with features of the usual length.

        The usual length is that of the centres, or else the commonest among the reports.
        """
        name = LOGREG if self.features == "logreg" else MODEL
        complete = [(client, report) for client, report in reports if name in report.vectors]
        lengths = [report.vectors[name].size for _, report in complete]
        if state.centres and name == LOGREG:
            usual = state.centres[0].size
        else:
            usual = max(lengths, key=lengths.count, default=0)
        return [pair for pair, length in zip(complete, lengths, strict=True) if length == usual]

    def _first_model(self, state: RobustState, members: list[Vector]) -> Vector:
        """u_k where whole models were clustered, else the plain mean of the members."""
        if self.features != "full":
            return mean([(model, 1.0) for model in members])
        if self.trim == "ball":
            # buffers do not count in the distances
            parameters = [model[slice(*state.span)] for model in members]
            kept = ball(parameters, self.beta)
            return mean([(members[i], 1.0) for i in kept])
        return robust_mean(members, self.trim, self.beta).astype(np.float32)


def logistic(local: Local, model: Vector) -> Vector:
    """The coefficients of multinomial logistic regression on the raw inputs.

    Accelerated gradient descent from zero, with a fixed number of steps.

    Args:
        local: the client's data.
        model: any model (d,); only its number of classes is used.

    Returns:
        Coefficients (classes * values of a sample,). Those of absent classes are zero.

    Raises:
        PublicError: the task is a regression.
    """
    x = local.inputs().astype(np.float64)
    y = local.targets("train")
    if y.dtype.kind == "f":
        raise PublicError(
            "strategy.features: logreg needs classes, and the task is a regression; use full"
        )
    classes = local.predict(model, "train").shape[1]
    truth = np.eye(classes)[y]
    present = truth.sum(axis=0) > 0
    # 1 / L: the second derivative of a softmax is 1/2 at most
    curvature = float(np.linalg.norm(x, 2)) ** 2 / len(x)
    step = 2.0 / max(curvature, 1e-12)
    w = np.zeros((classes, x.shape[1]))
    ahead = w
    for t in range(STEPS):
        residuals = _softmax(x @ ahead.T, present) - truth
        slope = residuals.T @ x / len(x)
        before = w
        w = ahead - step * slope
        ahead = w + t / (t + 3) * (w - before)
    return w.astype(np.float32).ravel()


def _softmax(
    logits: npt.NDArray[np.float64], present: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Chances (n, classes) of the present classes from logits (n, classes)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    powers = np.where(present, np.exp(shifted), 0.0)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
