"""PACFL: cluster once by the angles between the clients' data, before any training, then FedAvg per cluster.

Vahidian et al. 2023, Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal
Angles between Client Data Subspaces. A client's signature are the first p left singular vectors of the samples of each
of its classes, in the scale of the files, not centred. Our choices: `min_entry`, what the
public code measures, takes the absolute value of the inner product, for a singular vector has no sign of its own;
linkage `weighted` is the code's "average", also where a newcomer is placed: each member of the first clustering counts by its
path in the merge tree, and newcomers before it do not count; without a cut the tree has complete linkage and is cut where
rotations of the same clients say so (shared/numerics/choose_k.py), which can also find that there are no clusters.
Singular vectors of images look like class means: who must not show these to the server should not use PACFL.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, model_validator

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.choose_k import by_rotations
from covey.shared.numerics.clustering import (
    Agglomeration,
    Linkage,
    Matrix,
    agglomerative,
    cut_between,
    orthonormal,
)
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    LARGEST,
    ClientId,
    ClientState,
    Expected,
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
    joined,
    useless,
)

SETS: dict[str, Any] = {"single": np.min, "complete": np.max, "average": np.mean}


@dataclass(frozen=True)
class PacflState(Clustered):
    """Besides the clusters: `signatures` (vectors * values of a sample,) and the label of each vector, by client; the
    merge heights in degrees, and the thresholds that give the cut. `weights` are the shares of the clustered clients in their
    cluster's distances under linkage `weighted`; `evidence` is the score of the best cut and the score to exceed, where
    rotations chose it."""

    signatures: dict[ClientId, Vector] = field(default_factory=dict)
    labels: dict[ClientId, tuple[int, ...]] = field(default_factory=dict)
    heights: tuple[float, ...] = ()
    cut: tuple[float | None, float | None] = (None, None)
    weights: dict[ClientId, float] = field(default_factory=dict)
    evidence: tuple[float, ...] = ()


class Pacfl(HardClustered[PacflState]):
    """Clusters for the price of a few vectors per class; no model is sent before they are known."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    signature_phases: ClassVar[tuple[str, ...]] = ("signature", "entry")
    summary: ClassVar[str] = (
        "cluster once by angles between data subspaces, then one FedAvg per cluster"
    )
    source: ClassVar[str] = "Vahidian et al. 2023"

    name: Literal["pacfl"] = "pacfl"
    p: int = Field(3, ge=1, description="singular vectors per class, or as many as a class has")
    measure: Literal["min_entry", "principal", "trace"] = Field(
        "min_entry",
        description="degrees between two clients: least angle of any two vectors, smallest principal angle, or the sum "
        "over the vectors of the same class and order (90 where one has none)",
    )
    signed: bool = Field(
        False, description="min_entry as the public code has it, without the absolute value"
    )
    threshold: float | None = Field(
        None,
        alias="beta",
        allow_inf_nan=False,
        description="merge clusters up to so many degrees; 180: one cluster",
    )
    n_clusters: int | None = Field(
        None, ge=1, description="cut into so many clusters; no cut given: see choose"
    )
    choose: Literal["rotations", "gap"] = Field(
        "rotations",
        description="no cut given: gap statistic against rotations, which can find one cluster, or largest relative gap",
    )
    linkage: Literal["weighted", "average", "single", "complete"] = Field(
        "complete",
        description="distance of two clusters, as scipy names it; weighted unless rotations choose the cut",
    )
    newcomers: Literal["nearest", "recluster"] = Field(
        "nearest",
        description="join the nearest cluster or found a new one, or cluster everybody again",
    )
    first_quorum: float = Field(
        0.5, ge=0, le=1, description="share of agents that must report before clustering"
    )
    most_values: int = Field(
        1 << 22, ge=1, description="a signature of more values than this is refused"
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_cut(cls, data: Any) -> Any:
        """`weighted` is the linkage of the public code."""
        return cut_defaults(
            data, ("n_clusters", "beta", "threshold"), rotations="complete", given="weighted"
        )

    @model_validator(mode="after")
    def _one_cut(self) -> Self:
        if self.threshold is not None and self.n_clusters is not None:
            raise ValueError("beta and n_clusters cut the same tree: give one of them, or none")
        return self

    def init(self, setup: Setup) -> PacflState:
        return PacflState(setup.starts[0])

    def clustering_phase(self, state: PacflState) -> Phase:
        return Phase(
            "signature",
            "all",
            self.entry_sizes(state),
            ends_round=False,
            quorum=self.first_quorum,
            numbers=self.entry_numbers,
        )

    @property
    def entry_numbers(self) -> Mapping[str, Expected]:
        return {"labels": Expected(-self.most_values, most=LARGEST, whole=True)}

    def entry_sizes(self, state: PacflState) -> Mapping[str, int]:
        return {"signature": -self.most_values}

    def entry_order(self, state: PacflState) -> Order:
        return Order()

    def order(self, state: PacflState, phase: Phase, client: ClientId) -> Order:
        if phase.name == "train" and client not in state.assign:
            return Order(
                models=("start",)
            )  # its signature is still wanted: this training helps nobody but itself
        return super().order(state, phase, client)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == "train":
            done = local.train(job.models[0])
            return Report(
                {"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}
            ), client_state
        vectors, labels = signature(local.inputs(), local.targets("train"), self.p)
        return Report(
            {"signature": vectors.ravel()}, local.examples, {"labels": labels}
        ), client_state

    def form_clusters(
        self, state: PacflState, reports: Reports, average: Average = MEAN
    ) -> PacflState:
        state, clients = self._keep(state, reports)
        if not clients:
            return state
        tree, evidence = self._tree(self._angles(state, clients))
        return replace(
            state,
            models=(state.start,) * tree.clusters,
            assign=dict(zip(clients, tree.labels.tolist(), strict=True)),
            heights=tree.heights,
            cut=(tree.low, tree.high),
            weights=dict(zip(clients, tree.weights.tolist(), strict=True)),
            evidence=evidence,
        )

    def assign_newcomers(self, state: PacflState, reports: Reports) -> PacflState:
        state, clients = self._keep(state, reports)
        if not clients:
            return state
        return self._again(state) if self.newcomers == "recluster" else self._placed(state, clients)

    def aggregate(self, state: PacflState, reports: Reports, average: Average = MEAN) -> PacflState:
        return replace(state, models=folded(state, reports, average))

    def private_routes(self) -> Routes:
        return "assigned"

    def check_local_privacy(self) -> None:
        raise ValueError(
            "pacfl's signatures are made from the data itself and not by training: DP-SGD cannot cover them"
        )

    def framed(self, job: Job, report: Report) -> Report:
        """p vectors for every class of the task, zeros where the agent has none: labels and counts say nothing."""
        classes = job.layout.outputs
        held: list[int] = report.numbers["labels"]
        values = report.vectors["signature"].reshape(len(held), -1)
        frame = np.zeros((classes * self.p, values.shape[1]), np.float32)
        for vector, (label, order) in zip(values, _places(held), strict=True):
            frame[label * self.p + order] = vector
        labels = [label for label in range(classes) for _ in range(self.p)]
        return replace(report, vectors={"signature": frame.ravel()}, numbers={"labels": labels})

    def signature_base(self, job: Job, signature: Vector) -> Vector:
        return np.zeros_like(signature)

    def proximity(self, state: PacflState) -> Proximity | None:
        clients = tuple(state.signatures)
        if not clients:
            return None
        cut = cut_between(state.cut, state.heights, len(clients))
        return Proximity(clients, self._angles(state, clients), self.linkage, "degrees", cut)

    def notes(self, state: PacflState) -> dict[str, Any]:
        low, high = state.cut
        facts = {"beta_from": low, "beta_below": high, "merge_heights": list(state.heights)}
        facts.update(
            zip(("gap_statistic", "gap_statistic_by_chance"), state.evidence, strict=False)
        )
        return (
            {**super().notes(state), **facts, **useless(state, chosen=self._chooses)}
            if state.models
            else {}
        )

    # -- signatures and angles -------------------------------------------------------------------------

    def _keep(self, state: PacflState, reports: Reports) -> tuple[PacflState, tuple[ClientId, ...]]:
        """The state with the signatures that can be compared, and whose they are."""
        told = {client: _told(report) for client, report in reports}
        labels = {client: tuple(own) for client, own in told.items() if own}
        vectors = {
            client: report.vectors["signature"] for client, report in reports if client in labels
        }
        known = state.signatures or vectors
        counts = Counter(
            vector.size // len({**labels, **state.labels}[client])
            for client, vector in known.items()
        )
        values = counts.most_common(1)[0][0] if counts else 0
        fit = tuple(
            client for client in vectors if vectors[client].size == values * len(labels[client])
        )
        return replace(
            state,
            signatures=dict(
                sorted({**state.signatures, **{client: vectors[client] for client in fit}}.items())
            ),
            labels=dict(
                sorted({**state.labels, **{client: labels[client] for client in fit}}.items())
            ),
        ), fit

    def _angles(self, state: PacflState, rows: Sequence[ClientId]) -> Matrix:
        """The symmetric matrix of degrees between clients."""
        return self._between(state, rows, rows)

    def _between(
        self, state: PacflState, rows: Sequence[ClientId], columns: Sequence[ClientId]
    ) -> Matrix:
        names = dict.fromkeys([*rows, *columns])
        bases = {client: self._basis(state, client) for client in names}
        table = np.zeros((len(rows), len(columns)))
        symmetric = rows is columns
        for i, one in enumerate(rows):
            for j, other in enumerate(columns[:i] if symmetric else columns):
                cosines = bases[one].T @ bases[other]
                table[i, j] = self._degrees(cosines, state.labels[one], state.labels[other])
        return table + table.T if symmetric else table

    def _basis(self, state: PacflState, client: ClientId) -> Matrix:
        columns = (
            np.asarray(state.signatures[client], np.float64)
            .reshape(len(state.labels[client]), -1)
            .T
        )
        if self.measure == "principal":
            return orthonormal(columns)
        unit: Matrix = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
        return unit  # in float64 too: else rounding alone makes hundredths of a degree

    def _degrees(self, cosines: Matrix, own: tuple[int, ...], theirs: tuple[int, ...]) -> float:
        if self.measure == "principal":
            return _angle(np.linalg.svd(cosines, compute_uv=False).max(initial=0.0))
        if self.measure == "min_entry":
            return _angle(np.max(cosines if self.signed else np.abs(cosines)))
        rows, columns = _places(own), _places(theirs)
        common = [(rows[place], columns[place]) for place in rows if place in columns]
        alone = len(rows.keys() | columns.keys()) - len(common)
        return math.fsum(_angle(abs(cosines[i, j])) for i, j in common) + 90.0 * alone

    @property
    def _chooses(self) -> bool:
        """No cut is given."""
        return self.threshold is None and self.n_clusters is None

    def _tree(self, matrix: Matrix) -> tuple[Agglomeration, tuple[float, ...]]:
        """The cut, and the evidence for it where rotations choose."""
        linkage: Linkage = self.linkage
        if self._chooses and self.choose == "rotations":
            choice = by_rotations(matrix, linkage)
            return agglomerative(matrix, linkage, n_clusters=choice.clusters), (
                choice.score,
                choice.chance,
            )
        return agglomerative(
            matrix, linkage, threshold=self.threshold, n_clusters=self.n_clusters
        ), ()

    # -- newcomers -------------------------------------------------------------------------------------

    def _placed(self, state: PacflState, clients: Sequence[ClientId]) -> PacflState:
        """One after another: the nearest cluster takes the newcomer in, or, when that is beyond the cut, its model
        becomes the start of a new one."""
        for client in clients:
            members = tuple(state.assign)
            apart = self._between(state, (client,), members)[0]
            degrees = dict(zip(members, apart.tolist(), strict=True))
            near = [self._to_cluster(state, degrees, k) for k in range(len(state.models))]
            best = near.index(min(near))
            if self._beyond(state, near[best]):
                state = replace(state, models=(*state.models, state.models[best]))
                best = len(state.models) - 1
            state = joined(state, {client: best})
        return state

    def _to_cluster(self, state: PacflState, degrees: Mapping[ClientId, float], k: int) -> float:
        """The linkage distance of a newcomer, so many `degrees` from each client, to cluster k; infinity if it is empty."""
        members = [client for client, cluster in state.assign.items() if cluster == k]
        if not members:
            return math.inf
        apart = [degrees[client] for client in members]
        if self.linkage != "weighted":
            return float(SETS[self.linkage](apart))
        weights = [state.weights.get(client, 0.0) for client in members]
        if sum(weights) == 0:  # a cluster that newcomers founded
            weights = [1.0] * len(members)
        return float(np.average(apart, weights=weights))

    def _beyond(self, state: PacflState, degrees: float) -> bool:
        if self.threshold is not None:
            return degrees > self.threshold
        high = state.cut[1]
        return self.n_clusters is None and high is not None and degrees >= high

    def _again(self, state: PacflState) -> PacflState:
        """Cluster everybody; a group keeps the number of the cluster that it shares most clients with."""
        clients = tuple(state.signatures)
        matrix = self._angles(state, clients)
        tree, evidence = self._tree(matrix)
        groups = tree.labels.tolist()
        shared = Counter(
            (state.assign[c], g) for c, g in zip(clients, groups, strict=True) if c in state.assign
        )
        origin: dict[int, int] = {}  # group: the old cluster that most of it comes from
        numbers: dict[int, int] = {}
        for (old, group), _ in sorted(shared.items(), key=lambda one: (-one[1], one[0])):
            origin.setdefault(group, old)
            if group not in numbers and old not in numbers.values():
                numbers[group] = old
        models = list(state.models)
        for group in range(tree.clusters):
            if group not in numbers:
                numbers[group] = len(models)
                like = (
                    origin[group]
                    if group in origin
                    else _neighbour(matrix, groups, group, state, clients)
                )
                models.append(state.models[like])
        placed = {client: numbers[group] for client, group in zip(clients, groups, strict=True)}
        return replace(
            joined(state, placed),
            models=tuple(models),
            heights=tree.heights,
            cut=(tree.low, tree.high),
            weights=dict(zip(clients, tree.weights.tolist(), strict=True)),
            evidence=evidence,
        )


def signature(
    inputs: npt.NDArray[Any], targets: npt.NDArray[Any], p: int
) -> tuple[Vector, list[int]]:
    """The first p left singular vectors (count, values) of each class's samples as columns, and each vector's class.

    Classes ascend, vectors come by falling singular value, directions below rounding are left out; the largest entry
    of a vector is positive. The samples of a regression count as one class.
    """
    if targets.dtype.kind == "f":
        targets = np.zeros(len(targets), np.int64)
    vectors: list[Vector] = []
    labels: list[int] = []
    for label in np.unique(targets).tolist():
        own = np.asarray(inputs[targets == label], np.float64)
        _, values, rows = np.linalg.svd(own, full_matrices=False)
        least = values.max(initial=0.0) * max(own.shape) * np.finfo(np.float32).eps
        for vector in rows[:p][values[:p] > least]:
            vectors.append((vector * np.sign(vector[np.abs(vector).argmax()])).astype(np.float32))
            labels.append(label)
    return np.stack(vectors) if vectors else np.empty((0, inputs.shape[1]), np.float32), labels


def _told(report: Report) -> list[int]:
    """The class of each vector of a signature; empty where the report holds none that makes sense."""
    labels = report.numbers.get("labels")
    vector = report.vectors.get("signature")
    if (
        vector is None
        or not isinstance(labels, list)
        or not all(isinstance(label, int) for label in labels)
    ):
        return []
    return labels if labels and vector.size and vector.size % len(labels) == 0 else []


def _places(labels: Sequence[int]) -> dict[tuple[int, int], int]:
    """Index of each (class, order within the class)."""
    seen: Counter[int] = Counter()
    places = {}
    for i, label in enumerate(labels):
        places[label, seen[label]] = i
        seen[label] += 1
    return places


def _angle(cosine: Any) -> float:
    return math.degrees(math.acos(min(max(float(cosine), -1.0), 1.0)))


def _neighbour(
    matrix: Matrix,
    groups: Sequence[int],
    group: int,
    state: PacflState,
    clients: Sequence[ClientId],
) -> int:
    """The cluster of the placed client that lies nearest to a group of newcomers."""
    own = [i for i, g in enumerate(groups) if g == group]
    placed = [j for j, client in enumerate(clients) if client in state.assign]
    nearest = placed[int(matrix[np.ix_(own, placed)].min(axis=0).argmin())]
    return state.assign[clients[nearest]]
