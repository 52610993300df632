"""One cut for methods that form clusters once: whether a fleet falls into groups, and into how many.

*Whether*: each agent sends a card with its signature (extras/cards), and at least one of
three tests on the cards must find a shift: the gate. *How many*: the cut of the merge tree with the
largest mean silhouette, in which no group is small (`least_of`): a few outliers around one loose group
have a large silhouette, and are no groups. A cut that the scenario gives needs neither, and no card is
sent for it.
Methods that form clusters again and again from models or losses have no tree: for them the cards
answer both questions (`Numbered`).

Fewer than four cards have no say, and where agents send none, because a scenario with privacy
allows none or `gate: none` is set, the rule that chooses the cut also decides whether there is one.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator

from covey.shared import extras
from covey.shared.numerics.choose_k import ChosenK, best_silhouette, by_rotations, by_silhouette
from covey.shared.numerics.clustering import (
    Agglomeration,
    Linkage,
    Matrix,
    agglomerative,
    cut_between,
)
from covey.shared.strategies.base import (
    ENTRY,
    HOLD_BACK,
    LARGEST,
    SIGNATURE,
    TRAIN,
    Buffering,
    ClientId,
    Expected,
    Facts,
    Order,
    Phase,
    Proximity,
    Reports,
    Sealed,
    Settings,
    Setup,
    Shown,
    Sums,
    View,
    without,
)
from covey.shared.strategies.bases.hard import Clustered, HardClustered, sizes
from covey.shared.strategies.bases.single import KEY
from covey.shared.strategies.bases.vote import (
    CLUSTERS,
    VOTE_NUMBERS,
    Ballot,
    Voting,
    after_round,
    before_votes,
    standing,
)
from covey.shared.strategies.client_half import GATE, Card, Job, Local, Report
from covey.shared.strategies.expected import A_COUNT, ASKED
from covey.shared.strategies.phase_names import CARD, TRIAL, VOTE
from covey.shared.strategies.server import Server
from covey.shared.written import FIRST

COUNTS = "counts"
SQUARES = "squares"
VOTES_ARE_CLEAR = "votes hold losses on samples that agents hold back, without noise (vote: auto)"
LEAST_CARDS = 4  # fewer have no say
# of a card: the longest ones, of 50 classes
BLOCKS = 4
PROJECTED = 32  # p, the values of a projected input
MOST_CLASSES = 50
CELLS = BLOCKS * MOST_CLASSES
CARD_SIZES = {CARD: -CELLS * PROJECTED}
CARD_NUMBERS = {COUNTS: Expected(-CELLS, whole=True)}
# with what the noise of distances is computed from
WHOLE_CARD = {**CARD_NUMBERS, SQUARES: Expected(-MOST_CLASSES, most=LARGEST)}
KINDS = ("labels", "style", "concept")  # of shifts
LEVEL = 0.01  # of a test on cards
CARD_ASKED = {CARD: A_COUNT}  # of an order, with the fewest samples of a class in it
WHOLE_CARD_ASKED = {**CARD_ASKED, SQUARES: ASKED}

INPUTS = "inputs"  # the two cuts of a fleet by its cards
LABELS = "labels"
CLEAR = 0.5  # mean silhouette of groups that are more than a way to divide agents that all differ

Choose = Literal["silhouette", "rotations", "gap"]
Gate = Annotated[
    Literal["cards", "none"],
    Field(
        description="The condition for more than one group, unless the cut is given. cards: each agent "
        "sends a summary of its data, and one of three tests must find that agents differ. none: "
        "no condition. Cards are not private: under a privacy section none are sent."
    ),
]
MinGroup = Annotated[
    int | None,
    Field(
        ge=1,
        description="The fewest agents of a group that the method finds; smaller ones join the nearest. null: three "
        "and a tenth of the fleet, and a third of fewer than nine agents. 1: single agents are groups too.",
    ),
]
SMALL_FLEET = 9  # agents; with fewer, a third of them is a group
LEAST_GROUP, LEAST_SHARE = 3, 10  # agents, and one in ten of the fleet
EVIDENCE = {"silhouette": "silhouette", "rotations": "gap_statistic"}  # its name in the notes
Chances = tuple[float, ...]  # of labels, style and concept; () where fewer than four cards came
Classes = tuple[tuple[int, int], ...]  # of each class: training samples, and agents that have some


def least_of(agents: int) -> int:
    """The fewest agents of a group in a fleet."""
    if agents < SMALL_FLEET:
        return max(math.ceil(agents / LEAST_GROUP), 1)
    return max(LEAST_GROUP, math.ceil(agents / LEAST_SHARE))


@dataclass(frozen=True)
class Cut:
    """How clusters are made from distances."""

    linkage: Linkage
    choose: Choose = "silhouette"
    gate: Literal["cards", "none"] = "cards"
    # at most one of these gives the cut
    n_clusters: int | None = None
    threshold: float | None = None
    quantile: float | None = None  # of all distances, in place of a threshold
    most: int | None = (
        None  # clusters by silhouettes behind the gate; None: `best_silhouette`'s own
    )
    min_group: int | None = (
        None  # the fewest agents of a cluster that is not given; None: `least_of`
    )

    @property
    def is_given(self) -> bool:
        """Whether the scenario gives the cut."""
        return any(cut is not None for cut in (self.n_clusters, self.threshold, self.quantile))

    @property
    def asks_cards(self) -> bool:
        """Whether cards decide if there are clusters."""
        return self.gate == "cards" and not self.is_given

    def asks(self, setup: Setup) -> bool:
        """Whether agents of a run are asked for cards: they are not private."""
        return self.asks_cards and not setup.private

    def least(self, agents: int) -> int:
        """The fewest agents of a cluster in a fleet; 1 where the scenario gives the cut."""
        return 1 if self.is_given else self.min_group or least_of(agents)

    def choice(self, matrix: Matrix, chances: Chances, agents: int | None = None) -> ChosenK | None:
        """The number of clusters; None where a threshold or the largest gap decides.

        Args:
            matrix: symmetric distances (n, n).
            chances: of the tests on cards.
            agents: of the fleet; None: n.
        """
        least = self.least(agents or len(matrix))
        if self.n_clusters is not None:
            return ChosenK(self.n_clusters, 0.0, 0.0)
        if self.is_given:
            return None
        if self.asks_cards and chances and not found(chances):
            return ChosenK(1, 0.0, 0.0)
        match self.choose:
            case "silhouette" if self.asks_cards and chances:
                return best_silhouette(matrix, self.linkage, most=self.most, least=least)
            case "silhouette":
                return by_silhouette(matrix, self.linkage, least=least)
            case "rotations":
                return by_rotations(matrix, self.linkage, least=least)
            case "gap":
                return None

    def tree(self, matrix: Matrix, chances: Chances) -> tuple[Agglomeration, tuple[float, ...]]:
        """The cut of the merge tree, and its evidence.

        The evidence is the score of the chosen number of clusters, then, where it had to exceed
        chance, the score by chance.
        """
        choice = self.choice(matrix, chances)
        threshold = self.threshold
        if self.quantile is not None and len(matrix) > 1:
            threshold = _quantile(matrix, self.quantile)
        clusters = None if choice is None else choice.clusters
        tree = agglomerative(
            matrix,
            self.linkage,
            threshold=threshold,
            n_clusters=clusters,
            least=self.least(len(matrix)),
        )
        if choice is None or self.is_given or choice.score == 0:
            return tree, ()
        if choice.chance == 0:
            return tree, (choice.score,)
        return tree, (choice.score, choice.chance)


OF_CARDS = Cut("average", most=8)


def _quantile(matrix: Matrix, quantile: float) -> float:
    """A quantile of the distances of all pairs."""
    pairs = np.triu_indices(len(matrix), 1)
    return float(np.quantile(matrix[pairs], quantile))


# -- cards --------------------------------------------------------------------------------------------


def asking(phase: Phase, *, squares: bool = False) -> Phase:
    """The phase with a card in each report; with its squares for distances."""
    numbers = WHOLE_CARD if squares else CARD_NUMBERS
    return replace(phase, sizes={**phase.sizes, **CARD_SIZES}, numbers={**phase.numbers, **numbers})


def asked(order: Order, *, squares: bool = False) -> Order:
    """The order with a request for the card. The coordinator names the fewest samples of a class in it."""
    numbers = {CARD: 1, SQUARES: 1} if squares else {CARD: 1}
    return replace(order, numbers={**order.numbers, **numbers})


def with_card(report: Report, job: Job, local: Local) -> Report:
    """The client's report, with its card if the order asks for it, and with the card's squares if it asks for them."""
    if CARD not in job.numbers:
        return report
    card = local.card(job.seed, job.client, job.numbers[CARD])
    means, counts = card.packed()
    numbers = {**report.numbers, COUNTS: counts}
    if SQUARES in job.numbers:
        numbers[SQUARES] = card.squares.tolist()
    return replace(report, vectors={**report.vectors, CARD: means}, numbers=numbers)


def found(chances: Chances) -> tuple[str, ...]:
    """The kinds of shift whose test fires."""
    return tuple(kind for kind, chance in zip(KINDS, chances, strict=False) if chance < LEVEL)


class BehindGate(BaseModel):
    """The option of a method for which cards decide whether there are groups."""

    gate: Gate = "cards"

    @model_validator(mode="before")
    @classmethod
    def _none_without_cards(cls, data: Any) -> Any:
        """Without the extra no cards are sent; a gate that is asked for is refused."""
        # a device asks with each order: no look at the disk where no cards are asked for
        if not isinstance(data, Mapping) or data.get("gate") == "none" or extras.has("cards"):
            return data
        if data.get("gate") == "cards":
            raise extras.missing("cards", GATE)
        return {**data, "gate": "none"}


@dataclass(frozen=True)
class Tested(Clustered):
    """The state of a method behind the gate."""

    asks: bool = False  # agents are asked for cards
    chances: Chances = ()  # of the tests on the cards
    classes: Classes = ()  # from the cards


T = TypeVar("T", bound=Tested)


def with_tests(state: T, reports: Reports) -> tuple[T, Collection[Card]]:
    """The state with what the cards in these reports show, and the cards that were tested."""
    cards, chances, classes = extras.part("cards", "fleet_cards", GATE).tested_in(reports)
    return replace(state, chances=chances, classes=classes), cards.values()


def shift_facts(state: Tested, gate: str) -> dict[str, Any]:
    """What the cards have shown, for the record. `gate` is the scenario's: under privacy no card is asked for, whatever it is."""
    if not state.asks:
        if gate == "cards":
            return {"shift": "not tested: cards are not private, so under privacy none are sent"}
        return {}
    if not state.chances:
        return {"shift": f"not tested: fewer than {LEAST_CARDS} agents sent a card"}
    kinds = found(state.chances)
    text = f"agents differ in {' and '.join(kinds)}" if kinds else "no shift found: one group"
    return {
        "shift": text,
        "shift_chances": dict(zip(KINDS, state.chances, strict=True)),
        "classes": [list(one) for one in state.classes],
    }


# a phase of cards alone, and its order
CARDS_ALONE = asking(Phase(SIGNATURE, "all", ends_round=False), squares=True)
CARD_ORDER = asked(Order(whole=True), squares=True)


def bases_of(chances: Chances) -> tuple[str, ...]:
    """What the fleet can be cut by: distances in inputs, distances in labels."""
    kinds = found(chances)
    by_inputs = (INPUTS,) if {"style", "concept"} & set(kinds) else ()
    return (*by_inputs, *((LABELS,) if "labels" in kinds else ()))


# -- methods that need a number of clusters -----------------------------------------------------------


class Numbered(BehindGate):
    """The options of a method that divides agents again and again: the number of its clusters, and the gate.

    A number that is given stands, without cards unless `gate` asks for them.
    """

    usual: ClassVar[int] = 2  # K where neither the scenario nor the cards give one

    n_clusters: int | None = Field(
        None,
        ge=1,
        json_schema_extra=FIRST,
        description="K: the number of groups. null: the number of groups that the cards show (gate), and the "
        "method's usual number where no cards are sent.",
    )
    min_group: MinGroup = None

    @model_validator(mode="after")
    def _a_number_is_cut_from_cards_or_given(self) -> Self:
        if self.min_group is not None and (self.n_clusters is not None or self.gate == "none"):
            raise ValueError(
                "min_group is of the cut of the cards, from which the number of groups comes where neither "
                "n_clusters nor gate: none is set: leave it out"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _without_a_gate_where_it_is_given(cls, data: Any) -> Any:
        has_number = isinstance(data, Mapping) and data.get("n_clusters") is not None
        return {"gate": "none", **data} if has_number else data

    @property
    def most_clusters(self) -> int:
        """The largest K that a run can have."""
        most = OF_CARDS.most if self.gate == "cards" else None
        return self.n_clusters or most or self.usual

    def asks_in(self, setup: Setup) -> bool:
        """Whether agents of a run are asked for cards: they are not private."""
        return self.gate == "cards" and not setup.private

    def count(self, chances: Chances = (), cards: Collection[Card] = ()) -> int:
        """K: one if no test fires; without cards, or with fewer than four, as if there were no gate.

        Args:
            chances: of the tests.
            cards: with their squares.
        """
        if not chances:
            return self.n_clusters or self.usual
        bases = bases_of(chances)
        if not bases:
            return 1
        if self.n_clusters is not None:
            return self.n_clusters
        fleet_cards = extras.part("cards", "fleet_cards", GATE)
        count: int = fleet_cards.groups_in(cards, bases[0], chances, self.min_group)
        return count


# -- methods that cluster once ------------------------------------------------------------------------


@dataclass(frozen=True)
class Grouped(Tested, Ballot):
    """The state of a method that clusters once: besides the clusters, what they were made from."""

    heights: tuple[float, ...] = ()  # of the merges
    cut: tuple[float | None, float | None] = (None, None)  # `low` and `high` of the Agglomeration
    evidence: tuple[float, ...] = ()  # of the chosen number of clusters, as `Cut.tree` returns it
    joined: int = 0  # agents of groups that were too small, which are in the nearest other one

    @property
    def proposed(self) -> Mapping[str, Mapping[ClientId, int]]:
        return {CLUSTERS: self.assign} if self.vote_after and len(self.models) > 1 else {}

    def cut_at(self, agents: int) -> float | None:
        """A height between the last merge that was made and the next one."""
        return cut_between(self.cut, self.heights, agents)


G = TypeVar("G", bound=Grouped)


class Gated(BehindGate, HardClustered[T], Generic[T]):
    """Asks for cards in the clustering phase, and keeps what the tests found.

    `init` sets `asks`. `work` adds the card to the report of that phase (`with_card`).
    """

    squares: ClassVar[bool] = False  # cards have what distances are computed from

    def plan(self, state: T, view: View) -> Phase:
        phase = super().plan(state, view)
        return asking(phase, squares=self.squares) if self._awaits_cards(state) else phase

    def order(self, state: T, phase: Phase, client: ClientId) -> Order:
        order = super().order(state, phase, client)
        return asked(order, squares=self.squares) if self._awaits_cards(state) else order

    def fold(self, state: T, phase: Phase, sums: Sums, reports: Reports) -> T:
        if self._awaits_cards(state) and reports:
            state = self.after_tests(*with_tests(state, reports))
        return super().fold(state, phase, sums, reports)

    def _awaits_cards(self, state: T) -> bool:
        return state.asks and not state.models

    def after_tests(self, state: T, cards: Collection[Card]) -> T:
        """The state before its clusters are formed, with what else the cards answer."""
        return state


class ClusteredOnce(Voting[G], Gated[G], Generic[G]):
    """Cuts a tree where the cards find a shift."""

    facts: ClassVar[Facts] = Facts(
        numbers={TRAIN: {HOLD_BACK: ASKED}, TRIAL: {HOLD_BACK: ASKED}, VOTE: VOTE_NUMBERS},
        sealed=Sealed({SIGNATURE: "signature", ENTRY: "signature", VOTE: "vote"}),
    )

    vote: Literal["auto", "none"] | None = Field(
        None,
        description="auto: all agents train one model in the first third of the rounds; then they vote, on samples that they "
        "hold back, whether the average of their group serves them better. If so, groups train next to the one model for a "
        "third of the rounds, and apart if most agents gain after five epochs at home too. none: groups train apart from the "
        "first round. null: auto where cards decide whether there are groups, without an optimiser of the server; else none.",
    )

    min_group: MinGroup = None

    height: ClassVar[str] = ""  # name of the merge height at which the cut is, in the notes
    unit: ClassVar[str] = ""  # of the distances, for pictures

    @model_validator(mode="after")
    def _a_given_cut_has_groups_of_any_size(self) -> Self:
        if self.min_group is not None and self.cut.is_given:
            raise ValueError("the cut is given, and its groups have any size: leave min_group out")
        return self

    @property
    @abstractmethod
    def cut(self) -> Cut:
        """The cut that this method's options describe."""

    # -- the vote ------------------------------------------------------------------------------------

    def before_votes(self, setup: Setup) -> dict[str, Any]:
        """What `init` sets of a state whose agents will vote: by default on a cut that the cards have asked for."""
        is_found = self.vote is None and self.cut.asks(setup) and self.server is None
        return before_votes(setup) if is_found or self.vote == "auto" else {}

    def tested(self, state: G) -> Collection[str]:
        return (CLUSTERS,) if INPUTS in bases_of(state.chances) else ()

    def stands(self, state: G, name: str) -> G:
        after = standing(state, name)
        return after if name else _as_one(after)

    def aggregate(self, state: G, sums: Sums, reports: Reports) -> G:
        if not state.is_before_vote:
            return super().aggregate(state, sums, reports)
        one = sums.mean(KEY, otherwise=state.models[0])
        return after_round(replace(state, models=(one,) * len(state.models)), sums, reports)

    def fold(self, state: G, phase: Phase, sums: Sums, reports: Reports) -> G:
        after = super().fold(state, phase, sums, reports)
        return _as_one(after) if state.answers and len(state.models) == 1 else after

    def refuses(self, settings: Settings) -> str:
        if self.vote == "auto" and self.facts.individual:
            return "vote: auto compares averages, and it compares single models; leave vote out"
        if self.vote == "auto" and isinstance(settings, Server):
            return "agents compare means of models, which the server's optimiser moves (vote: auto)"
        return super().refuses(settings)

    def compared(self, state: G) -> tuple[tuple[ClientId, ...], Matrix] | None:
        """The clients whose distances (n, n) the tree was made of, and these; None where there is no tree."""
        return None

    def shown(self, state: G) -> Shown:
        if not state.models:
            return Shown()
        notes = dict(super().shown(state).notes)
        if self.height:
            low, high = state.cut
            notes[f"{self.height}_from"] = low
            notes[f"{self.height}_below"] = high
            notes["merge_heights"] = list(state.heights)
            notes["joined"] = state.joined
        if state.evidence:
            name = EVIDENCE[self.cut.choose]
            notes.update(zip((name, f"{name}_by_chance"), state.evidence, strict=False))
        if not self.cut.is_given:
            notes.update(shift_facts(state, self.gate))
        notes.update(useless(state, None if self.cut.is_given else self.cut))
        if state.outcomes:
            notes |= {"votes": state.outcomes}
            notes |= {f"decision_{number}": text for number, text in enumerate(state.answers, 1)}
        return Shown(notes, proximity=lambda: self._proximity(state))

    def _proximity(self, state: G) -> Proximity | None:
        compared = self.compared(state)
        if compared is None:
            return None
        clients, distances = compared
        cut = state.cut_at(len(clients))
        return Proximity(clients, distances, self.cut.linkage, self.unit, cut)

    def forget(self, state: G, client: ClientId) -> G:
        return replace(super().forget(state, client), shares=without(state.shares, client))


def is_ready(state: Grouped) -> bool:
    """Whether the clusters are formed, and no vote on them is to come."""
    return bool(state.models) and not state.proposed


def _as_one(state: G) -> G:
    """The state with all agents in one cluster, newcomers too."""
    return replace(state, models=state.models[:1], assign=dict.fromkeys(state.assign, 0))


def with_tree(state: G, tree: Agglomeration, evidence: tuple[float, ...]) -> G:
    """The state with the facts of the cut that made its clusters."""
    cut = (tree.low, tree.high)
    return replace(state, heights=tree.heights, cut=cut, evidence=evidence, joined=tree.joined)


class SignedOnce(ClusteredOnce[G], Generic[G]):
    """Cuts a tree of signatures, by options that a method describes."""

    if TYPE_CHECKING:
        linkage: Linkage
        choose: Choose
        n_clusters: int | None
        threshold: float | None

    facts: ClassVar[Facts] = replace(ClusteredOnce.facts, signatures=(SIGNATURE, ENTRY))

    @property
    def quantile(self) -> float | None:
        """Of all distances: up to it clusters are merged."""
        return None

    @property
    def cut(self) -> Cut:
        return Cut(
            self.linkage,
            self.choose,
            self.gate,
            self.n_clusters,
            self.threshold,
            self.quantile,
            min_group=self.min_group,
        )

    def clustering_phase(self, state: G) -> Phase:
        sizes = self.entry_sizes(state)
        return Phase(SIGNATURE, "all", sizes, ends_round=False, numbers=self.entry_numbers)

    @property
    def buffer(self) -> Buffering:
        return Buffering(is_ready=is_ready)


def cut_defaults(
    data: Any, cuts: Sequence[str], linkages: Mapping[str, Linkage], given: Linkage
) -> Any:
    """The options of a method that cuts a tree, with the defaults of `choose`, `gate` and `linkage`.

    Args:
        data: the options as given; anything but a mapping is returned unchanged.
        cuts: options that set the cut. With one of them nothing chooses K, and the linkage is
            `given`, as in the runs that are on record.
        linkages: the linkage by the rule that chooses K.
        given: the linkage otherwise.
    """
    if not isinstance(data, Mapping):
        return data
    has_cut = any(data.get(key) is not None for key in cuts)
    usual: dict[str, Any] = {"choose": "gap", "gate": "none"} if has_cut else {}
    choose = data.get("choose", usual.get("choose", "silhouette"))
    return {"choose": choose, "linkage": linkages.get(choose, given), **usual, **data}


def check_cuts(cuts: Mapping[str, object], choose: Choose, gate: str) -> None:
    """Raises ValueError for more than one cut, and for a cut next to what would choose one.

    Args:
        cuts: by name; None for those that are not given.
        choose: as `cut_defaults` fills it in: gap where a cut is given.
        gate: likewise: none.
    """
    given = [name for name, value in cuts.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} cut the same tree: give one of them, or none")
    if given and choose != "gap":
        raise ValueError(
            f"{given[0]} gives the cut, so nothing is left to choose by {choose}: leave one out"
        )
    if given and gate != "none":
        raise ValueError(f"{given[0]} gives the cut, which has no gate: leave gate out")


def useless(state: Grouped, rule: Cut | None) -> dict[str, str]:
    """A warning for the notes, if the clusters have no effect.

    Args:
        state: the state with its clusters. With one agent or none there is nothing to warn about.
        rule: what chose the number of clusters; None: it is given.
    """
    members = [size for size in sizes(state) if size]
    agents = sum(members)
    if agents < 2:
        return {}
    if len(members) == 1 and rule:
        size = rule.least(agents)
        groups = f"groups of {size} or more" if size > 1 else "groups"
        why = f"the signatures of {agents} agents do not fall into {groups} beyond chance"
        if state.chances and not found(state.chances):
            why = f"no shift found between the data of {agents} agents"
        text = (
            f"{why}: one group, this run is FedAvg. Set strategy.n_clusters if you know of groups"
        )
    elif len(members) == agents:
        text = (
            f"each of {agents} agents is a group of its own: no agent learns from another. "
            "Set strategy.n_clusters to make fewer groups"
        )
    else:
        return {}
    return {"warning_clusters": text}
