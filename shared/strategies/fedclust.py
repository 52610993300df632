"""FedClust: cluster once by the final layers after a short training from a common start, then FedAvg per cluster.

Islam et al. 2024, FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven Client
Clustering, algorithms 1 and 2 (newcomers). Our choices where the paper is silent:
E_0 = E (or an own number of epochs, or of steps), and clusters start at the common start and train from round 1 on. Where
the scenario gives no cut, the tree has Ward's linkage and is cut where rotations of the same signatures say so, which can
also find that there are no clusters (shared/numerics/choose_k.py); with a cut given the linkage is the average one. A newcomer is compared with the centroid of
the members' first uploads, for a cluster's current model has trained much longer. A client that comes back
keeps its cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.choose_k import Choice, by_rotations, by_silhouette
from covey.shared.numerics.clustering import (
    Linkage,
    Matrix,
    agglomerative,
    cut_between,
    euclidean,
    nearest,
)
from covey.shared.numerics.vectors import Vector, combine, dot, mean
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    Job,
    Local,
    Order,
    Phase,
    Proximity,
    Report,
    Reports,
    Routes,
    Setup,
)
from covey.shared.strategies.bases.hard import (
    Clustered,
    HardClustered,
    cut_defaults,
    folded,
    useless,
)


@dataclass(frozen=True)
class FedClustState(Clustered):
    """Besides the clusters: `final` is the span of the final layer, `signatures` the first uploads (S_h,),
    `centroids` their mean per cluster after normalisation, `epochs` is E_0, or `steps` where it is counted in steps; the rest describes the cut.
    `evidence` is the score of the best cut and the score to exceed, where clouds without clusters were compared."""

    final: tuple[int, int] = (0, 0)
    epochs: int = 1
    steps: int | None = None
    signatures: dict[ClientId, Vector] = field(default_factory=dict)
    centroids: tuple[Vector, ...] = ()
    heights: tuple[float, ...] = ()
    cut: tuple[float | None, float | None] = (None, None)
    evidence: tuple[float, ...] = ()


class FedClust(HardClustered[FedClustState]):
    """One-shot clustering for the price of one model down and one final layer up."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    signature_phases: ClassVar[tuple[str, ...]] = ("signature", "entry")
    summary: ClassVar[str] = "cluster once by final layers, then one FedAvg per cluster"
    source: ClassVar[str] = "Islam et al. 2024"

    name: Literal["fedclust"] = "fedclust"
    n_clusters: int | None = Field(
        None, ge=1, description="cut the merge tree into so many clusters"
    )
    threshold: float | None = Field(
        None,
        alias="lambda",
        allow_inf_nan=False,
        description="merge up to this distance; 1e300: one cluster",
    )
    lambda_quantile: float | None = Field(
        None,
        ge=0,
        le=1,
        description="merge up to this quantile of all distances; no cut given: see choose",
    )
    choose: Literal["rotations", "gap", "silhouette"] = Field(
        "rotations",
        description="no cut given: gap statistic against rotations, largest relative gap, or best silhouette; all but gap "
        "can find one cluster",
    )
    linkage: Linkage = Field(
        "ward",
        description="distance of two clusters, as scipy names it; average unless rotations choose the cut",
    )
    normalize: Literal["none", "delta", "unit"] = Field(
        "none", description="delta: subtract the start's final layer; unit: and divide by the norm"
    )
    first_epochs: int | None = Field(
        None, ge=1, description="E_0, epochs before clustering; null: as in a round"
    )
    first_steps: int | None = Field(
        None,
        ge=1,
        description="E_0 in steps of SGD, the same for every agent however many samples it has; in place of first_epochs",
    )
    first_quorum: float = Field(
        0.5, ge=0, le=1, description="share of agents that must report before clustering"
    )
    newcomer_ref: Literal["round0", "current"] = Field(
        "round0",
        description="compare newcomers with the members' first uploads, or with the cluster's current model",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_cut(cls, data: Any) -> Any:
        cuts = ("n_clusters", "lambda", "threshold", "lambda_quantile")
        return cut_defaults(data, cuts, rotations="ward", given="average")

    @model_validator(mode="after")
    def _one_length_of_the_first_training(self) -> Self:
        if self.first_epochs is not None and self.first_steps is not None:
            raise ValueError(
                "first_epochs and first_steps both set the length of the first training: give one of them"
            )
        return self

    @model_validator(mode="after")
    def _one_cut(self) -> Self:
        cuts = {
            "n_clusters": self.n_clusters,
            "lambda": self.threshold,
            "lambda_quantile": self.lambda_quantile,
        }
        given = [name for name, value in cuts.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} cut the same tree: give one of them, or none")
        if given and self.choose != "gap":
            raise ValueError(
                f"{given[0]} gives the cut, so nothing is left to choose by {self.choose}: leave one out"
            )
        return self

    def init(self, setup: Setup) -> FedClustState:
        span = setup.layout.final_layer
        epochs = self.first_epochs or setup.training.epochs
        return FedClustState(
            setup.starts[0], final=(span.start, span.stop), epochs=epochs, steps=self.first_steps
        )

    def clustering_phase(self, state: FedClustState) -> Phase:
        return Phase(
            "signature", "all", self.entry_sizes(state), ends_round=False, quorum=self.first_quorum
        )

    def entry_sizes(self, state: FedClustState) -> Mapping[str, int]:
        return {"signature": state.final[1] - state.final[0]}

    def entry_order(self, state: FedClustState) -> Order:
        length = {"epochs": state.epochs} if state.steps is None else {"steps": state.steps}
        return Order(models=("start",), numbers=length)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        done = local.train(
            job.models[0], epochs=job.numbers.get("epochs"), steps=job.numbers.get("steps")
        )
        if job.phase == "train":
            return Report(
                {"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}
            ), client_state
        signature = done.end[job.layout.final_layer].copy()
        return Report(
            {"signature": signature}, local.examples, {}, done.steps, done.loss
        ), client_state

    def form_clusters(
        self, state: FedClustState, reports: Reports, average: Average = MEAN
    ) -> FedClustState:
        signatures = {client: _signature(state, report) for client, report in reports}
        points = [self._normal(state, signature) for signature in signatures.values()]
        matrix = euclidean(points)
        choice = self._choice(matrix)
        wanted = choice.clusters if choice else self.n_clusters
        tree = agglomerative(
            matrix, self.linkage, threshold=self._threshold(matrix), n_clusters=wanted
        )
        labels = tree.labels.tolist()
        centroids = tuple(
            mean([(point, 1.0) for point, label in zip(points, labels, strict=True) if label == k])
            for k in range(tree.clusters)
        )
        return replace(
            state,
            models=(state.start,) * tree.clusters,
            assign=dict(zip(signatures, labels, strict=True)),
            signatures=signatures,
            centroids=centroids,
            heights=tree.heights,
            cut=(tree.low, tree.high),
            evidence=(choice.score, choice.chance) if choice else (),
        )

    def assign_newcomers(self, state: FedClustState, reports: Reports) -> FedClustState:
        """Algorithm 2: a newcomer joins the cluster whose reference lies nearest to its final layer."""
        if not reports:
            return state
        signatures = {client: _signature(state, report) for client, report in reports}
        labels, _ = nearest(
            [self._normal(state, one) for one in signatures.values()], self._references(state)
        )
        return replace(
            state,
            assign=dict(
                sorted(
                    {**state.assign, **dict(zip(signatures, labels.tolist(), strict=True))}.items()
                )
            ),
            signatures=dict(sorted({**state.signatures, **signatures}.items())),
        )

    def aggregate(
        self, state: FedClustState, reports: Reports, average: Average = MEAN
    ) -> FedClustState:
        return replace(state, models=folded(state, reports, average))

    def proximity(self, state: FedClustState) -> Proximity | None:
        if not state.signatures:
            return None
        points = [self._normal(state, signature) for signature in state.signatures.values()]
        cut = cut_between(state.cut, state.heights, len(points))
        return Proximity(
            tuple(state.signatures), euclidean(points), self.linkage, "Euclidean distance", cut
        )

    def private_routes(self) -> Routes:
        return "assigned"

    def check_local_privacy(self) -> None:
        """A signature is a part of the trained model, and a round's report is all of it."""

    def signature_base(self, job: Job, signature: Vector) -> Vector:
        return job.models[0][job.layout.final_layer]

    def notes(self, state: FedClustState) -> dict[str, Any]:
        low, high = state.cut
        facts = {"lambda_from": low, "lambda_below": high, "merge_heights": list(state.heights)}
        score = "silhouette" if self.choose == "silhouette" else "gap_statistic"
        facts.update(zip((score, f"{score}_by_chance"), state.evidence, strict=False))
        chosen = self.n_clusters is None and self.threshold is None and self.lambda_quantile is None
        return (
            {**super().notes(state), **facts, **useless(state, chosen=chosen)}
            if state.models
            else {}
        )

    def _choice(self, matrix: Matrix) -> Choice | None:
        """The number of clusters, where clouds without clusters are asked."""
        match self.choose:
            case "rotations":
                return by_rotations(matrix, self.linkage)
            case "silhouette":
                return by_silhouette(matrix, self.linkage)
            case "gap":
                return None

    def _threshold(self, matrix: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
        if self.lambda_quantile is None or len(matrix) < 2:
            return self.threshold
        return float(np.quantile(matrix[np.triu_indices(len(matrix), 1)], self.lambda_quantile))

    def _references(self, state: FedClustState) -> tuple[Vector, ...]:
        if self.newcomer_ref == "round0":
            return state.centroids
        return tuple(self._normal(state, model[slice(*state.final)]) for model in state.models)

    def _normal(self, state: FedClustState, signature: Vector) -> Vector:
        if self.normalize == "none":
            return signature
        delta = combine([(signature, 1.0), (state.start[slice(*state.final)], -1.0)])
        norm = dot(delta, delta) ** 0.5 if self.normalize == "unit" else 1.0
        return combine([(delta, 1.0 / norm)]) if norm > 0 else delta


def _signature(state: FedClustState, report: Report) -> Vector:
    """The final layer (S_h,): all of an entry's report, or a slice of the model of a round's."""
    if "signature" in report.vectors:
        return report.vectors["signature"]
    return report.vectors["model"][slice(*state.final)]
