"""Robust(TKM): cluster the clients' own solutions once with trimmed K-means, then robust rounds in each cluster.

Ghosh, Hong, Yin, Ramchandran 2019, Robust Federated Learning in a Heterogeneous Environment: stage 1 finds every
client's empirical risk minimiser, stage 2 clusters these, stage 3 optimises each cluster with a robust aggregator.
Our choices: E_0 epochs of local training stand for the minimiser, 20 restarts of
trimmed K-means, uniform weights in all means, and a newcomer goes through stage 1 to the nearest centre. We follow
the paper and cluster once; a public code that clusters anew in every round is FeSEM with other means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.shared.errors import PublicError
from covey.shared.numerics.averages import MEAN, Average, Rule
from covey.shared.numerics.clustering import nearest
from covey.shared.numerics.trimmed import Trim, ball, robust_mean, trimmed_kmeans, trimmed_mean
from covey.shared.numerics.vectors import Vector, combine, mean
from covey.shared.strategies.base import (
    ClientState,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Schedule,
    Setup,
    TrainingResult,
    View,
    factor_in,
)
from covey.shared.strategies.bases.hard import (
    Clustered,
    Features,
    HardClustered,
    feature_span,
    joined,
)
from covey.shared.strategies.fedsgd import decayed

STEPS = 200  # of the logistic regression


@dataclass(frozen=True)
class RobustState(Clustered):
    """Besides the clusters: `span` of the features in a model, `centres` u_k of the features, `inertia`, the trimmed
    cost of stage 2, and where clients send gradients the server's learning rate, its schedule, and rounds folded."""

    span: tuple[int, int] = (0, 0)
    seed: int = 0
    lr: float = 0.0
    centres: tuple[Vector, ...] = ()
    inertia: float = 0.0
    schedule: Schedule = ()
    round: int = 0


class Robust(HardClustered[RobustState]):
    """A few broken or hostile clients can neither bend the clusters nor the models."""

    summary: ClassVar[str] = (
        "trimmed K-means over locally trained models, once, then trimmed means per cluster"
    )
    source: ClassVar[str] = "Ghosh et al. 2019"

    name: Literal["robust"] = "robust"
    n_clusters: int = Field(2, ge=1, description="K, the number of clusters")
    features: Features | Literal["logreg"] = Field(
        "full",
        description="what is clustered: all parameters, a part of the final layer, or the coefficients of a logistic "
        "regression on the raw inputs",
    )
    trim: Trim = Field(
        "mean",
        description="mean: drop each coordinate's extremes; ball: drop the farthest members; median",
    )
    beta: float = Field(
        0.05, ge=0, lt=0.5, description="share that stage 2 drops, per side where there are sides"
    )
    round_beta: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="share of each coordinate's values that a round drops per side",
    )
    restarts: int = Field(
        20,
        ge=1,
        description="runs of trimmed K-means; the one with the least trimmed cost is taken",
    )
    first_epochs: int = Field(10, ge=1, description="E_0, epochs of stage 1")
    first_tolerance: float | None = Field(
        None,
        gt=0,
        description="stage 1 ends when an epoch changes the mean loss by less (momentum is reset each epoch)",
    )
    first_quorum: float = Field(
        0.5, ge=0, le=1, description="share of agents that must report before clustering"
    )
    averaging: Literal["model", "gradient"] = Field(
        "model",
        description="what a round sends up: a trained model, or one gradient for a step of training.lr",
    )
    most_values: int = Field(
        1 << 22, ge=1, description="logreg: refuse coefficients of more values than this"
    )

    def refuses(self, rule: Rule) -> str:
        return (
            ""
            if rule == "mean"
            else "it has robust means of its own: strategy.trim, beta and round_beta"
        )

    def init(self, setup: Setup) -> RobustState:
        span = feature_span("full" if self.features == "logreg" else self.features, setup.layout)
        return RobustState(
            setup.starts[0],
            span=(span.start, span.stop),
            seed=setup.seed,
            lr=setup.training.lr,
            schedule=setup.training.schedule(setup.rounds),
        )

    def clustering_phase(self, state: RobustState) -> Phase:
        return Phase(
            "solve", "all", self.entry_sizes(state), ends_round=False, quorum=self.first_quorum
        )

    def entry_sizes(self, state: RobustState) -> Mapping[str, int]:
        extra = {"logreg": -self.most_values} if self.features == "logreg" else {}
        return {"model": state.start.size, **extra}

    def entry_order(self, state: RobustState) -> Order:
        return Order(models=("start",), numbers={"epochs": self.first_epochs})

    def plan(self, state: RobustState, view: View) -> Phase:
        phase = super().plan(state, view)
        return (
            replace(phase, sizes={self.averaging: state.start.size})
            if phase.name == "train"
            else phase
        )

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == "train" and self.averaging == "gradient":
            model = job.models[0]
            return Report(
                {"gradient": decayed(local.gradient(model), model, job)},
                local.examples,
                {},
                1,
                local.loss(model),
            ), client_state
        epochs = job.numbers.get("epochs")
        done = (
            local.train(job.models[0])
            if epochs is None
            else self._solve(job.models[0], local, int(epochs))
        )
        vectors = {"model": done.end}
        if job.phase != "train" and self.features == "logreg":
            vectors["logreg"] = logistic(local, job.models[0])
        return Report(
            vectors, local.examples, {}, done.steps, done.loss, {"model": 0}
        ), client_state

    def form_clusters(
        self, state: RobustState, reports: Reports, average: Average = MEAN
    ) -> RobustState:
        reports = self._comparable(state, reports)
        if not reports:
            return state
        rows = [self._features(state, report.vectors) for _, report in reports]
        few = min(self.n_clusters, len(rows))
        best = trimmed_kmeans(
            rows, few, trim=self.trim, share=self.beta, n_init=self.restarts, seed=state.seed
        )
        labels = best.labels.tolist()
        members = [
            [r.vectors["model"] for (_, r), z in zip(reports, labels, strict=True) if z == k]
            for k in range(few)
        ]
        return replace(
            state,
            models=tuple(self._first_model(state, own) for own in members if own),
            assign=dict(zip((client for client, _ in reports), labels, strict=True)),
            centres=best.centres,
            inertia=best.inertia,
        )

    def assign_newcomers(self, state: RobustState, reports: Reports) -> RobustState:
        """A newcomer's solution joins the nearest centre of stage 2."""
        reports = self._comparable(state, reports)
        if not reports:
            return state
        labels, _ = nearest(
            [self._features(state, report.vectors) for _, report in reports], state.centres
        )
        return joined(
            state, dict(zip((client for client, _ in reports), labels.tolist(), strict=True))
        )

    def aggregate(
        self, state: RobustState, reports: Reports, average: Average = MEAN
    ) -> RobustState:
        models = list(state.models)
        lr = state.lr * factor_in(state.schedule, state.round)
        for k, model in enumerate(state.models):
            own = [
                report.vectors[self.averaging]
                for client, report in reports
                if state.assign[client] == k
            ]
            if own:  # a cluster without reporters keeps its model
                robust = trimmed_mean(own, self.round_beta).astype(np.float32)
                step = [(model, 1.0), (robust, -lr)]
                models[k] = robust if self.averaging == "model" else combine(step)
        return replace(state, models=tuple(models), round=state.round + 1)

    def notes(self, state: RobustState) -> dict[str, Any]:
        return {**super().notes(state), "trimmed_cost": state.inertia} if state.models else {}

    def _solve(self, start: Vector, local: Local, epochs: int) -> TrainingResult:
        if self.first_tolerance is None:
            return local.train(start, epochs=epochs)
        done = local.train(start, epochs=1)
        for _ in range(epochs - 1):
            further = local.train(done.end, epochs=1)
            settled = abs(further.loss - done.loss) < self.first_tolerance
            done = replace(further, steps=done.steps + further.steps)
            if settled:
                break
        return done

    def _features(self, state: RobustState, vectors: Mapping[str, Vector]) -> Vector:
        return (
            vectors["logreg"] if self.features == "logreg" else vectors["model"][slice(*state.span)]
        )

    def _comparable(self, state: RobustState, reports: Reports) -> Reports:
        """Reports that hold the features, of the length that the centres have or most reports agree on."""
        name = "logreg" if self.features == "logreg" else "model"
        lengths = [report.vectors[name].size for _, report in reports if name in report.vectors]
        wanted = (
            state.centres[0].size
            if state.centres and name == "logreg"
            else max(lengths, key=lengths.count, default=0)
        )
        return [(c, r) for c, r in reports if name in r.vectors and r.vectors[name].size == wanted]

    def _first_model(self, state: RobustState, members: list[Vector]) -> Vector:
        """u_k where whole models were clustered, else the members' plain mean."""
        if self.features != "full":
            return mean([(model, 1.0) for model in members])
        if self.trim == "ball":  # buffers have no say in who is far
            kept = ball([model[slice(*state.span)] for model in members], self.beta)
            return mean([(members[i], 1.0) for i in kept])
        return robust_mean(members, self.trim, self.beta).astype(np.float32)


def logistic(local: Local, model: Vector) -> Vector:
    """Coefficients (classes * values of a sample,) of multinomial logistic regression on the raw inputs.

    Accelerated gradient descent from zero, a fixed number of steps; rows of absent classes are zero. The model only
    tells how many classes there are.
    """
    x, y = local.inputs().astype(np.float64), local.targets("train")
    if y.dtype.kind == "f":
        raise PublicError(
            "strategy.features: logreg needs classes, the task is a regression; full would do"
        )
    classes = local.predict(model, "train").shape[1]
    truth = np.eye(classes)[y]
    present = truth.sum(axis=0) > 0
    step = 2.0 / max(
        float(np.linalg.norm(x, 2)) ** 2 / len(x), 1e-12
    )  # 1 / L: a softmax bends by 1/2 at the most
    w = ahead = np.zeros((classes, x.shape[1]))
    for t in range(STEPS):
        slope = (_softmax(x @ ahead.T, present) - truth).T @ x / len(x)
        w, before = ahead - step * slope, w
        ahead = w + t / (t + 3) * (w - before)
    return w.astype(np.float32).ravel()


def _softmax(
    logits: npt.NDArray[np.float64], present: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    powers = np.where(present, np.exp(logits - logits.max(axis=1, keepdims=True)), 0.0)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
