"""CFL, also FedCluster: FedAvg that splits a cluster in two once its members disagree.

Paper. Sattler, Müller, Samek 2019, Clustered Federated Learning: Model-Agnostic Distributed
Multi-Task Optimization under Privacy Constraints, algorithms 1 to 3, with the exact bipartition.

Our deviations.
- Participation. The paper needs the update of every member in the same round. With partial
  participation the norms are computed over those who report. If they call for a split, all members
  are asked to take part in the next round; that round, judged by the same norms, is what splits. An
  update of an earlier round is never used. A member that misses the round walks down the tree as a
  newcomer does, from the split on.
- Trigger. The two thresholds grow with the model, the rate and the epochs, and no pair of them
  serves every fleet. By default (`trigger: silhouette`) tests on cards, which agents send before
  the first round, decide whether there are clusters, and in the first round of all members
  silhouettes of the directions of their updates decide how many (bases/cut.py): all splits are made
  at once, down the merge tree. `trigger: rotations` splits a cluster in two if these directions
  fall into clusters beyond chance (numerics/choose_k.py) in three rounds in a row.
  `trigger: norms` is the paper's.
- Linkage. `linkage: complete` is what the authors' code does.
- Size. No split makes a cluster of fewer agents than `min_group`, which is 1 by the paper's own
  triggers. Evidence of groups (silhouette, rotations) leads to the next split of the merge tree
  whose sides are large enough; a threshold does not, and the cluster stays whole.
- `trigger: rounds` with gamma 0.13, linkage average and the last kernel is the variant of Long et
  al. 2023.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from covey.shared.numerics.averages import Average
from covey.shared.numerics.clustering import (
    Labels,
    Linkage,
    Matrix,
    across,
    agglomerative,
    bipartition_min_cross,
    by_first_member,
    gram,
)
from covey.shared.numerics.vectors import Vector, combine, cosine, mean
from covey.shared.strategies.base import (
    ENTRY,
    MODEL,
    SIGNATURE,
    ClientId,
    Facts,
    Models,
    Order,
    Phase,
    Reports,
    Setup,
    Shown,
    Sums,
    View,
    without,
)
from covey.shared.strategies.bases.cut import (
    CARD_ASKED,
    BehindGate,
    Cut,
    MinGroup,
    Tested,
    asked,
    asking,
    found,
    shift_facts,
    with_card,
    with_tests,
)
from covey.shared.strategies.bases.hard import (
    Features,
    ManyModels,
    by_membership,
    feature_span,
    invited,
    joined,
    reports_of,
    sizes,
    unanswered,
    unassigned,
)
from covey.shared.strategies.bases.single import averaged
from covey.shared.strategies.client_half import ClientState, Job, Local, Report, trained_report

FULL_QUORUM = 0.5  # of a cluster's invited members must report before it is split
RETRY = 10  # with partial participation, rounds from one attempt to split a cluster to the next
IN_A_ROW = 3  # rounds; they are not independent, so three are no cube of the chance of one
MIN_SIZE = 2  # members; only larger clusters are split
SPLIT = "split"  # key of the model that was divided; the number of the split follows

# of the triggers that look for clusters, which need no warm-up
LINKAGES: dict[str, Linkage] = {"silhouette": "complete", "rotations": "ward"}
NEVER_SPLIT = {
    "silhouette": "the updates fall into no groups",
    "rotations": "the updates never fell into groups beyond chance",
    "norms": "the norms never passed both eps_1 and eps_2 after the warm-up "
    "(see norms in the record)",
    "rounds": "no split was tried, or each was refused by gamma",
}


@dataclass(frozen=True)
class CflState(Tested):
    """Besides the clusters, the tree of splits, in the order in which they were made.

    Split s divides cluster `divided[s]`. One part keeps the cluster's number, the other becomes
    cluster `parts[s]`.
    """

    span: tuple[int, int] = (0, 0)  # start and stop of the compared values in a model
    parameters: int = 0  # P
    rounds: int = 0  # rounds of the run
    everybody: bool = True  # does every round invite all agents?
    awaits_cards: bool = False  # they have not been asked yet
    judged: bool = False  # silhouettes have said how many clusters there are
    round: int = 0  # rounds that are complete

    divided: tuple[int, ...] = ()  # of each split: the cluster
    parts: tuple[int, ...] = ()  # of each split: the new cluster
    nodes: Models = ()  # of each split: the model (d,) that was divided
    stays: Models = ()  # of each split: the direction (span,) of the part that stayed
    goes: Models = ()  # of each split: the direction (span,) of the other part
    # the split at which a client without a cluster waits for its next step down; 0 if not named
    walks: dict[ClientId, int] = field(default_factory=dict)

    due: tuple[int, ...] = ()  # clusters whose members are all invited to the next round
    # by cluster: rounds in a row in which the updates fell into clusters beyond chance
    streak: dict[str, int] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)  # by cluster: round of the last attempt
    # by cluster: norm of the mean update and of the largest single one, in the last round
    norms: dict[str, tuple[float, float]] = field(default_factory=dict)
    # by cluster: similarity across the halves of those that were tried in the last round
    across: dict[str, float] = field(default_factory=dict)


class Cfl(BehindGate, ManyModels[CflState]):
    """Finds out by itself whether clusters are needed, and how many."""

    facts: ClassVar[Facts] = Facts(
        individual=True, phases=(ENTRY,), numbers={SIGNATURE: CARD_ASKED}
    )

    summary: ClassVar[str] = "FedAvg that splits a group in two where its members' updates disagree"
    source: ClassVar[str] = "Sattler et al. 2019"

    name: Literal["cfl"] = "cfl"
    trigger: Literal["silhouette", "rotations", "norms", "rounds"] = Field(
        "silhouette",
        description="When a split is tried. silhouette: once, in the first round of all members, "
        "into the groups with the best silhouette, which without a gate must be better than "
        "chance. rotations: the updates fall into groups beyond chance, three rounds in a row. norms: the mean update is small and a single one is large. "
        "rounds: after `every` rounds.",
    )
    eps_1: float = Field(0.4, ge=0, description="Split below this norm of the mean update.")
    eps_2: float = Field(
        1.6, ge=0, description="Split above this norm of the largest single update."
    )
    every: int = Field(
        30, ge=1, description="The rounds of FedAvg before a group is tried (trigger: rounds)."
    )
    warmup: int = Field(
        20,
        ge=0,
        description="The rounds before the first split; 0 with trigger: silhouette and rotations.",
    )
    min_group: MinGroup = None
    gamma: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Refuse a split unless sqrt((1 - cross similarity) / 2) is larger than this.",
    )
    linkage: Literal["ward", "single", "complete", "average"] = Field(
        "complete",
        description="How a group is divided. complete, which the authors' code has too, is the "
        "default of trigger: silhouette, ward that of trigger: rotations. single, the exact bipartition of the paper, is "
        "that of the others. average is FeSEM's.",
    )
    features: Features = Field(
        "full", description="The part of the updates whose directions are compared."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_trigger(cls, data: Any) -> Any:
        """The paper's thresholds go with its warm-up and its bipartition.

        Evidence beyond chance needs no warm-up.
        """
        if not isinstance(data, Mapping):
            return data
        has_threshold = not data.keys().isdisjoint({"eps_1", "eps_2"})
        trigger = data.get("trigger", "norms" if has_threshold else "silhouette")
        usual: dict[str, Any] = {"warmup": 20, "linkage": "single", "gate": "none", "min_group": 1}
        if trigger in LINKAGES:
            usual = {"warmup": 0, "linkage": LINKAGES[trigger], "min_group": None}
        return {**usual, **data, "trigger": trigger}

    @property
    def cut(self) -> Cut:
        """The cut by which updates are judged."""
        if self.trigger == "rotations":
            return Cut("ward", "rotations", self.gate, min_group=self.min_group)
        return Cut(self.linkage, "silhouette", self.gate, min_group=self.min_group)

    def continued(self, state: CflState, fresh: CflState) -> CflState:
        kept = super().continued(state, fresh)
        return replace(kept, rounds=state.round + fresh.rounds, everybody=fresh.everybody)

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
            asks=self.cut.asks(setup),
            awaits_cards=self.cut.asks(setup),
        )

    # -- phases and orders -------------------------------------------------------------------------

    def plan(self, state: CflState, view: View) -> Phase:
        if state.awaits_cards:
            # without cards the run goes its way
            return asking(Phase(SIGNATURE, "all", ends_round=False, may_be_empty=True))
        vectors = {MODEL: state.start.size}
        newcomers = unassigned(state, view)
        if state.divided and newcomers:
            return Phase(ENTRY, newcomers, vectors, ends_round=False, may_be_empty=True)
        invited_members: set[ClientId] = {
            client for client in view.present if state.assign.get(client) in state.due
        }
        if state.due and not state.divided:
            invited_members.update(newcomers)
        if invited_members:
            in_order = sorted(invited_members)
            return Phase(cohort=tuple(in_order), sizes=vectors)
        return Phase(sizes=vectors)

    def order(self, state: CflState, phase: Phase, client: ClientId) -> Order:
        if phase.name == SIGNATURE:
            return asked(Order())
        if client in state.assign:
            return self.member_order(state, client)
        if not state.divided:
            return Order(models=("0",), cluster=0)
        split = state.walks.get(client, 0)
        return Order(models=(f"{SPLIT}{split}",))

    def model(self, state: CflState, key: str) -> Vector:
        if key.startswith(SPLIT):
            return state.nodes[int(key.removeprefix(SPLIT))]
        return super().model(state, key)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == SIGNATURE:
            return with_card(Report({}, local.examples), job, local), client_state
        return trained_report(local.train(job.models[0]), local), client_state

    def fold(self, state: CflState, phase: Phase, sums: Sums, reports: Reports) -> CflState:
        if phase.name == SIGNATURE:
            state, _ = with_tests(state, reports)
            return replace(state, awaits_cards=False)
        reporters = [client for client, _ in reports]
        if not state.divided:
            state = joined(state, {client: 0 for client in reporters if client not in state.assign})
        members, walkers = by_membership(state.assign, reports)
        state = self._step_down(state, walkers)
        if phase.name == ENTRY:
            return replace(state, asked=unanswered(state.asked, phase, reporters))
        state = self._train_round(state, phase, members, sums.average)
        return replace(state, asked=(), round=state.round + 1)

    def shown(self, state: CflState) -> Shown:
        norms: dict[str, Any] = {}
        for k, (of_mean, largest) in state.norms.items():
            norms[k] = {"mean": of_mean, "largest": largest}
        facts = dict(super().shown(state).notes)
        facts["norms"] = norms
        if self.trigger == "rotations":
            facts["clustered_rounds"] = state.streak
        facts["cross_similarity"] = state.across
        facts["split"] = list(state.divided)
        facts["full_round_next"] = list(state.due)
        facts.update(shift_facts(state, self.gate))
        is_over = 0 < state.rounds <= state.round
        if is_over and not state.divided and len(state.assign) >= 2:
            why = NEVER_SPLIT[self.trigger]
            if self._is_closed(state):
                why = "no shift found between the data of the agents"
            facts["warning_clusters"] = f"no group was split, this run was FedAvg: {why}"
        return Shown(facts)

    # -- rounds ------------------------------------------------------------------------------------

    def _train_round(
        self, state: CflState, phase: Phase, reports: Reports, average: Average
    ) -> CflState:
        """Each cluster after a round: averaged, or divided in two."""
        before = state
        state = replace(state, due=(), norms={}, across={})
        for k in range(len(before.models)):
            was_due = k in before.due
            own: list[tuple[ClientId, Report]] = []
            for client, report in reports_of(before.assign, k, reports):
                if report.examples > 0:
                    own.append((client, report))
            if own:
                full = before.everybody or was_due
                state = self._train_cluster(state, k, own, phase, average, full=full)
            elif was_due:  # none of its members was present: invite them again
                state = replace(state, due=(*state.due, k))
        return state

    def _train_cluster(
        self,
        state: CflState,
        k: int,
        reports: Reports,
        phase: Phase,
        average: Average,
        *,
        full: bool,
    ) -> CflState:
        """One cluster after a round.

        Args:
            state: the state so far.
            k: the cluster.
            reports: of its members; at least one.
            phase: names those who were invited.
            average: makes models of reports.
            full: were all members of the cluster invited?
        """
        updates = [report.vectors[MODEL][: state.parameters] for _, report in reports]
        products = gram(updates, state.models[k])  # <dW_i, dW_j>
        state = self._with_norms(state, k, reports, products)
        if self.trigger == "rotations":
            state = self._with_evidence(state, k, reports, products)
        is_called_for = self._calls_for_split(state, k, full=full)
        if is_called_for and full and self._has_quorum(state, k, reports, phase):
            if self.trigger == "silhouette":
                return self._split_at_once(state, k, reports, products, average)
            labels, similarity = self._bipartition(state, k, reports, products)
            if labels.any():
                state = replace(state, across={**state.across, str(k): similarity})
                if _gap(similarity) > self.gamma or self.gamma == 0:
                    return self._split(
                        state, k, state.models[k], reports=reports, labels=labels, average=average
                    )
        model = self._average(reports, state.models[k], average)
        state = replace(state, models=_put(state.models, k, model))
        if full and not state.everybody:
            # refused: another attempt costs another round of all members
            return replace(state, tried={**state.tried, str(k): state.round + 1})
        if is_called_for and not full:
            return replace(state, due=(*state.due, k))
        return state

    def _average(self, reports: Reports, otherwise: Vector, average: Average) -> Vector:
        return averaged(reports, otherwise=otherwise, average=average)

    def _with_norms(self, state: CflState, k: int, reports: Reports, products: Matrix) -> CflState:
        """The state with ||mean of dW_i|| and max ||dW_i|| of a cluster."""
        weights = np.array([float(report.examples) for _, report in reports])
        shares = weights / weights.sum()
        square_of_mean = float(shares @ products @ shares)
        of_mean = math.sqrt(max(square_of_mean, 0.0))
        largest = math.sqrt(float(products.diagonal().max()))
        return replace(state, norms={**state.norms, str(k): (of_mean, largest)})

    def _with_evidence(
        self, state: CflState, k: int, reports: Reports, products: Matrix
    ) -> CflState:
        """The state with the rounds in a row in which the updates fell into clusters."""
        apart = self._distances(state, k, reports, products)
        choice = self.cut.choice(apart, state.chances, len(state.assign))
        streak = 0
        if choice is not None and choice.clusters > 1:
            streak = state.streak.get(str(k), 0) + 1
        return replace(state, streak={**state.streak, str(k): streak})

    # -- splits ------------------------------------------------------------------------------------

    def _is_closed(self, state: CflState) -> bool:
        """Whether the cards show no shift."""
        return bool(state.chances) and not found(state.chances)

    def _split_at_once(
        self, state: CflState, k: int, reports: Reports, products: Matrix, average: Average
    ) -> CflState:
        """Divide cluster k into as many clusters as there are, by splits from the tree's root down.

        All these splits have the present model as their node: a member that did not report takes
        one step for each split on its way.
        """
        apart = self._distances(state, k, reports, products)
        tree, _ = self.cut.tree(apart, state.chances)
        node = state.models[k]
        model = self._average(reports, node, average)
        state = replace(state, models=_put(state.models, k, model), judged=True)
        groups = tree.labels
        # of each group a member that has not joined it from a smaller one: the tree divides these
        firsts = [
            int(np.flatnonzero((groups == group) & (tree.weights > 0))[0])
            for group in range(tree.clusters)
        ]
        before = np.zeros(tree.clusters, np.int64)
        count = 1
        while before.max() + 1 < tree.clusters:
            count += 1
            after = by_first_member(
                agglomerative(apart, self.linkage, n_clusters=count).labels[firsts]
            )
            # one more cluster: the groups of exactly one have two labels now, or those of none
            pairs = sorted(set(zip(before.tolist(), after.tolist(), strict=True)))
            for divided in [
                old for old, times in Counter(p for p, _ in pairs).items() if times > 1
            ]:
                part = np.flatnonzero(before[groups] == divided)
                own = [reports[i] for i in part.tolist()]
                labels = after[groups[part]]
                halves = (labels != labels[0]).astype(np.int64)
                state = self._split(
                    state,
                    state.assign[own[0][0]],
                    node,
                    reports=own,
                    labels=halves,
                    average=average,
                )
            before = after
        return state

    def _calls_for_split(self, state: CflState, k: int, *, full: bool) -> bool:
        """Whether the trigger calls for a split of cluster k."""
        members = sizes(state)[k]
        if state.round < self.warmup or members <= MIN_SIZE or self._is_closed(state):
            return False
        key = str(k)
        last_attempt = state.tried.get(key, 0)
        since_attempt = state.round + 1 - last_attempt
        match self.trigger:
            case "silhouette":
                may_try = full or key not in state.tried or since_attempt > RETRY
                return may_try and not state.judged
            case "rotations":
                return state.streak[key] >= IN_A_ROW
            case "rounds":
                due_after = self.every
                if not full:  # the round of all members follows
                    due_after = self.every - 1
                return since_attempt > due_after
            case "norms":
                may_try = full or key not in state.tried or since_attempt > RETRY
                return may_try and self._passes_thresholds(state, k)

    def _passes_thresholds(self, state: CflState, k: int) -> bool:
        """||mean of dW_i|| < eps_1 and max ||dW_i|| > eps_2."""
        of_mean, largest = state.norms[str(k)]
        return of_mean < self.eps_1 and largest > self.eps_2

    def _has_quorum(self, state: CflState, k: int, reports: Reports, phase: Phase) -> bool:
        """Whether enough of the cluster's invited members reported. At least two must."""
        unknown = None if state.divided else 0  # before the first split all are in cluster 0
        members = 0
        for client in invited(phase):
            cluster = state.assign.get(client, unknown)
            if cluster == k:
                members += 1
        least = max(FULL_QUORUM * members, 2)
        return len(reports) >= least

    def _bipartition(
        self, state: CflState, k: int, reports: Reports, products: Matrix
    ) -> tuple[Labels, float]:
        """Labels 0 and 1 of the reporters (n,), and the largest similarity across; all 0 where a half would be too small."""
        similarity = self._similarity(state, k, reports, products)
        least = self.cut.least(len(state.assign))
        apart = self._distances(state, k, reports, products)
        if self.trigger == "rotations":
            labels = agglomerative(apart, self.linkage, n_clusters=2, least=least).labels
        elif self.linkage == "single":
            labels, _ = bipartition_min_cross(similarity)
        else:
            labels = agglomerative(apart, self.linkage, n_clusters=2).labels
        if np.bincount(labels).min() < least or not labels.any():
            return np.zeros_like(labels), 1.0
        return labels, across(similarity, labels)

    def _similarity(self, state: CflState, k: int, reports: Reports, products: Matrix) -> Matrix:
        """alpha_ij (n, n): the cosines of the reporters' updates."""
        if self.features != "full":
            span = slice(*state.span)
            updates = [report.vectors[MODEL][span] for _, report in reports]
            products = gram(updates, state.models[k][span])
        norms = np.sqrt(products.diagonal())
        lengths = np.outer(norms, norms) + 1e-12
        similarity: Matrix = products / lengths
        return similarity

    def _distances(self, state: CflState, k: int, reports: Reports, products: Matrix) -> Matrix:
        """Distances (n, n) between the directions of the updates.

        1 - cosine; for Ward and silhouettes the distance of two points on the unit sphere, which is
        Euclidean.
        """
        similarity = self._similarity(state, k, reports, products)
        symmetric = (similarity + similarity.T) / 2
        apart = np.maximum(1 - symmetric, 0.0)
        np.fill_diagonal(apart, 0.0)
        if self.linkage == "ward" or self.trigger == "silhouette":
            apart = np.asarray(np.sqrt(2 * apart))
        return apart

    def _split(
        self,
        state: CflState,
        k: int,
        node: Vector,
        *,
        reports: Reports,
        labels: Labels,
        average: Average,
    ) -> CflState:
        """Divide cluster k: each half's average is a model of its own from this round on.

        A member that did not report is in no half: it walks down from this split later.

        Args:
            state: the state so far.
            k: the cluster.
            node: the model (d,) that its members had trained.
            reports: of its members.
            labels: the half of each (n,), 0 or 1.
            average: makes models of reports.
        """
        new = len(state.models)
        split = len(state.divided)
        staying: list[tuple[ClientId, Report]] = []
        going: list[tuple[ClientId, Report]] = []
        cluster_of: dict[ClientId, int] = {}
        for (client, report), label in zip(reports, labels, strict=True):
            if label == 0:
                staying.append((client, report))
                cluster_of[client] = k
            else:
                going.append((client, report))
                cluster_of[client] = new

        assign: dict[ClientId, int] = {}
        walks = dict(state.walks)
        for client, cluster in state.assign.items():
            if client in cluster_of:
                assign[client] = cluster_of[client]
            elif cluster == k:
                walks[client] = split
            else:
                assign[client] = cluster

        staying_model = self._average(staying, node, average)
        going_model = self._average(going, node, average)
        direction_of_staying = self._direction(state, node, staying)
        direction_of_going = self._direction(state, node, going)
        models = _put(state.models, k, staying_model)
        present_round = state.round + 1
        tried = {**state.tried, str(k): present_round, str(new): present_round}
        return replace(
            state,
            assign=dict(sorted(assign.items())),
            models=(*models, going_model),
            divided=(*state.divided, k),
            parts=(*state.parts, new),
            nodes=(*state.nodes, node),
            stays=(*state.stays, direction_of_staying),
            goes=(*state.goes, direction_of_going),
            walks=dict(sorted(walks.items())),
            streak={**state.streak, str(k): 0},
            tried=tried,
        )

    def _direction(self, state: CflState, node: Vector, reports: Reports) -> Vector:
        """The mean update (span,) of some reports, without weights."""
        span = slice(*state.span)
        models: list[tuple[Vector, float]] = []
        for _, report in reports:
            features = report.vectors[MODEL][span]
            models.append((features, 1.0))
        end = mean(models)
        start = node[span]
        return combine([(end, 1.0), (start, -1.0)])

    # -- newcomers ---------------------------------------------------------------------------------

    def _step_down(self, state: CflState, reports: Reports) -> CflState:
        """One step down the tree for each walker: to the part that moved more like it.

        Ties go to the part that kept the number.
        """
        walks = dict(state.walks)
        arrived: dict[ClientId, int] = {}
        for client, report in reports:
            split = walks.pop(client, 0)
            moved = self._direction(state, state.nodes[split], [(client, report)])
            like_staying = cosine(moved, state.stays[split])
            like_going = cosine(moved, state.goes[split])
            cluster = state.parts[split]
            if like_staying >= like_going:
                cluster = state.divided[split]
            below = _next_split(state, split, cluster)
            if below is None:
                arrived[client] = cluster
            else:
                walks[client] = below
        in_order = sorted(walks.items())
        state = replace(state, walks=dict(in_order))
        return joined(state, arrived)

    def forget(self, state: CflState, client: ClientId) -> CflState:
        return replace(super().forget(state, client), walks=without(state.walks, client))


def _next_split(state: CflState, split: int, cluster: int) -> int | None:
    """The first split of this cluster after `split`; None if it was not divided again."""
    for later in range(split + 1, len(state.divided)):
        if state.divided[later] == cluster:
            return later
    return None


def _gap(similarity: float) -> float:
    """sqrt((1 - alpha) / 2) of the largest similarity across the halves, as gamma bounds it."""
    square = (1 - similarity) / 2
    return math.sqrt(max(square, 0.0))


def _put(models: Models, k: int, model: Vector) -> Models:
    """The models with another one in place k."""
    changed = list(models)
    changed[k] = model
    return tuple(changed)
