"""PACFL: cluster once by the angles between the clients' data, then FedAvg per cluster.

Paper. Vahidian et al. 2023, Efficient Distribution Similarity Identification in Clustered Federated
Learning via Principal Angles between Client Data Subspaces. The signature of a client holds, for
each of its classes, the first p left singular vectors U_p of the samples, in the scale of the files
and not centred. It is sent before any training.

Our deviations.
- `min_entry`, which the public code measures, takes the absolute value of the inner product,
  because a singular vector has no sign of its own.
- Linkage `weighted` is the code's "average", also for newcomers: each member of the first
  clustering counts by its path in the merge tree, and other newcomers do not count.
- Without a cut the tree has complete linkage and is cut by a comparison with rotations of the same
  clients (numerics/choose_k.py), which can also find that there are no clusters.

Singular vectors of images look like class means. Do not use PACFL if the server must not see them.
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
    ENTRY,
    LARGEST,
    SIGNATURE,
    TRAIN,
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
    trained_report,
)
from covey.shared.strategies.bases.hard import (
    START,
    Clustered,
    HardClustered,
    cut_defaults,
    folded,
    joined,
    useless,
)
from covey.shared.strategies.bases.soft import merged

# linkage -> distance of a newcomer to a cluster, from its distances to the members
TO_CLUSTER: dict[str, Any] = {"single": np.min, "complete": np.max, "average": np.mean}


@dataclass(frozen=True)
class PacflState(Clustered):
    """Besides the clusters, what they were made from."""

    signatures: dict[ClientId, Vector] = field(default_factory=dict)  # (vectors * sample values,)
    labels: dict[ClientId, tuple[int, ...]] = field(default_factory=dict)  # class of each vector
    heights: tuple[float, ...] = ()  # of the merges, in degrees
    cut: tuple[float | None, float | None] = (None, None)  # `low` and `high` of the Agglomeration
    # shares of the clustered clients in the distances of their cluster (linkage: weighted)
    weights: dict[ClientId, float] = field(default_factory=dict)
    evidence: tuple[float, ...] = ()  # score and chance, where rotations chose the cut


class Pacfl(HardClustered[PacflState]):
    """Clusters for the price of a few vectors per class, before any model is sent."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    signature_phases: ClassVar[tuple[str, ...]] = (SIGNATURE, ENTRY)
    summary: ClassVar[str] = (
        "cluster once by angles between data subspaces, then one FedAvg per cluster"
    )
    source: ClassVar[str] = "Vahidian et al. 2023"

    name: Literal["pacfl"] = "pacfl"
    p: int = Field(
        3,
        ge=1,
        description="The number of singular vectors per class, or as many as the class has.",
    )
    measure: Literal["min_entry", "principal", "trace"] = Field(
        "min_entry",
        description="The angle between two clients in degrees. min_entry: the least angle of any "
        "two vectors. principal: the smallest principal angle. trace: the sum over the vectors of "
        "the same class and order, with 90 where one client has none.",
    )
    signed: bool = Field(
        False,
        description="Use measure: min_entry as the public code does, without the absolute value.",
    )
    threshold: float | None = Field(
        None,
        alias="beta",
        allow_inf_nan=False,
        description="Merge clusters up to this angle in degrees; 180: one cluster.",
    )
    n_clusters: int | None = Field(
        None,
        ge=1,
        description="Cut the merge tree into this many clusters. Without n_clusters and beta see "
        "choose.",
    )
    choose: Literal["rotations", "gap"] = Field(
        "rotations",
        description="How the cut is chosen if none is given. rotations: by the gap statistic "
        "against rotations, which can find one cluster. gap: at the largest relative gap.",
    )
    linkage: Literal["weighted", "average", "single", "complete"] = Field(
        "complete",
        description="The distance of two clusters, as scipy names it. The default is weighted "
        "unless rotations choose the cut.",
    )
    newcomers: Literal["nearest", "recluster"] = Field(
        "nearest",
        description="What happens to newcomers. nearest: they join the nearest cluster, or found a "
        "new one. recluster: everybody is clustered again.",
    )
    first_quorum: float = Field(
        0.5, ge=0, le=1, description="The share of agents that must report before clustering."
    )
    most_values: int = Field(
        1 << 22, ge=1, description="The coordinator refuses signatures with more values."
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
            SIGNATURE,
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
        return {SIGNATURE: -self.most_values}

    def entry_order(self, state: PacflState) -> Order:
        return Order()

    def order(self, state: PacflState, phase: Phase, client: ClientId) -> Order:
        if phase.name == TRAIN and client not in state.assign:
            # its signature is still missing: this training helps nobody but the client
            return Order(models=(START,))
        return super().order(state, phase, client)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == TRAIN:
            return trained_report(local.train(job.models[0]), local), client_state
        vectors, labels = signature(local.inputs(), local.targets("train"), self.p)
        report = Report({SIGNATURE: vectors.ravel()}, local.examples, {"labels": labels})
        return report, client_state

    def form_clusters(
        self, state: PacflState, reports: Reports, average: Average = MEAN
    ) -> PacflState:
        state, clients = self._with_signatures(state, reports)
        if not clients:
            return state
        tree, evidence = self._tree(self._angles(state, clients))
        state = replace(
            state,
            models=(state.start,) * tree.clusters,
            assign=dict(zip(clients, tree.labels.tolist(), strict=True)),
        )
        return _with_tree(state, clients, tree, evidence)

    def assign_newcomers(self, state: PacflState, reports: Reports) -> PacflState:
        state, clients = self._with_signatures(state, reports)
        if not clients:
            return state
        if self.newcomers == "recluster":
            return self._reclustered(state)
        return self._placed(state, clients)

    def aggregate(self, state: PacflState, reports: Reports, average: Average = MEAN) -> PacflState:
        return replace(state, models=folded(state, reports, average))

    def private_routes(self) -> Routes:
        return "assigned"

    def check_local_privacy(self) -> None:
        raise ValueError(
            "pacfl's signatures are made from the data itself and not by training: "
            "DP-SGD cannot cover them"
        )

    def framed(self, job: Job, report: Report) -> Report:
        """p vectors for every class of the task, zeros where the agent has none.

        Labels and counts then say nothing of the agent's data.
        """
        classes = job.layout.outputs
        own_labels: list[int] = report.numbers["labels"]
        vectors = report.vectors[SIGNATURE].reshape(len(own_labels), -1)
        frame = np.zeros((classes * self.p, vectors.shape[1]), np.float32)
        for vector, (label, order) in zip(vectors, _places(own_labels), strict=True):
            frame[label * self.p + order] = vector
        labels: list[int] = []
        for label in range(classes):
            labels += [label] * self.p
        return replace(report, vectors={SIGNATURE: frame.ravel()}, numbers={"labels": labels})

    def signature_base(self, job: Job, signature: Vector) -> Vector:
        return np.zeros_like(signature)

    def proximity(self, state: PacflState) -> Proximity | None:
        clients = tuple(state.signatures)
        if not clients:
            return None
        cut = cut_between(state.cut, state.heights, len(clients))
        angles = self._angles(state, clients)
        return Proximity(clients, angles, self.linkage, "degrees", cut)

    def notes(self, state: PacflState) -> dict[str, Any]:
        if not state.models:
            return {}
        facts = super().notes(state)
        low, high = state.cut
        facts["beta_from"] = low
        facts["beta_below"] = high
        facts["merge_heights"] = list(state.heights)
        if state.evidence:
            score, chance = state.evidence
            facts["gap_statistic"] = score
            facts["gap_statistic_by_chance"] = chance
        facts.update(useless(state, chosen=self._chooses))
        return facts

    # -- signatures and angles ---------------------------------------------------------------------

    def _with_signatures(
        self, state: PacflState, reports: Reports
    ) -> tuple[PacflState, tuple[ClientId, ...]]:
        """The state with those reported signatures that can be compared, and their clients.

        A sample must have as many values as those of the known signatures, or else of most.
        """
        labels: dict[ClientId, tuple[int, ...]] = {}
        vectors: dict[ClientId, Vector] = {}
        for client, report in reports:
            own = _labels(report)
            if own:
                labels[client] = tuple(own)
                vectors[client] = report.vectors[SIGNATURE]
        all_labels = {**labels, **state.labels}
        sample_sizes: Counter[int] = Counter()
        for client, vector in (state.signatures or vectors).items():
            sample_sizes[vector.size // len(all_labels[client])] += 1
        usual = sample_sizes.most_common(1)[0][0] if sample_sizes else 0
        fit = tuple(c for c in vectors if vectors[c].size == usual * len(labels[c]))
        state = replace(
            state,
            signatures=merged(state.signatures, {client: vectors[client] for client in fit}),
            labels=merged(state.labels, {client: labels[client] for client in fit}),
        )
        return state, fit

    def _angles(self, state: PacflState, rows: Sequence[ClientId]) -> Matrix:
        """The proximity matrix A (n, n): the angles between clients, in degrees."""
        return self._between(state, rows, rows)

    def _between(
        self, state: PacflState, rows: Sequence[ClientId], columns: Sequence[ClientId]
    ) -> Matrix:
        """The angles (rows, columns) between clients, in degrees.

        The same sequence twice gives a symmetric matrix with a zero diagonal.
        """
        clients = dict.fromkeys([*rows, *columns])
        bases = {client: self._basis(state, client) for client in clients}
        table = np.zeros((len(rows), len(columns)))
        is_symmetric = rows is columns
        for i, one in enumerate(rows):
            others = columns[:i] if is_symmetric else columns
            for j, other in enumerate(others):
                cosines = bases[one].T @ bases[other]
                table[i, j] = self._degrees(cosines, state.labels[one], state.labels[other])
        if is_symmetric:
            return table + table.T
        return table

    def _basis(self, state: PacflState, client: ClientId) -> Matrix:
        """A client's singular vectors as columns of length 1, or an orthonormal basis of them."""
        vectors = len(state.labels[client])
        values = np.asarray(state.signatures[client], np.float64)
        columns = values.reshape(vectors, -1).T
        if self.measure == "principal":
            return orthonormal(columns)
        # in float32 rounding alone would make hundredths of a degree
        norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
        unit: Matrix = columns / norms
        return unit

    def _degrees(self, cosines: Matrix, own: tuple[int, ...], theirs: tuple[int, ...]) -> float:
        """The angle between two clients.

        Args:
            cosines: inner products of the bases' columns.
            own: the class of each of one client's vectors.
            theirs: the same of the other client.
        """
        if self.measure == "principal":
            singular_values = np.linalg.svd(cosines, compute_uv=False)
            return _angle(singular_values.max(initial=0.0))
        if self.measure == "min_entry":
            entries = cosines if self.signed else np.abs(cosines)
            return _angle(np.max(entries))
        rows = _places(own)
        columns = _places(theirs)
        common = [(rows[place], columns[place]) for place in rows if place in columns]
        either = rows.keys() | columns.keys()
        alone = len(either) - len(common)
        angles = [_angle(abs(cosines[i, j])) for i, j in common]
        return math.fsum(angles) + 90.0 * alone

    @property
    def _chooses(self) -> bool:
        """Does the method choose the cut?"""
        return self.threshold is None and self.n_clusters is None

    def _tree(self, matrix: Matrix) -> tuple[Agglomeration, tuple[float, ...]]:
        """The cut, and score and chance where rotations chose it."""
        linkage: Linkage = self.linkage
        if self._chooses and self.choose == "rotations":
            choice = by_rotations(matrix, linkage)
            tree = agglomerative(matrix, linkage, n_clusters=choice.clusters)
            return tree, (choice.score, choice.chance)
        tree = agglomerative(matrix, linkage, threshold=self.threshold, n_clusters=self.n_clusters)
        return tree, ()

    # -- newcomers ---------------------------------------------------------------------------------

    def _placed(self, state: PacflState, clients: Sequence[ClientId]) -> PacflState:
        """Each newcomer in turn joins the nearest cluster.

        If that is beyond the cut, the cluster's model becomes the start of a new one.
        """
        for client in clients:
            members = tuple(state.assign)
            apart = self._between(state, (client,), members)[0]
            degrees = dict(zip(members, apart.tolist(), strict=True))
            distances = [self._to_cluster(state, degrees, k) for k in range(len(state.models))]
            nearest = distances.index(min(distances))
            if self._is_beyond_cut(state, distances[nearest]):
                new = len(state.models)
                state = replace(state, models=(*state.models, state.models[nearest]))
                nearest = new
            state = joined(state, {client: nearest})
        return state

    def _to_cluster(self, state: PacflState, degrees: Mapping[ClientId, float], k: int) -> float:
        """The linkage distance of a newcomer to cluster k; infinity if it is empty.

        Args:
            state: the clusters.
            degrees: the angle between the newcomer and each member of any cluster.
            k: the cluster.
        """
        members = [client for client, cluster in state.assign.items() if cluster == k]
        if not members:
            return math.inf
        apart = [degrees[client] for client in members]
        if self.linkage != "weighted":
            return float(TO_CLUSTER[self.linkage](apart))
        weights = [state.weights.get(client, 0.0) for client in members]
        if sum(weights) == 0:  # newcomers founded the cluster
            weights = [1.0] * len(members)
        return float(np.average(apart, weights=weights))

    def _is_beyond_cut(self, state: PacflState, degrees: float) -> bool:
        """Would a merge at this distance be above the cut?"""
        if self.threshold is not None:
            return degrees > self.threshold
        _, high = state.cut
        if self.n_clusters is not None or high is None:
            return False
        return degrees >= high

    def _reclustered(self, state: PacflState) -> PacflState:
        """Cluster everybody again.

        A group keeps the number of the cluster with which it shares most clients.
        """
        clients = tuple(state.signatures)
        matrix = self._angles(state, clients)
        tree, evidence = self._tree(matrix)
        groups = tree.labels.tolist()
        shared: Counter[tuple[int, int]] = Counter()  # members by (old cluster, group)
        for client, group in zip(clients, groups, strict=True):
            if client in state.assign:
                shared[state.assign[client], group] += 1

        def largest_first(pair: tuple[int, int]) -> tuple[int, tuple[int, int]]:
            return -shared[pair], pair

        origins: dict[int, int] = {}  # of each group: the cluster that most of it comes from
        numbers: dict[int, int] = {}  # of each group: the cluster that it becomes
        for old, group in sorted(shared, key=largest_first):
            origins.setdefault(group, old)
            if group not in numbers and old not in numbers.values():
                numbers[group] = old
        models = list(state.models)
        for group in range(tree.clusters):
            if group in numbers:
                continue
            if group in origins:
                origin = origins[group]
            else:
                origin = _neighbour(matrix, groups, group, state, clients)
            numbers[group] = len(models)
            models.append(state.models[origin])
        placed = {client: numbers[group] for client, group in zip(clients, groups, strict=True)}
        state = replace(joined(state, placed), models=tuple(models))
        return _with_tree(state, clients, tree, evidence)


def _with_tree(
    state: PacflState,
    clients: Sequence[ClientId],
    tree: Agglomeration,
    evidence: tuple[float, ...],
) -> PacflState:
    """The state with the facts of the cut that made its clusters."""
    return replace(
        state,
        heights=tree.heights,
        cut=(tree.low, tree.high),
        weights=dict(zip(clients, tree.weights.tolist(), strict=True)),
        evidence=evidence,
    )


def signature(
    inputs: npt.NDArray[Any], targets: npt.NDArray[Any], p: int
) -> tuple[Vector, list[int]]:
    """The first p left singular vectors of each class, with its samples as columns.

    Classes ascend, vectors come by falling singular value, and directions below the rounding error
    are left out. The largest entry of a vector is positive.

    Args:
        inputs: samples (n, values).
        targets: the class of each sample (n,). Those of a regression count as one class.
        p: vectors per class.

    Returns:
        The vectors (count, values), and the class of each.
    """
    if targets.dtype.kind == "f":
        targets = np.zeros(len(targets), np.int64)
    vectors: list[Vector] = []
    labels: list[int] = []
    for label in np.unique(targets).tolist():
        own = np.asarray(inputs[targets == label], np.float64)
        _, values, rows = np.linalg.svd(own, full_matrices=False)
        largest = values.max(initial=0.0)
        least = largest * max(own.shape) * np.finfo(np.float32).eps
        significant = values[:p] > least
        for vector in rows[:p][significant]:
            sign = np.sign(vector[np.abs(vector).argmax()])
            vectors.append((vector * sign).astype(np.float32))
            labels.append(label)
    if not vectors:
        return np.empty((0, inputs.shape[1]), np.float32), labels
    return np.stack(vectors), labels


def _labels(report: Report) -> list[int]:
    """The class of each vector of a signature; empty where the report has no valid signature."""
    labels = report.numbers.get("labels")
    vector = report.vectors.get(SIGNATURE)
    if vector is None or not vector.size or not isinstance(labels, list) or not labels:
        return []
    if not all(isinstance(label, int) for label in labels) or vector.size % len(labels):
        return []
    return labels


def _places(labels: Sequence[int]) -> dict[tuple[int, int], int]:
    """The index of each vector by (class, order within the class)."""
    seen: Counter[int] = Counter()
    places: dict[tuple[int, int], int] = {}
    for i, label in enumerate(labels):
        places[label, seen[label]] = i
        seen[label] += 1
    return places


def _angle(cosine: Any) -> float:
    """The angle in degrees; rounding can make a cosine exceed 1."""
    clipped = min(max(float(cosine), -1.0), 1.0)
    return math.degrees(math.acos(clipped))


def _neighbour(
    matrix: Matrix,
    groups: Sequence[int],
    group: int,
    state: PacflState,
    clients: Sequence[ClientId],
) -> int:
    """The cluster of the member that is nearest to a group of newcomers."""
    newcomers = [i for i, other in enumerate(groups) if other == group]
    members = [j for j, client in enumerate(clients) if client in state.assign]
    apart = matrix[np.ix_(newcomers, members)].min(axis=0)
    nearest = members[int(apart.argmin())]
    return state.assign[clients[nearest]]
