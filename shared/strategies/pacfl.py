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
- Without a cut, tests on cards decide whether there are clusters, and silhouettes how many
  (bases/cut.py); the tree has complete linkage.

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
from covey.shared.numerics.clustering import Agglomeration, Linkage, Matrix, orthonormal
from covey.shared.numerics.figures import kind_of
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    LARGEST,
    SIGNATURE,
    TRAIN,
    ClientId,
    Clients,
    Expected,
    Facts,
    Order,
    Phase,
    PrivacyFacet,
    Reports,
    Setup,
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
from covey.shared.strategies.bases.hard import START, joined
from covey.shared.strategies.bases.soft import merged
from covey.shared.strategies.bases.vote import voted_on
from covey.shared.strategies.client_half import ClientState, Job, Local, Report, trained_report
from covey.shared.strategies.phase_names import TRIAL, VOTE
from covey.shared.written import FIRST

VectorLabels = tuple[int, ...]  # the class of each vector of a signature
Place = tuple[int, int]  # of a vector in a signature: its class, and its order within the class

MOST_VALUES = 1 << 22  # of a signature

# linkage -> distance of a newcomer to a cluster, from its distances to the members
TO_CLUSTER: dict[str, Any] = {"single": np.min, "complete": np.max, "average": np.mean}


@dataclass(frozen=True)
class PacflState(Grouped):
    """Besides the clusters, what they were made from."""

    signatures: dict[ClientId, Vector] = field(default_factory=dict)  # (vectors * sample values,)
    labels: dict[ClientId, VectorLabels] = field(default_factory=dict)  # class of each vector
    # shares of the clustered clients in the distances of their cluster (linkage: weighted)
    weights: dict[ClientId, float] = field(default_factory=dict)


class Pacfl(SignedOnce[PacflState]):
    """Clusters for the price of a few vectors per class, before any model is sent."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    facts: ClassVar[Facts] = replace(
        SignedOnce.facts, numbers=SignedOnce.facts.numbers_with({SIGNATURE: CARD_ASKED})
    )
    height = "beta"
    unit = "degrees"

    summary: ClassVar[str] = (
        "group once by angles between data subspaces, then one FedAvg per group"
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
    threshold: float | None = Field(
        None,
        alias="beta",
        allow_inf_nan=False,
        description="Merge groups up to this angle in degrees; 180: one group.",
    )
    n_clusters: int | None = Field(
        None,
        ge=1,
        json_schema_extra=FIRST,
        description="Cut the merge tree into this many groups. Without n_clusters and beta see "
        "choose.",
    )
    choose: Choose = Field(
        "silhouette",
        description="How the cut is chosen if none is given. silhouette: by the best silhouette, "
        "which without a gate must be better than chance. rotations: by the gap statistic against "
        "rotations, for agents with equal numbers of samples. gap: at the largest relative gap.",
    )
    linkage: Literal["weighted", "average", "single", "complete"] = Field(
        "complete",
        description="The distance of two groups, as scipy names it. The default is complete "
        "for silhouettes and rotations, and weighted otherwise.",
    )
    newcomers: Literal["nearest", "recluster"] = Field(
        "nearest",
        description="What happens to newcomers. nearest: they join the nearest group, or found a "
        "new one. recluster: all agents are clustered again.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_cut(cls, data: Any) -> Any:
        """`weighted` is the linkage of the public code."""
        cuts = ("n_clusters", "beta", "threshold")
        linkages: dict[str, Linkage] = {"silhouette": "complete", "rotations": "complete"}
        return cut_defaults(data, cuts, linkages, given="weighted")

    @model_validator(mode="after")
    def _one_cut(self) -> Self:
        check_cuts({"beta": self.threshold, "n_clusters": self.n_clusters}, self.choose, self.gate)
        return self

    def init(self, setup: Setup) -> PacflState:
        return PacflState(setup.starts[0], asks=self.cut.asks(setup), **self.before_votes(setup))

    @property
    def entry_numbers(self) -> Mapping[str, Expected]:
        return {"labels": Expected(-MOST_VALUES, most=LARGEST, whole=True)}

    def entry_sizes(self, state: PacflState) -> Mapping[str, int]:
        return {SIGNATURE: -MOST_VALUES}

    def entry_order(self, state: PacflState) -> Order:
        return Order()

    def order(self, state: PacflState, phase: Phase, client: ClientId) -> Order:
        if phase.name == TRAIN and client not in state.assign:
            # its signature is still missing: this training helps the client alone
            return Order(models=(START,), whole=True)
        return super().order(state, phase, client)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase in (TRAIN, TRIAL):
            return trained_report(local.train(job.models[0]), local), client_state
        if job.phase == VOTE:
            return voted_on(job, local, client_state), client_state
        vectors, labels = signature(local.inputs(), local.targets("train"), self.p)
        flat = vectors.ravel()
        report = Report({SIGNATURE: flat}, local.examples, {"labels": labels})
        return with_card(report, job, local), client_state

    def form_clusters(
        self, state: PacflState, reports: Reports, average: Average = MEAN
    ) -> PacflState:
        state, clients = self._with_signatures(state, reports)
        if not clients:
            return state
        tree, evidence = self.cut.tree(self._angles(state, clients), state.chances)
        models = (state.start,) * tree.clusters
        clusters = tree.labels.tolist()
        state = replace(state, models=models, assign=dict(zip(clients, clusters, strict=True)))
        return _with_weights(state, clients, tree, evidence)

    def assign_newcomers(self, state: PacflState, reports: Reports) -> PacflState:
        state, clients = self._with_signatures(state, reports)
        if not clients:
            return state
        if self.newcomers == "recluster":
            return self._reclustered(state)
        return self._placed(state, clients)

    @property
    def privacy(self) -> PrivacyFacet:
        if self.vote == "auto":
            return PrivacyFacet(refusal=VOTES_ARE_CLEAR)
        return PrivacyFacet(
            routes="assigned",
            signature_base=lambda job, signature: np.zeros_like(signature),
            framed=self._framed,
        )

    def _framed(self, job: Job, report: Report) -> Report:
        """p vectors for every class of the task, zeros where the agent has none.

        Labels and counts then say nothing of the agent's data.
        """
        classes = job.outputs
        own_labels: list[int] = report.numbers["labels"]
        flat_vectors = report.vectors[SIGNATURE]
        vectors = flat_vectors.reshape(len(own_labels), -1)
        _, values = vectors.shape
        frame = np.zeros(((classes * self.p), values), np.float32)
        for vector, (label, order) in zip(vectors, _places(own_labels), strict=True):
            row = label * self.p + order
            frame[row] = vector
        labels: list[int] = []
        for label in range(classes):
            labels += [label] * self.p
        flat = frame.ravel()
        return replace(report, vectors={SIGNATURE: flat}, numbers={"labels": labels})

    def compared(self, state: PacflState) -> tuple[Clients, Matrix] | None:
        clients = tuple(state.signatures)
        return (clients, self._angles(state, clients)) if clients else None

    # -- signatures and angles ---------------------------------------------------------------------

    def _with_signatures(self, state: PacflState, reports: Reports) -> tuple[PacflState, Clients]:
        """The state with those reported signatures that can be compared, and their clients.

        A sample must have as many values as those of the known signatures, or else of most.
        """
        labels: dict[ClientId, VectorLabels] = {}
        vectors: dict[ClientId, Vector] = {}
        for client, report in reports:
            own = _labels(report)
            if own:
                labels[client] = tuple(own)
                vectors[client] = report.vectors[SIGNATURE]
        if state.signatures:
            usual = _usual_sample_size(state.signatures, state.labels)
        else:
            usual = _usual_sample_size(vectors, labels)
        fitting_vectors: dict[ClientId, Vector] = {}
        fitting_labels: dict[ClientId, VectorLabels] = {}
        for client, vector in vectors.items():
            own_labels = labels[client]
            if vector.size == usual * len(own_labels):
                fitting_vectors[client] = vector
                fitting_labels[client] = own_labels
        state = replace(
            state,
            signatures=merged(state.signatures, fitting_vectors),
            labels=merged(state.labels, fitting_labels),
        )
        return state, tuple(fitting_vectors)

    def _angles(self, state: PacflState, rows: Sequence[ClientId]) -> Matrix:
        """The proximity matrix A (n, n): the angles between clients, in degrees."""
        return self._between(state, rows, rows)

    def _between(
        self, state: PacflState, rows: Sequence[ClientId], columns: Sequence[ClientId]
    ) -> Matrix:
        """The angles (rows, columns) between clients, in degrees.

        The same sequence twice gives a symmetric matrix with a zero diagonal.
        """
        bases = {client: self._basis(state, client) for client in dict.fromkeys([*rows, *columns])}
        table = np.zeros((len(rows), len(columns)))
        is_symmetric = rows is columns
        for i, one in enumerate(rows):
            own_labels = state.labels[one]
            transposed = bases[one].T
            others = columns
            if is_symmetric:
                others = columns[:i]
            for j, other in enumerate(others):
                their_labels = state.labels[other]
                cosines = transposed @ bases[other]
                table[i, j] = self._degrees(cosines, own_labels, their_labels)
        if is_symmetric:
            return table + table.T
        return table

    def _basis(self, state: PacflState, client: ClientId) -> Matrix:
        """A client's singular vectors as columns of length 1, or an orthonormal basis of them."""
        vectors = len(state.labels[client])
        columns = np.asarray(state.signatures[client], np.float64).reshape(vectors, -1).T
        if self.measure == "principal":
            return orthonormal(columns)
        # in float32 rounding alone would make hundredths of a degree
        lengths = np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
        unit: Matrix = columns / lengths
        return unit

    def _degrees(self, cosines: Matrix, own: VectorLabels, theirs: VectorLabels) -> float:
        """The angle between two clients.

        Args:
            cosines: inner products of the bases' columns.
            own: the class of each of one client's vectors.
            theirs: the same of the other client.
        """
        match self.measure:
            case "principal":
                singular_values = np.linalg.svd(cosines, compute_uv=False)
                largest = singular_values.max(initial=0.0)
                return _angle(largest)
            case "min_entry":
                return _angle(np.max(np.abs(cosines)))
            case "trace":
                return _trace(cosines, own, theirs)

    # -- newcomers ---------------------------------------------------------------------------------

    def _placed(self, state: PacflState, clients: Sequence[ClientId]) -> PacflState:
        """Each newcomer in turn joins the nearest cluster.

        If that is beyond the cut, the cluster's model becomes the start of a new one.
        """
        for client in clients:
            members = tuple(state.assign)
            [apart] = self._between(state, (client,), members)
            degrees = dict(zip(members, apart.tolist(), strict=True))
            clusters = len(state.models)
            distances = [self._to_cluster(state, degrees, k) for k in range(clusters)]
            least = min(distances)
            nearest = distances.index(least)
            if self._is_beyond_cut(state, least):
                copied = state.models[nearest]
                state = replace(state, models=(*state.models, copied))
                nearest = clusters  # the number of the new cluster
            state = joined(state, {client: nearest})
        return state

    def _to_cluster(self, state: PacflState, degrees: Mapping[ClientId, float], k: int) -> float:
        """The linkage distance of a newcomer to cluster k; infinity if no agent may join it.

        Args:
            state: the clusters.
            degrees: the angle between the newcomer and each member of any cluster.
            k: the cluster.
        """
        apart: list[float] = []
        weights: list[float] = []
        for client, cluster in state.assign.items():
            if cluster == k:
                weight = state.weights.get(client, 0.0)
                apart.append(degrees[client])
                weights.append(weight)
        if not apart:
            return math.inf
        if self.linkage != "weighted":
            rule = TO_CLUSTER[self.linkage]
            return float(rule(apart))
        if sum(weights) == 0:  # newcomers founded the cluster
            weights = [1.0] * len(apart)
        return float(np.average(apart, weights=weights))

    def _is_beyond_cut(self, state: PacflState, degrees: float) -> bool:
        """Whether a merge at this distance would be above the cut."""
        if self.threshold is not None:
            return degrees > self.threshold
        _, high = state.cut
        # where groups have a least size, a newcomer alone is none
        if self.n_clusters is not None or high is None or self.cut.least(len(state.assign)) > 1:
            return False
        return degrees >= high

    def _reclustered(self, state: PacflState) -> PacflState:
        """Cluster all agents again.

        A group keeps the number of the cluster with which it shares most clients.
        """
        clients = tuple(state.signatures)
        matrix = self._angles(state, clients)
        tree, evidence = self.cut.tree(matrix, state.chances)
        groups = tree.labels.tolist()
        origins: dict[int, int] = {}  # of each group: the cluster that most of it comes from
        numbers: dict[int, int] = {}  # of each group: the cluster that it becomes
        for old, group in _overlaps(state, clients, groups):
            origins.setdefault(group, old)
            is_taken = old in numbers.values()
            if group not in numbers and not is_taken:
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
        placed: dict[ClientId, int] = {}
        for client, group in zip(clients, groups, strict=True):
            placed[client] = numbers[group]
        state = joined(state, placed)
        state = replace(state, models=tuple(models))
        return _with_weights(state, clients, tree, evidence)

    def forget(self, state: PacflState, client: ClientId) -> PacflState:
        return replace(
            super().forget(state, client),
            signatures=without(state.signatures, client),
            labels=without(state.labels, client),
            weights=without(state.weights, client),
        )


def _trace(cosines: Matrix, own: VectorLabels, theirs: VectorLabels) -> float:
    """The sum of the angles between vectors of the same class and order.

    A vector without a counterpart counts 90 degrees. The arguments are those of `_degrees`.
    """
    rows = _places(own)
    columns = _places(theirs)
    either = rows.keys() | columns.keys()
    angles: list[float] = []
    for place, row in rows.items():
        if place in columns:
            cosine = abs(cosines[row, columns[place]])
            angles.append(_angle(cosine))
    alone = len(either) - len(angles)
    return math.fsum(angles) + 90.0 * alone


def _overlaps(
    state: PacflState, clients: Sequence[ClientId], groups: Sequence[int]
) -> list[tuple[int, int]]:
    """The pairs (old cluster, group) that have clients in common, those with most clients first."""
    shared: Counter[tuple[int, int]] = Counter()
    for client, group in zip(clients, groups, strict=True):
        if client in state.assign:
            old = state.assign[client]
            shared[old, group] += 1

    def largest_first(pair: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        return -shared[pair], pair

    return sorted(shared, key=largest_first)


def _usual_sample_size(
    signatures: Mapping[ClientId, Vector], labels: Mapping[ClientId, VectorLabels]
) -> int:
    """The number of values of a sample in most signatures, ties to the first; 0 without any."""
    sample_sizes: Counter[int] = Counter()
    for client, vector in signatures.items():
        vectors = len(labels[client])
        sample_sizes[vector.size // vectors] += 1
    for usual, _ in sample_sizes.most_common(1):
        return usual
    return 0


def _with_weights(
    state: PacflState, clients: Sequence[ClientId], tree: Agglomeration, evidence: tuple[float, ...]
) -> PacflState:
    """The state with the facts of the cut that made its clusters, and its clients' weights."""
    weights = dict(zip(clients, tree.weights.tolist(), strict=True))
    return with_tree(replace(state, weights=weights), tree, evidence)


def signature(
    inputs: npt.NDArray[Any], targets: npt.NDArray[Any], p: int
) -> tuple[Vector, list[int]]:
    """The first p left singular vectors of each class, with its samples as columns.

    Classes ascend, vectors come by falling singular value, and directions below the rounding error
    are left out. The largest entry of a vector is positive.

    Args:
        inputs: samples (n, values).
        targets: the class of each sample (n,). Others, such as those of a regression, count as one class.
        p: vectors per class.

    Returns:
        The vectors (count, values), and the class of each.
    """
    if kind_of(targets) != "classes":
        targets = np.zeros(len(targets), np.int64)
    rounding_error = np.finfo(np.float32).eps
    vectors: list[Vector] = []
    labels: list[int] = []
    for label in np.unique(targets).tolist():
        own = np.asarray(inputs[targets == label], np.float64)
        _, values, rows = np.linalg.svd(own, full_matrices=False)
        largest = values.max(initial=0.0)
        least = largest * max(own.shape) * rounding_error
        significant = values[:p] > least
        for vector in rows[:p][significant]:
            turned = vector * np.sign(vector[np.abs(vector).argmax()])
            vectors.append(turned.astype(np.float32))
            labels.append(label)
    if not vectors:
        _, values_of_sample = inputs.shape
        return np.empty((0, values_of_sample), np.float32), labels
    return np.stack(vectors), labels


def _labels(report: Report) -> list[int]:
    """The class of each vector of a signature; empty where the report has no valid signature."""
    labels = report.numbers.get("labels")
    vector = report.vectors.get(SIGNATURE)
    if not isinstance(labels, list) or not labels:
        return []
    if vector is None or not vector.size:
        return []
    for label in labels:
        if not isinstance(label, int):
            return []
    is_divisible = vector.size % len(labels) == 0
    if not is_divisible:
        return []
    return labels


def _places(labels: Sequence[int]) -> dict[Place, int]:
    """The index of each vector by (class, order within the class)."""
    seen: Counter[int] = Counter()
    places: dict[Place, int] = {}
    for i, label in enumerate(labels):
        order = seen[label]
        places[label, order] = i
        seen[label] += 1
    return places


def _angle(cosine: Any) -> float:
    """The angle in degrees; rounding can make a cosine exceed 1."""
    at_least = max(float(cosine), -1.0)
    return math.degrees(math.acos(min(at_least, 1.0)))


def _neighbour(
    matrix: Matrix,
    groups: Sequence[int],
    group: int,
    state: PacflState,
    clients: Sequence[ClientId],
) -> int:
    """The cluster of the member that is nearest to a group of newcomers."""
    newcomers: list[int] = []  # rows of the matrix
    members: list[int] = []  # columns of the matrix
    for i, client in enumerate(clients):
        if groups[i] == group:
            newcomers.append(i)
        if client in state.assign:
            members.append(i)
    between = matrix[np.ix_(newcomers, members)]
    apart = between.min(axis=0)
    place = int(apart.argmin())
    nearest = clients[members[place]]
    return state.assign[nearest]
