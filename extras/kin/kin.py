"""Kin: cards before clusters, tests before a cut, and votes of the agents for or against it.

Method. The project's own; benchmarks/results/kin.md has its formulas, and what it is near to.

1. Phase `signature`: each agent sends a card of its data, before any training.
2. Three tests on the cards (extras/cards/kinship.py). If none fires, the run is FedAvg, to the byte.
   If labels differ, agents compute with their label prior (`shared.label_prior`) from round 1 on.
3. Otherwise the fleet is cut: by the distances in inputs, and by those in labels, each if a test of
   its kind fired. Without two groups of enough agents (bases/cut.py) the run is FedAvg.
4. With such a cut, agents hold back a tenth of their training samples, and the first third of the
   rounds is FedAvg. In its last round the averages of the groups are made too.
5. Phase `vote`: does the average of its group serve an agent better than that of all, both without
   the agent's own model? Then groups and one model train side by side for as many rounds again, else
   one model does.
6. Phase `vote` again: does it do so after five epochs at home, for most? Then the groups train apart, else one
   model, which has lost nothing. Now all samples train.

A newcomer sends its card in phase `entry` and joins the group that is nearest to it. So does an
agent whose data have changed since its card, which it finds out for itself: it keeps a finer one.

Limits. A fleet of fewer than four agents is not tested. With fewer than six a clear cut of inputs
needs no vote, and another has none. Of more than a thousand cards a sample is tested and cut, and
the other agents join like newcomers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.extras.cards.fleet_cards import (
    card_distances,
    card_labels,
    cards_of,
    cut_distances,
    tested_in,
)
from covey.extras.cards.kinship import OWN_BLOCKS, Card, Kinship, has_changed
from covey.shared.numerics.averages import Average
from covey.shared.sentences import some
from covey.shared.strategies.base import (
    ENTRY,
    EVALUATE,
    HOLD_BACK,
    MODEL,
    PRIOR,
    SIGNATURE,
    TRAIN,
    Buffering,
    ClientId,
    Expected,
    Facts,
    Order,
    Phase,
    PrivacyFacet,
    Proximity,
    Reports,
    Sealed,
    Settings,
    Setup,
    Shown,
    Sums,
    Terms,
    View,
    without,
)
from covey.shared.strategies.bases.cut import (
    CARD_ORDER,
    CARDS_ALONE,
    CLEAR,
    INPUTS,
    LABELS,
    OF_CARDS,
    WHOLE_CARD_ASKED,
    MinGroup,
    Tested,
    asking,
    bases_of,
    found,
    shift_facts,
    with_card,
)
from covey.shared.strategies.bases.hard import ManyModels, joined, sizes, unanswered, unassigned
from covey.shared.strategies.bases.single import sample_term
from covey.shared.strategies.bases.vote import (
    VOTE_NUMBERS,
    Ballot,
    Voting,
    after_round,
    before_votes,
    standing,
    voted_on,
)
from covey.shared.strategies.client_half import (
    ClientState,
    Job,
    Local,
    Report,
    taken,
    trained_report,
)
from covey.shared.strategies.expected import ASKED
from covey.shared.strategies.phase_names import TRIAL, VOTE

VOTERS = 6  # agents; fewer have no first vote
MOST_DRAWN = 200  # agents; of more no distances are kept for a picture

# numbers of orders to train and of their reports
WATCH = "watch"  # the agent looks whether its data have changed
CHANGED = "changed"  # they have

REST = 5  # rounds after which an agent may have changed again; with less a liar would keep a fleet busy
KEPT_COUNTS, KEPT_SUMS = "card_counts", "card_sums"  # of the card that stays with the agent


@dataclass(frozen=True)
class KinState(Tested, Ballot):
    """Besides the models, what the tests found and what the agents have voted for."""

    tested: bool = False
    asks: bool = True
    agents: int = 0  # that sent a card
    silhouettes: dict[str, float] = field(default_factory=dict)  # of the cuts, on average
    distances: dict[ClientId, dict[ClientId, float]] = field(default_factory=dict)  # for a picture

    # until the vote: the group of each agent in either cut, and of the groups what newcomers
    # are compared with, as fields of a `Kinship`; afterwards only that of the cut that stands
    inputs: dict[ClientId, int] = field(default_factory=dict)
    labels: dict[ClientId, int] = field(default_factory=dict)
    kin: dict[str, dict[str, Any]] = field(default_factory=dict)

    basis: str = ""  # the cut that stands; empty: none
    # complete rounds when an agent last left its group because its data had changed
    changed: dict[ClientId, int] = field(default_factory=dict)

    @property
    def shift(self) -> tuple[str, ...]:
        """The kinds of shift that the tests found."""
        return found(self.chances)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to vote on."""
        return self.tested and not self.proposed

    @property
    def proposed(self) -> dict[str, dict[ClientId, int]]:
        proposed = {INPUTS: self.inputs, LABELS: self.labels}
        return {
            basis: groups
            for basis, groups in proposed.items()
            if groups and self.trial in ("", basis)
        }


class Rounds(ManyModels[KinState]):
    """Cards, tests, and rounds of one model or of groups: all of Kin but its votes."""

    summary: ClassVar[str] = (
        "cards and tests find which shift there is, a vote decides on groups; without a shift FedAvg"
    )
    source: ClassVar[str] = "this project"

    name: Literal["kin"] = "kin"
    stop: Literal["cards"] | None = Field(
        None,
        description="cards: end the run after the tests, without any training, with the first cut that they propose as its "
        "groups, as `coordinator advise` does. null: train.",
    )

    min_group: MinGroup = None

    # -- phases and orders ------------------------------------------------------------------------

    def plan(self, state: KinState, view: View) -> Phase:
        if not state.tested:
            return CARDS_ALONE
        newcomers = unassigned(state, view) if state.basis else ()
        if newcomers:
            entry = Phase(ENTRY, newcomers, ends_round=False, may_be_empty=True)
            return asking(entry, squares=True)
        numbers = {CHANGED: Expected(most=1.0, whole=True, required=False)} if state.basis else {}
        return Phase(sizes={MODEL: state.start.size}, numbers=numbers)

    def order(self, state: KinState, phase: Phase, client: ClientId) -> Order:
        if phase.name in (SIGNATURE, ENTRY):
            return CARD_ORDER
        order = self.serve(state, client)
        return _with(order, {WATCH: 1}) if state.basis else order

    def serve(self, state: KinState, client: ClientId) -> Order:
        order = super().serve(state, client)
        return _with(order, {PRIOR: 1}) if LABELS in state.shift else order

    # -- the client half --------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase in (SIGNATURE, ENTRY):
            report = with_card(Report({}, local.examples), job, local)
            return report, {**client_state, **_own_card(job, local)}
        if job.phase == VOTE:
            return voted_on(job, local, client_state), client_state
        [start] = taken(job, 1)
        numbers = {CHANGED: 1} if _has_changed(job, local, client_state) else {}
        return trained_report(local.train(start), local, numbers), client_state

    # -- the server half --------------------------------------------------------------------------

    def terms(self, state: KinState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name != TRAIN:
            return ()
        if state.basis:
            return sample_term(report, str(state.assign[client])) if client in state.assign else ()
        return sample_term(report)

    def fold(self, state: KinState, phase: Phase, sums: Sums, reports: Reports) -> KinState:
        if phase.name == SIGNATURE:
            tested = replace(state, tested=True)
            after = _with_cuts(tested, reports, self.min_group, is_drawn=bool(self.stop))
            if self.stop:
                return _standing(after, next(iter(after.proposed), ""))
            return after if after.vote_after else _standing(after, "")
        if phase.name == ENTRY:
            return _with_newcomers(state, phase, reports)
        after = after_round(replace(state, asked=()), sums, reports)
        models = [sums.mean(str(k), otherwise=model) for k, model in enumerate(state.models)]
        after = replace(_without_changed(after, reports), models=tuple(models))
        if after.question and after.agents < VOTERS:
            return _standing(after, next(iter(_clear(after)), ""))
        return after


class Kin(Voting[KinState], Rounds):
    """Which shift, which groups, and whether they help: asked in this order."""

    facts: ClassVar[Facts] = Facts(
        numbers={
            SIGNATURE: WHOLE_CARD_ASKED,
            ENTRY: WHOLE_CARD_ASKED,
            VOTE: {**VOTE_NUMBERS, PRIOR: ASKED},
            **dict.fromkeys((TRAIN, TRIAL), dict.fromkeys((WATCH, HOLD_BACK, PRIOR), ASKED)),
            EVALUATE: {PRIOR: ASKED},
        },
        cell=1,
        sealed=Sealed(
            {SIGNATURE: "signature", ENTRY: "signature", VOTE: "vote"},
            lambda state, least: _with_large_parts(state, least),
        ),
        server=False,
    )

    def init(self, setup: Setup) -> KinState:
        start = setup.starts[0]
        return KinState(start, (start,), **before_votes(setup))

    def tested(self, state: KinState) -> Collection[str]:
        return _clear(state)

    def stands(self, state: KinState, name: str) -> KinState:
        return _standing(state, name)

    def stop_reason(self, state: KinState) -> str:
        return "the cards are tested (strategy.stop: cards)" if self.stop and state.tested else ""

    # -- what others ask --------------------------------------------------------------------------

    def shown(self, state: KinState) -> Shown:
        if not state.tested:
            return Shown()
        notes = {
            "clusters": len(state.models),
            "sizes": sizes(state) if state.basis else [],
            **shift_facts(state, "cards"),
            "silhouettes": state.silhouettes,
            "votes": state.outcomes,
        }
        sentences = (_shift_sentence(state), *state.answers)
        notes |= {f"decision_{number}": text for number, text in enumerate(sentences, 1)}
        return Shown(notes, proximity=lambda: _proximity(state))

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Average) and settings.single:
            return "agents take their own model off an average to vote, which only a mean allows"
        return super().refuses(settings)

    @property
    def buffer(self) -> Buffering:
        return Buffering(is_ready=lambda state: state.is_settled)

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(
            refusal="kin sends cards, which hold counts and sums of the data without noise"
        )

    def forget(self, state: KinState, client: ClientId) -> KinState:
        return replace(
            super().forget(state, client),
            inputs=without(state.inputs, client),
            labels=without(state.labels, client),
            distances={
                one: without(row, client) for one, row in without(state.distances, client).items()
            },
            shares=without(state.shares, client),
            changed=without(state.changed, client),
        )


def _with(order: Order, numbers: Mapping[str, Any]) -> Order:
    return replace(order, numbers={**order.numbers, **numbers})


# -- an agent whose data change -----------------------------------------------------------------------


def _own_card(job: Job, local: Local) -> dict[str, npt.NDArray[np.float32]]:
    """The card that the agent keeps: of more blocks, and with the sums of single samples."""
    card = local.card(job.seed, job.client, 1, OWN_BLOCKS)
    return {KEPT_COUNTS: card.counts.astype(np.float32), KEPT_SUMS: card.sums.astype(np.float32)}


def _has_changed(job: Job, local: Local, client_state: ClientState) -> bool:
    """Whether the training samples differ from those of the agent's card; never without a card."""
    if WATCH not in job.numbers or KEPT_COUNTS not in client_state:
        return False
    return has_changed(_card_in(client_state), _card_in(_own_card(job, local)), job.seed)


def _card_in(kept: ClientState) -> Card:
    counts, sums = (kept[name].astype(np.float64) for name in (KEPT_COUNTS, KEPT_SUMS))
    return Card(counts, sums, np.zeros(counts.shape[1]))


def _without_changed(state: KinState, reports: Reports) -> KinState:
    """The state in which agents whose data have changed have no group, until they send a new card."""
    gone = {
        client: state.done
        for client, report in reports
        if report.numbers.get(CHANGED)
        and client in state.assign
        and state.done >= state.changed.get(client, -REST) + REST
    }
    if not gone:
        return state
    assign = {client: k for client, k in state.assign.items() if client not in gone}
    answer = f"after round {state.done}: the data of {some(sorted(gone))} have changed; new cards are asked for"
    changed = dict(sorted({**state.changed, **gone}.items()))
    return replace(state, assign=assign, changed=changed, answers=(*state.answers, answer))


# -- cuts and votes of the fleet ----------------------------------------------------------------------


def _with_cuts(
    state: KinState, reports: Reports, min_group: int | None, *, is_drawn: bool
) -> KinState:
    """The state after the tests, with up to two cuts of the fleet, and the distances of the first if they are drawn."""
    cards, chances, classes = tested_in(reports)
    state = replace(state, chances=chances, classes=classes, agents=len(reports))
    if not state.shift:
        return state
    fleet = Kinship.of(list(cards.values()))
    others = {client: card for client, card in cards_of(reports).items() if client not in cards}
    bases = bases_of(state.chances)
    if is_drawn and len(cards) <= MOST_DRAWN:
        rows = cut_distances(fleet, bases[0], state.chances).tolist()
        between = [dict(zip(cards, row, strict=True)) for row in rows]
        state = replace(state, distances=dict(zip(cards, between, strict=True)))
    for basis in bases:
        state = _proposed(state, basis, fleet, cards=cards, others=others, min_group=min_group)
    return state


def _proximity(state: KinState) -> Proximity | None:
    if not state.distances:
        return None
    rows = [[*row.values()] for row in state.distances.values()]
    return Proximity(
        tuple(state.distances), np.array(rows), OF_CARDS.linkage, "distance of the cards"
    )


def _proposed(
    state: KinState,
    basis: str,
    fleet: Kinship,
    *,
    cards: Mapping[ClientId, Card],
    others: Mapping[ClientId, Card],
    min_group: int | None,
) -> KinState:
    """The state with a cut by the distances of one kind, if it has more than one group."""
    labels, silhouette = card_labels(fleet, basis, state.chances, min_group)
    if not labels.any():
        return state
    state = replace(state, silhouettes={**state.silhouettes, basis: silhouette})
    groups = fleet.grouped(labels)
    assign = dict(zip(cards, labels.tolist(), strict=True))
    assign |= _nearest(state, basis, groups, others)
    state = replace(state, kin={**state.kin, basis: vars(groups)})
    in_order = dict(sorted(assign.items()))
    return replace(state, inputs=in_order) if basis == INPUTS else replace(state, labels=in_order)


def _with_large_parts(state: KinState, least: int) -> KinState:
    """The state without cuts that divide the fleet, alone or together, into a part of fewer agents."""
    large = {
        basis: groups
        for basis, groups in state.proposed.items()
        if min(Counter(groups.values()).values()) >= least
    }
    if len(large) == 2:
        both = Counter((group, state.labels.get(client)) for client, group in state.inputs.items())
        if min(both.values()) < least:
            del large[LABELS]
    kin = {basis: state.kin[basis] for basis in large}
    return replace(state, kin=kin, inputs=large.get(INPUTS, {}), labels=large.get(LABELS, {}))


def _nearest(
    state: KinState, basis: str, groups: Kinship, cards: Mapping[ClientId, Card]
) -> dict[ClientId, int]:
    """The nearest group of each card, ties to the lowest; cards with another number of classes have none."""
    nearest = {}
    for client, card in cards.items():
        if card.counts.shape[1] == groups.counts.shape[1]:
            to_groups = card_distances(groups.joined(card), basis, state.chances)[-1, :-1]
            nearest[client] = int(to_groups.argmin())
    return nearest


def _with_newcomers(state: KinState, phase: Phase, reports: Reports) -> KinState:
    groups = Kinship(**state.kin[state.basis])
    admitted = joined(state, _nearest(state, state.basis, groups, cards_of(reports)))
    return replace(admitted, asked=unanswered(state.asked, phase, admitted.assign))


def _clear(state: KinState) -> tuple[str, ...]:
    """The cuts that more votes for than against are enough for: of inputs, whose test has fired, into groups that are far apart."""
    return (INPUTS,) if state.silhouettes.get(INPUTS, 0.0) >= CLEAR else ()


def _standing(state: KinState, basis: str) -> KinState:
    """The state in which a cut stands, or none."""
    after = replace(standing(state, basis), inputs={}, labels={}, kin={}, basis=basis)
    if not basis:
        return after
    return replace(after, assign=state.proposed[basis], kin={basis: state.kin[basis]})


def _shift_sentence(state: KinState) -> str:
    if not state.chances:
        return "kin: not tested, because fewer than four agents sent a card: one model, this run is FedAvg"
    if not state.shift:
        return f"kin: no shift found between the data of {state.agents} agents: one model, this run is FedAvg"
    return f"kin: the data of {state.agents} agents differ in {' and '.join(state.shift)}"
