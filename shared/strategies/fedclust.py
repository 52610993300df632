"""FedClust: cluster once by the final layers after a short training, then FedAvg per cluster.

Paper. Islam et al. 2024, FedClust: Tackling Data Heterogeneity in Federated Learning through
Weight-Driven Client Clustering, algorithms 1 and 2 (newcomers).

Our deviations, where the paper is silent.
- E_0, the length of the first training, is E, or a number of epochs or steps of its own.
- Clusters start from the common start and train from round 1 on.
- If the scenario gives no cut, tests on cards decide whether there are clusters, and silhouettes
  how many (bases/cut.py); the tree has complete linkage. With a cut the linkage is the average one.
- The signature is the direction of the whole update. The paper's is `signature: final_layer`: where
  agents' inputs differ and their labels do not, a short training hardly changes the final layer by
  group, and where they have unequal numbers of samples, it shows these.
- A newcomer is compared with the centroid of the members' first uploads, because a cluster's
  current model has trained much longer.
- A client that comes back keeps its cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import Linkage, Matrix, euclidean, nearest, sketch
from covey.shared.numerics.vectors import Layout, Vector, combine, dot, mean
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.base import (
    ENTRY,
    MODEL,
    SIGNATURE,
    TRAIN,
    ClientId,
    Facts,
    Order,
    PrivacyFacet,
    Reports,
    Settings,
    Setup,
    Trainings,
    without,
)
from covey.shared.strategies.bases.cut import (
    CARD_ASKED,
    VOTES_ARE_CLEAR,
    Choose,
    Grouped,
    SignedOnce,
    check_cuts,
    cut_defaults,
    with_card,
    with_tree,
)
from covey.shared.strategies.bases.hard import START
from covey.shared.strategies.bases.soft import merged
from covey.shared.strategies.bases.vote import voted_on
from covey.shared.strategies.clear_phases import shortened
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    Job,
    Local,
    Report,
    trained_report,
)
from covey.shared.strategies.expected import A_COUNT
from covey.shared.strategies.phase_names import TRIAL, VOTE
from covey.shared.written import FIRST

SKETCH = 256  # values of a sketched update: 1 kB


@dataclass(frozen=True)
class FedClustState(Grouped):
    """Besides the clusters, what they were made from."""

    span: tuple[int, int] = (0, 0)  # start and stop of the compared values in a model
    epochs: int = 1  # E_0
    steps: int | None = None  # E_0 in steps of SGD; None: it is counted in epochs
    values: int = SKETCH  # of a sketch
    signatures: dict[ClientId, Vector] = field(default_factory=dict)  # the first uploads (S,)
    centroids: tuple[Vector, ...] = ()  # their mean per cluster, after normalisation


LENGTHS = {"epochs": A_COUNT, "steps": A_COUNT}  # of the first training


class FedClust(SignedOnce[FedClustState]):
    """One-shot clustering for the price of one model down and one signature up."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    facts: ClassVar[Facts] = replace(
        SignedOnce.facts,
        numbers=SignedOnce.facts.numbers_with(
            {
                SIGNATURE: {**CARD_ASKED, **LENGTHS},
                ENTRY: LENGTHS,
                TRAIN: LENGTHS,  # an agent without a cluster does its entry first
            }
        ),
    )
    height = "lambda"
    unit = "Euclidean distance"

    summary: ClassVar[str] = "group once by first updates, then one FedAvg per group"
    source: ClassVar[str] = "Islam et al. 2024"

    name: Literal["fedclust"] = "fedclust"
    n_clusters: int | None = Field(
        None, ge=1, json_schema_extra=FIRST, description="Cut the merge tree into this many groups."
    )
    threshold: float | None = Field(
        None,
        alias="lambda",
        allow_inf_nan=False,
        description="Merge groups up to this distance; 1e300: one group.",
    )
    lambda_quantile: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Merge groups up to this quantile of all distances. Without n_clusters, "
        "lambda and lambda_quantile see choose.",
    )
    choose: Choose = Field(
        "silhouette",
        description="How the cut is chosen if none is given. silhouette: by the best silhouette, "
        "which without a gate must be better than chance. rotations: by the gap statistic against "
        "rotations, for agents with equal numbers of samples. gap: at the largest relative gap.",
    )
    linkage: Linkage = Field(
        "complete",
        description="The distance of two groups, as scipy names it. The default is complete for "
        "silhouettes, ward for rotations, and average otherwise.",
    )
    signature: Literal["final_layer", "update"] = Field(
        "update",
        description="What agents send to be clustered. final_layer: the final layer after the "
        "first training, which shows the labels. update: the direction of the change of the whole "
        "model, in a random projection of 256 values, which also shows how inputs differ. The default "
        "is the final layer if the cut or normalize is given.",
    )
    normalize: Literal["none", "delta", "unit"] = Field(
        "none",
        description="Preparation of final layers before their comparison. delta: subtract that "
        "of the start. unit: also divide by the norm.",
    )
    first_epochs: int | None = Field(
        None, ge=1, description="E_0: the epochs before clustering; null: as many as in a round."
    )
    first_steps: int | None = Field(
        None,
        ge=1,
        description="E_0 in steps of SGD instead of epochs: the same for every agent, however many "
        "samples it has.",
    )
    newcomer_ref: Literal["round0", "current"] = Field(
        "round0",
        description="The comparison for newcomers: with the first uploads of the members (round0), "
        "or the cluster's current model.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_cut(cls, data: Any) -> Any:
        cuts = ("n_clusters", "lambda", "threshold", "lambda_quantile")
        linkages: dict[str, Linkage] = {"silhouette": "complete", "rotations": "ward"}
        data = cut_defaults(data, cuts, linkages, given="average")
        if not isinstance(data, Mapping):
            return data
        # a given cut and a preparation are those of the paper, so its signature goes with them
        prepares = data.get("normalize", "none") != "none"
        is_paper = prepares or any(data.get(key) is not None for key in cuts)
        return {"signature": "final_layer" if is_paper else "update", **data}

    @model_validator(mode="after")
    def _one_length_of_the_first_training(self) -> Self:
        if self.first_epochs is not None and self.first_steps is not None:
            raise ValueError(
                "first_epochs and first_steps both set the length of the first training: "
                "give one of them"
            )
        return self

    @model_validator(mode="after")
    def _an_update_is_a_direction_already(self) -> Self:
        if self.signature == "update" and self.normalize != "none":
            raise ValueError(
                "normalize prepares final layers, and signature: update sends a direction of "
                "length 1: leave normalize out"
            )
        return self

    @model_validator(mode="after")
    def _one_cut(self) -> Self:
        cuts = {
            "n_clusters": self.n_clusters,
            "lambda": self.threshold,
            "lambda_quantile": self.lambda_quantile,
        }
        check_cuts(cuts, self.choose, self.gate)
        return self

    @property
    def quantile(self) -> float | None:
        return self.lambda_quantile

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, SecureSettings) and self.signature == "final_layer":
            return (
                "a final layer is a part of the update itself, and all of it in a model of one layer; set strategy.signature to "
                "update"
            )
        return super().refuses(settings)

    def init(self, setup: Setup) -> FedClustState:
        span = self._compared(setup.layout)
        epochs = self.first_epochs or setup.training.epochs
        return FedClustState(
            setup.starts[0],
            asks=self.cut.asks(setup),
            **self.before_votes(setup),
            span=(span.start, span.stop),
            epochs=epochs,
            steps=self.first_steps,
            values=SKETCH if setup.secure is None else shortened(SKETCH, setup.layout),
        )

    def entry_sizes(self, state: FedClustState) -> Mapping[str, int]:
        if self.signature == "update":
            return {SIGNATURE: state.values}
        start, stop = state.span
        return {SIGNATURE: stop - start}

    def entry_order(self, state: FedClustState) -> Order:
        length = {"epochs": state.epochs} if state.steps is None else {"steps": state.steps}
        return Order(models=(START,), numbers=length)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == VOTE:
            return voted_on(job, local, client_state), client_state
        epochs = job.numbers.get("epochs")
        steps = job.numbers.get("steps")
        result = local.train(job.models[0], Drill(epochs=epochs, steps=steps))
        if job.phase in (TRAIN, TRIAL):
            return trained_report(result, local), client_state
        signature = self._made(job.models[0], result.end, self._compared(job.layout))
        report = Report(
            {SIGNATURE: signature}, local.examples, steps=result.steps, loss=result.loss
        )
        return with_card(report, job, local), client_state

    def form_clusters(
        self, state: FedClustState, reports: Reports, average: Average = MEAN
    ) -> FedClustState:
        signatures = {client: self._signature(state, report) for client, report in reports}
        points = [self._normal(state, signature) for signature in signatures.values()]
        tree, evidence = self.cut.tree(euclidean(points), state.chances)
        labels = tree.labels.tolist()
        centroids: list[Vector] = []
        for k in range(tree.clusters):
            members = [p for p, label in zip(points, labels, strict=True) if label == k]
            centroids.append(mean([(point, 1.0) for point in members]))
        formed = replace(
            state,
            models=(state.start,) * tree.clusters,
            assign=dict(zip(signatures, labels, strict=True)),
            signatures=signatures,
            centroids=tuple(centroids),
        )
        return with_tree(formed, tree, evidence)

    def assign_newcomers(self, state: FedClustState, reports: Reports) -> FedClustState:
        """Algorithm 2: a newcomer joins the cluster with the reference nearest to its signature."""
        if not reports:
            return state
        signatures = {client: self._signature(state, report) for client, report in reports}
        points = [self._normal(state, signature) for signature in signatures.values()]
        labels, _ = nearest(points, self._references(state))
        clusters = dict(zip(signatures, labels.tolist(), strict=True))
        return replace(
            state,
            assign=merged(state.assign, clusters),
            signatures=merged(state.signatures, signatures),
        )

    def compared(self, state: FedClustState) -> tuple[tuple[ClientId, ...], Matrix] | None:
        if not state.signatures:
            return None
        points = [self._normal(state, signature) for signature in state.signatures.values()]
        return tuple(state.signatures), euclidean(points)

    @property
    def privacy(self) -> PrivacyFacet:
        if self.vote == "auto":
            return PrivacyFacet(refusal=VOTES_ARE_CLEAR)
        trainings = Trainings(first_epochs=self.first_epochs, first_steps=self.first_steps)
        return PrivacyFacet(trainings, "assigned", signature_base=self._signature_base)

    def _signature_base(self, job: Job, signature: Vector) -> Vector:
        if self.signature == "update":
            return np.zeros_like(signature)
        return job.models[0][job.layout.final_layer]

    def _references(self, state: FedClustState) -> tuple[Vector, ...]:
        if self.newcomer_ref == "round0":
            return state.centroids
        signatures = [
            self._made(state.start, model, slice(*state.span))[: self.entry_sizes(state)[SIGNATURE]]
            for model in state.models[: len(state.centroids)]
        ]
        return tuple(self._normal(state, signature) for signature in signatures)

    def _normal(self, state: FedClustState, signature: Vector) -> Vector:
        """A signature as it is compared."""
        if self.normalize == "none":
            return signature
        start = state.start[slice(*state.span)]
        delta = combine([(signature, 1.0), (start, -1.0)])
        norm = 1.0
        if self.normalize == "unit":
            norm = dot(delta, delta) ** 0.5
        return combine([(delta, 1.0 / norm)]) if norm > 0 else delta

    def _signature(self, state: FedClustState, report: Report) -> Vector:
        """The signature (S,): all of an entry's report, or made from a reported model."""
        if SIGNATURE in report.vectors:
            return report.vectors[SIGNATURE]
        return self._made(state.start, report.vectors[MODEL], slice(*state.span))

    def _compared(self, layout: Layout) -> slice:
        """The part of a model that a signature is made from."""
        if self.signature == "update":
            return slice(0, layout.parameters)
        return layout.final_layer

    def _made(self, start: Vector, end: Vector, span: slice) -> Vector:
        """The signature (S,) of a model that was trained from `start`, both (d,).

        The projection of an update has a fixed seed, so that agents of several runs can be compared.
        """
        if self.signature == "final_layer":
            return end[span].copy()
        update = combine([(end[span], 1.0), (start[span], -1.0)])
        norm = dot(update, update) ** 0.5
        direction = combine([(update, 1.0 / norm)]) if norm > 0 else update
        projected: Vector = sketch([direction], SKETCH, seed=0)[0]
        return projected

    def forget(self, state: FedClustState, client: ClientId) -> FedClustState:
        return replace(super().forget(state, client), signatures=without(state.signatures, client))
