"""Votes of a fleet: whether the average of its group serves an agent better than that of all agents.

Each agent compares them on samples that it holds back (`HOLD_BACK`), both without its own model, which
weighs more in the smaller average: with it, groups drawn at random would win. It sends a mean difference
of losses and the variance of that mean; numerics/votes.py has the outcome.

What a group knows, each device may learn at home in an epoch. So groups that are voted for are on trial:
for as many rounds again they train (phase `trial`) next to the one model, and then the agents compare the
two after five epochs at home. Groups stay if they serve the fleet better, and most of its agents: few
samples of few agents have large losses, and would decide alone. Else the one model has lost nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from covey.shared.numerics.averages import fair_weights
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.numerics.votes import SURE, VoteOutcome, counted, difference
from covey.shared.strategies.base import (
    CAP,
    HOLD_BACK,
    LARGEST,
    MODEL,
    TRAIN,
    ClientId,
    Expected,
    Order,
    Phase,
    Reports,
    Setup,
    Sums,
    Terms,
    View,
)
from covey.shared.strategies.bases.hard import Clustered, ManyModels
from covey.shared.strategies.bases.single import KEY, sample_term
from covey.shared.strategies.bases.single import counted as samples_counted
from covey.shared.strategies.client_half import (
    COUNTED,
    LAST_MODEL,
    ClientState,
    Drill,
    Job,
    Local,
    Report,
)
from covey.shared.strategies.expected import A_COUNT, ASKED, SHARES
from covey.shared.strategies.phase_names import TRIAL, VOTE

MOST_AVERAGES = 3  # of all agents, and of the groups of two cuts
CLUSTERS = "clusters"  # name of the cut of a method that makes one
AT_HOME = 5  # epochs before what was on trial is compared

# numbers of orders and reports of a vote
SHARE = "share"  # of the agent's own model in each average
HOME = "home"  # compare after this many epochs at home
VOTE_NUMBERS = {  # of an order for a vote on groups
    HOLD_BACK: ASKED,
    SHARE: replace(SHARES, length=-MOST_AVERAGES),
    CAP: A_COUNT,
    HOME: A_COUNT,
}
GAIN = "gain"
VARIANCE = "variance"


@dataclass(frozen=True)
class Ballot(Clustered):
    """The state of a method whose agents vote on averages of one round."""

    vote_after: int = 0  # rounds before a vote on groups; 0: none is to come
    done: int = 0  # rounds that are complete
    tries: bool = False  # groups that are voted for are on trial before they stand
    trial: str = ""  # the cut whose groups train next to the one model; empty: none
    tried: bool = False  # they have done so in this round

    # for the vote: the averages of groups (d,) by their keys, and the share of an agent's own model in
    # each average that counts it
    averages: dict[str, Vector] = field(default_factory=dict)
    shares: dict[ClientId, dict[str, float]] = field(default_factory=dict)

    answers: tuple[str, ...] = ()  # of the votes, for people
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)  # by what was voted on

    @property
    def proposed(self) -> Mapping[str, Mapping[ClientId, int]]:
        """By name, the cuts to be voted on: the group of each agent."""
        return {}

    @property
    def is_before_vote(self) -> bool:
        """Whether all agents train one model until their next vote on groups."""
        return bool(self.proposed) and self.done < self.vote_after

    @property
    def question(self) -> bool:
        """Whether a vote is due."""
        return bool(self.proposed) and self.done >= self.vote_after


B = TypeVar("B", bound=Ballot)


def before_votes(setup: Setup) -> dict[str, Any]:
    """Fields of the state of a new run: the first vote is after a third of the rounds, and the trial is as long. Under secure sums
    an agent votes once, so there is no trial."""
    first = max(round(setup.rounds / 3), 1)
    tries = 2 * first < setup.rounds and setup.secure is None
    return {"vote_after": first if first < setup.rounds else 0, "tries": tries}


# -- the phase of a vote ------------------------------------------------------------------------------


def before_round(state: Ballot, view: View) -> Phase | None:
    """The vote or the trial that comes before the next round.

    Those vote for whom each average exists, also without their own model; an agent without samples to compare on abstains.
    """
    if not state.question or view.round >= view.rounds:
        trial = Phase(TRIAL, sizes={MODEL: state.start.size}, ends_round=False, draw=TRAIN)
        return trial if state.trial and not state.tried else None
    voters = [
        client
        for client in view.present
        if len(averaged(state, client)) == len(state.proposed)
        and state.shares.get(client, {}).get(KEY, 0.0) < 1.0
    ]
    numbers = {
        name: Expected(len(state.proposed), least, LARGEST, required=False)
        for name, least in ((GAIN, -LARGEST), (VARIANCE, 0.0))
    }
    return Phase(VOTE, tuple(voters), ends_round=False, may_be_empty=True, numbers=numbers)


def on_groups(state: Ballot, phase: Phase, order: Order, client: ClientId) -> Order:
    """The order of a round, a trial or a vote: until the last vote agents hold samples back. An agent without a group trains the
    one model on trial, for nobody."""
    if not state.proposed:
        return order
    numbers: dict[str, Any] = {**order.numbers, HOLD_BACK: 1}
    if phase.name == TRAIN:
        return replace(order, numbers=numbers)
    keys = averaged(state, client)
    if phase.name == VOTE:
        keys = (KEY, *keys)
        shares = state.shares.get(client, {})
        numbers[SHARE] = [shares.get(key, 0.0) for key in keys]
        numbers |= {HOME: AT_HOME} if state.trial else {}
    return replace(order, models=keys or (KEY,), cluster=None, numbers=numbers)


def keys_of(state: Ballot, client: ClientId) -> tuple[str, ...]:
    """The keys of the averages of a client's groups, one for each cut that is proposed."""
    return tuple(
        f"{name}-{groups[client]}" for name, groups in state.proposed.items() if client in groups
    )


def averaged(state: Ballot, client: ClientId) -> tuple[str, ...]:
    """Those of the keys of a client's groups that have an average."""
    return tuple(key for key in keys_of(state, client) if key in state.averages)


def voted_on(job: Job, local: Local, client_state: ClientState) -> Report:
    """The report of a vote: by how much the losses under each average of the agent's groups are lower than under that of all.

    Each average is taken without the agent's own model, of which the order states the share. An average of nothing else is the
    agent's own model.
    """
    held = job.held_back
    weight = min(job.numbers[CAP], local.examples) if CAP in job.numbers else 1
    shares = [float(share) * weight for share in job.numbers[SHARE]]
    if held is None or (any(shares) and LAST_MODEL not in client_state):
        return Report({}, local.examples)
    own = client_state.get(COUNTED, client_state.get(LAST_MODEL, job.models[0]))
    losses = []
    for average, share in zip(job.models, shares, strict=True):
        if share >= 1.0:
            average = own
        elif share > 0:
            average = combine([(average, 1 / (1 - share)), (own, -share / (1 - share))])
        if HOME in job.numbers:
            average = local.train(average, Drill(epochs=job.numbers[HOME], at_home=True)).end
        losses.append(held.losses(average))
    of_all, *of_groups = losses
    apart = [difference(of_all, one, held.units()) for one in of_groups]
    numbers = {GAIN: [gain for gain, _ in apart], VARIANCE: [variance for _, variance in apart]}
    return Report({}, local.examples, numbers)


# -- on the server ------------------------------------------------------------------------------------


def counting_in_groups(state: Ballot, client: ClientId, terms: Terms) -> Terms:
    """The terms of a report to the model of all; in the last round before the first vote it counts in its groups too."""
    if not state.is_before_vote or state.done + 1 < state.vote_after or state.trial:
        return terms
    keys = keys_of(state, client)
    return (
        *terms,
        *[replace(one, key=key, base=one.started_from) for one in terms for key in keys],
    )


def after_round(state: B, sums: Sums, reports: Reports) -> B:
    """The state after one more round; after the last one before the first vote it has the averages of all groups, and each
    agent's share in its own ones, unless the rule looks at single reports: then no share is known.

    Args:
        state: after the round, but for this.
        sums: of the round, the one of all agents under `KEY`.
        reports: of the round.
    """
    after = replace(state, done=state.done + 1, tried=False)
    if not state.is_before_vote or after.is_before_vote or state.trial:
        return after
    members: dict[str, dict[ClientId, float]] = {KEY: {}}
    for client, report in reports:
        for key in (KEY, *keys_of(state, client)):
            members.setdefault(key, {})[client] = samples_counted(report)
    averages = {}
    shares: dict[ClientId, dict[str, float]] = {}
    for key, weights in sorted(members.items()):
        total = sums.weight(key)
        if total <= 0:
            continue
        if key != KEY:
            averages[key] = sums.mean(key, otherwise=state.models[0])
        for client, weight in zip(
            weights, fair_weights([*weights.values()], sums.average.share), strict=True
        ):
            shares.setdefault(client, {})[key] = weight / total
    return replace(after, averages=averages, shares={} if sums.average.single else shares)


def elected(state: B, reports: Reports, tested: Collection[str]) -> tuple[B, str]:
    """The state with the outcome of a vote on groups, and the cut that serves the agents best; "" if none does. After the first
    vote this cut is on trial.

    Groups must serve the fleet better than one model, and none of them may lose beyond chance: groups cannot be made for some
    agents alone, and those whom the others help would be left behind.

    Args:
        state: before.
        reports: of the vote.
        tested: cuts of what a test has found to differ: for them more votes for than against are enough for a trial.
    """
    outcomes = outcomes_of(reports, [*state.proposed.values()])
    when = f"after {AT_HOME} epochs at home " if state.trial else ""
    helpful = {}
    answers, facts = [], {}
    for (name, groups), outcome in zip(state.proposed.items(), outcomes, strict=True):
        enough = state.trial or name in tested
        is_for_most = not state.trial or 2 * outcome.better > outcome.voters
        if outcome.z > (0.0 if enough else SURE) and is_for_most and not outcome.harms:
            helpful[name] = outcome.gain
        count = len(set(groups.values()))
        what = f"{count} groups" if name == CLUSTERS else f"{count} groups by {name}"
        answers.append(
            f"vote after round {state.done}: {when}{what} {'serve' if name in helpful else 'do not serve'} the agents better "
            f"than one model ({counts(outcome)})"
        )
        facts[f"{name} on trial" if state.trial else name] = dict(vars(outcome))
    best = max(helpful, key=lambda name: helpful[name], default="")
    after = replace(
        state,
        answers=(*state.answers, *answers),
        outcomes={**state.outcomes, **facts},
        trial=best if state.tries and not state.trial else "",
    )
    if not after.trial:
        return after, best
    keys = sorted({f"{best}-{group}" for group in state.proposed[best].values()})
    averages = {key: state.averages.get(key, state.models[0]) for key in keys}
    return replace(after, vote_after=2 * state.vote_after, averages=averages, shares={}), best


def standing(state: B, name: str) -> B:
    """The state after a vote on groups: those of the cut that stands continue from their own averages, or all from one model."""
    models = state.models[:1]
    if name:
        count = max(state.proposed[name].values()) + 1
        models = tuple(state.averages.get(f"{name}-{k}", models[0]) for k in range(count))
    return replace(state, vote_after=0, trial="", averages={}, shares={}, models=models)


def outcomes_of(reports: Reports, cuts: Sequence[Mapping[ClientId, int]]) -> list[VoteOutcome]:
    """What the agents voted in each comparison.

    Args:
        reports: of the vote.
        cuts: of each comparison, the group of each agent. An agent that was forgotten since has none.
    """
    votes = [
        (client, report.numbers)
        for client, report in reports
        if {GAIN, VARIANCE} <= report.numbers.keys()
    ]
    return [
        counted(
            [(vote[GAIN][place], vote[VARIANCE][place]) for _, vote in votes],
            [cut.get(client, -1) for client, _ in votes],
        )
        for place, cut in enumerate(cuts)
    ]


def counts(outcome: VoteOutcome) -> str:
    """An outcome in a sentence."""
    text = f"{outcome.better} of {outcome.voters} gain, z {outcome.z:.2f}"
    return f"{text}; a group loses, z {outcome.least:.2f}" if outcome.harms else text


class Voting(ManyModels[B], Generic[B]):
    """Puts votes and trials between the rounds of the method that comes after it in the order of bases."""

    @abstractmethod
    def tested(self, state: B) -> Collection[str]:
        """The cuts of what a test has found to differ, as `elected` takes them."""

    @abstractmethod
    def stands(self, state: B, name: str) -> B:
        """The state in which groups of this cut, or all agents for "", continue from their own average."""

    def plan(self, state: B, view: View) -> Phase:
        return before_round(state, view) or super().plan(state, view)

    def order(self, state: B, phase: Phase, client: ClientId) -> Order:
        if phase.name in (TRIAL, VOTE):
            return on_groups(state, phase, self.serve(state, client), client)
        order = super().order(state, phase, client)
        return on_groups(state, phase, order, client) if phase.name == TRAIN else order

    def model(self, state: B, key: str) -> Vector:
        return state.averages[key] if key in state.averages else super().model(state, key)

    def terms(self, state: B, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name == VOTE:
            return ()
        if phase.name == TRIAL:
            return tuple(
                term for key in averaged(state, client) for term in sample_term(report, key)
            )
        terms = super().terms(state, phase, client, report)
        if not state.is_before_vote:
            return terms
        of_all = tuple(replace(term, key=KEY, base=term.started_from) for term in terms)
        return counting_in_groups(state, client, of_all)

    def fold(self, state: B, phase: Phase, sums: Sums, reports: Reports) -> B:
        if phase.name == TRIAL:
            averages = {key: sums.mean(key, otherwise=one) for key, one in state.averages.items()}
            return replace(state, averages=averages, tried=True)
        if phase.name != VOTE:
            return super().fold(state, phase, sums, reports)
        after, name = elected(state, reports, self.tested(state))
        return after if after.trial else self.stands(after, name)
