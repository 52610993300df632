"""Kin: cards before clusters, tests before a cut, and votes of the agents for or against it.

Method. The project's own; docs/kin.md has its idea, its formulas and what it is near to.

1. Phase `signature`: each agent sends a card of its data, before any training.
2. Three tests on the cards (numerics/kinship.py). If none fires, the run is FedAvg, to the byte.
   If labels differ, agents compute with their label prior (`shared.label_prior`) from round 1 on.
3. Otherwise agents hold back a tenth of their training samples, and the first third of the rounds
   is FedAvg. In its last round the averages of the groups of up to two cuts are made too: a cut of
   the distances in inputs, and one of the distances in labels, each if a test of its kind fired.
4. Phase `vote`: does the average of its group serve an agent better than that of all, both without
   the agent's own model? Then the groups train apart for the second third.
5. Phase `vote`: does the model that an agent sent in the last round serve it better than the average
   that it went into, at once and after an epoch more? Then each finishes alone, and its last third
   is local. Now all samples train.

A newcomer sends its card in phase `entry` and joins the group that is nearest to it. So does an
agent whose data have changed since its card, which it finds out for itself: it keeps a finer one.

Limits. A fleet of fewer than four agents is not tested. With fewer than six a cut of inputs needs
no vote, and one of labels has none. Of more than a thousand cards a sample is tested and cut, and
the other agents join like newcomers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.shared.errors import DataError
from covey.shared.numerics.averages import Average
from covey.shared.numerics.kinship import OWN_BLOCKS, Card, Kinship, has_changed
from covey.shared.numerics.vectors import Vector
from covey.shared.numerics.votes import LEAST, difference
from covey.shared.sentences import some
from covey.shared.strategies.base import (
    ASKED,
    ENTRY,
    EVALUATE,
    HOLD_BACK,
    LAST_MODEL,
    MODEL,
    PRIOR,
    SIGNATURE,
    TRAIN,
    VOTE,
    Buffering,
    ClientId,
    ClientState,
    Expected,
    Job,
    Local,
    Mixture,
    Order,
    OrderNumbers,
    Phase,
    PrivacyFacet,
    Proximity,
    Report,
    Reports,
    Sealed,
    Settings,
    Setup,
    Shown,
    Sums,
    Terms,
    View,
    trained_report,
)
from covey.shared.strategies.bases.cut import (
    CARD_ORDER,
    CARDS_ALONE,
    INPUTS,
    LABELS,
    OF_CARDS,
    WHOLE_CARD_ASKED,
    Tested,
    asking,
    bases_of,
    card_distances,
    card_labels,
    cards_of,
    cut_distances,
    found,
    sampled,
    shift_facts,
    with_card,
    with_tests,
)
from covey.shared.strategies.bases.hard import ManyModels, joined, sizes, unanswered, unassigned
from covey.shared.strategies.bases.single import sample_term
from covey.shared.strategies.bases.vote import (
    GROUP_OR_ALL,
    VOTE_NUMBERS,
    Ballot,
    after_round,
    ballot,
    ballots,
    ballots_on_groups,
    counting_in_groups,
    counts,
    elected,
    group_or_all,
    on_groups,
    outcomes_of,
    standing,
)

VOTERS = 6  # agents; fewer have no first vote
MOST_DRAWN = 200  # agents; of more no distances are kept for a picture

QUESTION = "question"  # number of an order: which vote it is
OWN_OR_GROUP = "own"  # the question of the second vote
QUESTIONS = Expected(words=(GROUP_OR_ALL, OWN_OR_GROUP))
# numbers of orders to train and of their reports
ALONE = "alone"  # the model stays with the agent
WATCH = "watch"  # the agent looks whether its data have changed
CHANGED = "changed"  # they have

REST = 5  # rounds after which an agent may have changed again; with less a liar would keep a fleet busy
KEPT_COUNTS, KEPT_SUMS = "card_counts", "card_sums"  # of the card that stays with the agent


@dataclass(frozen=True)
class KinState(Tested, Ballot):
    """Besides the models, what the tests found and what the agents have voted for."""

    second: int = 0  # complete rounds before the second vote
    rounds: int = 0  # R
    tested: bool = False
    asks: bool = True
    agents: int = 0  # that sent a card
    silhouettes: dict[str, float] = field(default_factory=dict)  # of the cuts, on average
    distances: dict[ClientId, dict[ClientId, float]] = field(default_factory=dict)  # for a picture

    # until the first vote: the group of each agent in either cut, and of the groups what newcomers
    # are compared with, as fields of a `Kinship`; afterwards only that of the cut that stands
    inputs: dict[ClientId, int] = field(default_factory=dict)
    labels: dict[ClientId, int] = field(default_factory=dict)
    kin: dict[str, dict[str, Any]] = field(default_factory=dict)

    reporters: tuple[ClientId, ...] = ()  # of the last round, for the second vote
    basis: str = ""  # the cut that stands; empty: none
    finishes_alone: bool = False
    owners: tuple[ClientId, ...] = ()  # agents that have a model of their own
    # complete rounds when an agent last left its group because its data had changed
    changed: dict[ClientId, int] = field(default_factory=dict)

    @property
    def shift(self) -> tuple[str, ...]:
        """The kinds of shift that the tests found."""
        return found(self.chances)

    @property
    def votes_follow(self) -> bool:
        """Whether agents hold samples back for a vote that is to come."""
        return bool(self.shift) and self.rounds > 1 and self.done < self.second

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to vote on."""
        return self.tested and (not self.shift or OWN_OR_GROUP in self.outcomes or self.rounds < 2)

    @property
    def proposed(self) -> dict[str, dict[ClientId, int]]:
        proposed = {INPUTS: self.inputs, LABELS: self.labels}
        return {basis: groups for basis, groups in proposed.items() if groups}


class Kin(ManyModels[KinState]):
    """Which shift, which groups, and whether they help: asked in this order."""

    client_fields = (
        "assign",
        "asked",
        "inputs",
        "labels",
        "distances",
        "shares",
        "reporters",
        "owners",
        "changed",
    )

    sealed: ClassVar[Sealed | None] = Sealed(
        (SIGNATURE, ENTRY, VOTE), lambda state, least: _with_large_parts(state, least)
    )
    simulated_cell: ClassVar[int] = 1
    no_server: ClassVar[bool] = True

    order_numbers: ClassVar[OrderNumbers] = {
        SIGNATURE: WHOLE_CARD_ASKED,
        ENTRY: WHOLE_CARD_ASKED,
        VOTE: {**VOTE_NUMBERS, QUESTION: QUESTIONS, PRIOR: ASKED},
        TRAIN: dict.fromkeys((ALONE, WATCH, HOLD_BACK, PRIOR), ASKED),
        EVALUATE: {PRIOR: ASKED},
    }
    summary: ClassVar[str] = (
        "cards and tests find which shift there is, votes decide on groups; without a shift FedAvg"
    )
    source: ClassVar[str] = "this project"

    unset: ClassVar[tuple[str, ...]] = ("server", "stop")

    name: Literal["kin"] = "kin"
    stop: Literal["cards"] | None = Field(
        None,
        description="cards: end the run after the tests, without any training, with the first cut that they propose as its "
        "clusters, as `coordinator advise` does. null: train.",
    )

    def init(self, setup: Setup) -> KinState:
        first = max(round(setup.rounds / 3), 1)
        second = max(round(2 * setup.rounds / 3), first)
        start = setup.starts[0]
        voted = first if first < setup.rounds else 0
        return KinState(start, (start,), vote_after=voted, second=second, rounds=setup.rounds)

    def continued(self, state: KinState, fresh: KinState) -> KinState:
        if state.finishes_alone:
            raise ValueError(
                "each agent has finished that run with a model of its own, which stays there"
            )
        return super().continued(state, fresh)

    # -- phases and orders ------------------------------------------------------------------------

    def plan(self, state: KinState, view: View) -> Phase:
        if not state.tested:
            return CARDS_ALONE
        if state.question and view.round < view.rounds:
            if state.question == GROUP_OR_ALL:
                return ballots_on_groups(state, view)
            return ballots([client for client in view.present if client in state.reporters], 2)
        newcomers = unassigned(state, view) if state.basis else ()
        if newcomers:
            entry = Phase(ENTRY, newcomers, ends_round=False, may_be_empty=True)
            return asking(entry, squares=True)
        if state.finishes_alone:
            return Phase()
        numbers = {CHANGED: Expected(most=1.0, whole=True, required=False)} if state.basis else {}
        return Phase(sizes={MODEL: state.start.size}, numbers=numbers)

    def order(self, state: KinState, phase: Phase, client: ClientId) -> Order:
        if phase.name in (SIGNATURE, ENTRY):
            return CARD_ORDER
        order = self.serve(state, client)
        if phase.name == VOTE:
            if state.question == GROUP_OR_ALL:
                return _with(on_groups(state, order, client), {QUESTION: GROUP_OR_ALL})
            return _with(order, {QUESTION: OWN_OR_GROUP, HOLD_BACK: 1})
        if state.finishes_alone:
            return _with(order, {ALONE: 1})
        if state.basis:
            order = _with(order, {WATCH: 1})
        return _with(order, {HOLD_BACK: 1}) if state.votes_follow else order

    def model(self, state: KinState, key: str) -> Vector:
        return state.averages[key] if key in state.averages else super().model(state, key)

    def serve(self, state: KinState, client: ClientId) -> Order:
        order = super().serve(state, client)
        if client in state.owners:
            order = replace(order, models=())
        return _with(order, {PRIOR: 1}) if LABELS in state.shift else order

    # -- the client half --------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase in (SIGNATURE, ENTRY):
            report = with_card(Report({}, local.examples), job, local)
            return report, {**client_state, **_own_card(job, local)}
        if job.phase == VOTE:
            if job.numbers[QUESTION] == GROUP_OR_ALL:
                return ballot(group_or_all(job, local, client_state), local), client_state
            return ballot(_own_or_group(job, local, client_state), local), client_state
        [(_, start)] = self.personal(job, local, client_state)
        if ALONE not in job.numbers:
            numbers = {CHANGED: 1} if _has_changed(job, local, client_state) else {}
            return trained_report(local.train(start), local, numbers), client_state
        result = local.train(start, at_home=True)
        report = Report({}, local.examples, steps=result.steps, loss=result.loss)
        return report, {**client_state, LAST_MODEL: result.end}

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        if job.models:
            return super().personal(job, local, client_state)
        if LAST_MODEL not in client_state:
            raise DataError(
                f"agent {job.client} has a model of its own in this run, but it is missing: "
                "was its folder deleted?"
            )
        return ((1.0, client_state[LAST_MODEL]),)

    # -- the server half --------------------------------------------------------------------------

    def terms(self, state: KinState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name != TRAIN or state.finishes_alone:
            return ()
        if state.basis:
            return sample_term(report, str(state.assign[client])) if client in state.assign else ()
        return counting_in_groups(state, client, sample_term(report))

    def fold(self, state: KinState, phase: Phase, sums: Sums, reports: Reports) -> KinState:
        if phase.name == SIGNATURE:
            after = _with_cuts(replace(state, tested=True), reports, is_drawn=bool(self.stop))
            return _standing(after, next(iter(after.proposed), "")) if self.stop else after
        if phase.name == ENTRY:
            return _with_newcomers(state, phase, reports)
        if phase.name == VOTE:
            if state.question == OWN_OR_GROUP:
                return _finishing(state, reports)
            voted, basis = elected(state, reports, (INPUTS,))
            return _asking(_standing(voted, basis))
        after = after_round(replace(state, asked=()), sums, reports)
        if state.finishes_alone:
            owners = {*state.owners, *[client for client, _ in reports]}
            return replace(after, owners=tuple(sorted(owners)))
        models = [sums.mean(str(k), otherwise=model) for k, model in enumerate(state.models)]
        after = _without_changed(after, reports)
        members = [client for client, _ in reports if not state.basis or client in after.assign]
        reporters = tuple(members) if state.votes_follow else ()
        return _asking(replace(after, models=tuple(models), reporters=reporters))

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
        return Buffering(is_ready=lambda state: state.is_settled and not state.finishes_alone)

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(
            refusal="kin sends cards, which hold counts and sums of the data without noise"
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


# -- the votes of one agent ---------------------------------------------------------------------------


def _own_or_group(job: Job, local: Local, client_state: ClientState) -> list[tuple[float, float]]:
    """Losses under the group's average minus those under the agent's own model in it: as they are, and after an epoch more.

    Both come from the same round: with more training behind it the own model would win wherever training is not over.
    """
    held = job.held_back
    own = client_state.get(LAST_MODEL)
    if held is None or held.examples < LEAST or own is None:
        return []
    [group] = job.models
    if np.array_equal(group, own):
        return []
    pairs = [(group, own)]
    pairs.append(
        (
            local.train(group, epochs=1, at_home=True).end,
            local.train(own, epochs=1, at_home=True).end,
        )
    )
    return [difference(held.losses(one), held.losses(other)) for one, other in pairs]


# -- cuts and votes of the fleet ----------------------------------------------------------------------


def _with_cuts(state: KinState, reports: Reports, *, is_drawn: bool) -> KinState:
    """The state after the tests, with up to two cuts of the fleet, and the distances of the first if they are drawn."""
    cards = cards_of(sampled(reports))
    state = replace(with_tests(state, cards.values()), agents=len(reports))
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
        state = _proposed(state, basis, fleet, cards, others)
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
    cards: Mapping[ClientId, Card],
    others: Mapping[ClientId, Card],
) -> KinState:
    """The state with a cut by the distances of one kind, if it has more than one group."""
    labels, silhouette = card_labels(fleet, basis, state.chances)
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


def _asking(state: KinState) -> KinState:
    """The state after a round or a vote, with the vote that is due."""
    if state.question:
        if state.agents >= VOTERS:
            return state
        state = _standing(state, INPUTS if state.inputs else "")
    if state.votes_follow or not state.shift or state.is_settled or state.done >= state.rounds:
        return state
    return replace(state, question=OWN_OR_GROUP)


def _standing(state: KinState, basis: str) -> KinState:
    """The state in which a cut stands, or none."""
    after = replace(standing(state, basis), inputs={}, labels={}, kin={}, basis=basis)
    if not basis:
        return after
    return replace(after, assign=state.proposed[basis], kin={basis: state.kin[basis]})


def _finishing(state: KinState, reports: Reports) -> KinState:
    """The state after the second vote: a model of its own must serve an agent better at once and after one epoch more."""
    at_once, tuned = outcomes_of(reports, [{}, {}])
    alone = at_once.is_sure and tuned.is_sure
    serves = "serves" if alone else "does not serve"
    other = "that of its group" if state.basis else "the one of all"
    answer = (
        f"vote after round {state.done}: a model of its own {serves} an agent better than {other} "
        f"({counts(at_once)}; after one epoch more {counts(tuned)})"
    )
    kept = {
        **state.outcomes,
        OWN_OR_GROUP: dict(vars(at_once)),
        f"{OWN_OR_GROUP}_tuned": dict(vars(tuned)),
    }
    return replace(
        state,
        question="",
        reporters=(),
        finishes_alone=alone,
        answers=(*state.answers, answer),
        outcomes=kept,
    )


def _shift_sentence(state: KinState) -> str:
    if not state.chances:
        return "kin: not tested, because fewer than four agents sent a card: one model, this run is FedAvg"
    if not state.shift:
        return f"kin: no shift found between the data of {state.agents} agents: one model, this run is FedAvg"
    return f"kin: the data of {state.agents} agents differ in {' and '.join(state.shift)}"
