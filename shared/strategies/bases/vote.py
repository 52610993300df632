"""Votes of a fleet: whether the average of its group serves an agent better than that of all agents.

Each agent compares them on samples that it holds back (`HOLD_BACK`), both without its own model, which
weighs more in the smaller average: with it, groups drawn at random would win. It sends a mean difference
of losses and the variance of that mean; numerics/votes.py has the outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from covey.shared.numerics.averages import fair_weights
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.numerics.votes import VoteOutcome, counted, difference
from covey.shared.strategies.base import (
    CAP,
    HOLD_BACK,
    LARGEST,
    ClientId,
    Expected,
    Order,
    Phase,
    Reports,
    Sums,
    Terms,
    View,
)
from covey.shared.strategies.bases.hard import Clustered
from covey.shared.strategies.bases.single import KEY
from covey.shared.strategies.bases.single import counted as samples_counted
from covey.shared.strategies.client_half import COUNTED, LAST_MODEL, ClientState, Job, Local, Report
from covey.shared.strategies.expected import A_COUNT, ASKED, SHARES
from covey.shared.strategies.phase_names import VOTE

MOST_AVERAGES = 3  # of all agents, and of the groups of two cuts
CLUSTERS = "clusters"  # name of the cut of a method that makes one

# numbers of orders and reports of a vote
SHARE = "share"  # of the agent's own model in each average
VOTE_NUMBERS = {  # of an order for a vote on groups
    HOLD_BACK: ASKED,
    SHARE: replace(SHARES, length=-MOST_AVERAGES),
    CAP: A_COUNT,
}
GAIN = "gain"
VARIANCE = "variance"

Differences = list[tuple[float, float]]  # of each comparison: a mean difference and its variance


@dataclass(frozen=True)
class Ballot(Clustered):
    """The state of a method whose agents vote on averages of one round."""

    vote_after: int = 0  # rounds of one model for all, before a vote on groups; 0: none is to come
    done: int = 0  # rounds that are complete
    question: bool = False  # a vote is due

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
        """Whether all agents train one model until their vote on groups."""
        return bool(self.proposed) and self.done < self.vote_after


B = TypeVar("B", bound=Ballot)


# -- the phase of a vote ------------------------------------------------------------------------------


def ballots(voters: Sequence[ClientId], comparisons: int) -> Phase:
    """The phase of a vote; an agent without samples to compare on abstains."""
    numbers = {
        GAIN: Expected(comparisons, -LARGEST, LARGEST, required=False),
        VARIANCE: Expected(comparisons, 0.0, LARGEST, required=False),
    }
    return Phase(VOTE, tuple(voters), {}, ends_round=False, may_be_empty=True, numbers=numbers)


def ballots_on_groups(state: Ballot, view: View) -> Phase:
    """The phase of a vote on groups, of those for whom each average exists, also without their own model."""
    voters = []
    for client in view.present:
        keys = keys_of(state, client)
        averages = len(keys) == len(state.proposed) and all(key in state.averages for key in keys)
        if averages and state.shares.get(client, {}).get(KEY, 0.0) < 1.0:
            voters.append(client)
    return ballots(voters, len(state.proposed))


def on_groups(state: Ballot, order: Order, client: ClientId) -> Order:
    """The order to compare the average of all with those of the client's groups."""
    keys = (KEY, *keys_of(state, client))
    shares = state.shares.get(client, {})
    numbers = {HOLD_BACK: 1, SHARE: [shares.get(key, 0.0) for key in keys]}
    return replace(order, models=keys, cluster=None, numbers={**order.numbers, **numbers})


def keys_of(state: Ballot, client: ClientId) -> tuple[str, ...]:
    """The keys of the averages of a client's groups, one for each cut."""
    return tuple(
        f"{name}-{groups[client]}" for name, groups in state.proposed.items() if client in groups
    )


def ballot(differences: Differences, local: Local) -> Report:
    """The report of a vote."""
    if not differences:
        return Report({}, local.examples)
    gains, variances = zip(*differences, strict=True)
    return Report({}, local.examples, {GAIN: list(gains), VARIANCE: list(variances)})


def voted_on(job: Job, local: Local, client_state: ClientState) -> Report:
    """The report of a vote on groups."""
    return ballot(group_or_all(job, local, client_state), local)


def group_or_all(job: Job, local: Local, client_state: ClientState) -> Differences:
    """Losses under the average of all agents minus those under each average of the agent's group.

    Each average is taken without the agent's own model. An average of nothing else is the agent's own model.
    """
    held = job.held_back
    weight = min(job.numbers[CAP], local.examples) if CAP in job.numbers else 1
    shares = [float(share) * weight for share in job.numbers[SHARE]]
    if held is None or (any(shares) and LAST_MODEL not in client_state):
        return []
    own = client_state.get(COUNTED, client_state.get(LAST_MODEL, job.models[0]))
    losses = []
    for average, share in zip(job.models, shares, strict=True):
        if share >= 1.0:
            average = own
        elif share > 0:
            average = combine([(average, 1 / (1 - share)), (own, -share / (1 - share))])
        losses.append(held.losses(average))
    return [difference(losses[0], of_group, held.units()) for of_group in losses[1:]]


# -- on the server ------------------------------------------------------------------------------------


def counting_in_groups(state: Ballot, client: ClientId, terms: Terms) -> Terms:
    """The terms of a report to the model of all; in the last round before the vote it counts in its groups too."""
    if not state.is_before_vote or state.done + 1 < state.vote_after:
        return terms
    keys = keys_of(state, client)
    return (
        *terms,
        *[replace(one, key=key, base=one.started_from) for one in terms for key in keys],
    )


def after_round(state: B, sums: Sums, reports: Reports) -> B:
    """The state after one more round; after the last one before the vote it has the averages of all groups, and each agent's
    share in its own ones.

    Args:
        state: after the round, but for this.
        sums: of the round, the one of all agents under `KEY`.
        reports: of the round.
    """
    after = replace(state, done=state.done + 1)
    if not state.is_before_vote or after.is_before_vote:
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
    in_order = dict(sorted(shares.items()))
    return replace(after, averages=averages, shares=in_order, question=True)


def elected(state: B, reports: Reports, tested: Collection[str]) -> tuple[B, str]:
    """The state with the outcome of a vote on groups, and the cut that serves the agents best; "" if none does.

    Groups must serve the fleet better than one model, and none of them may lose beyond chance: groups cannot be made for some
    agents alone, and those whom the others help would be left behind.

    Args:
        state: before.
        reports: of the vote.
        tested: cuts of what a test has found to differ: for them more votes for than against are enough.
    """
    outcomes = outcomes_of(reports, [*state.proposed.values()])
    helpful = {}
    answers = []
    for (name, groups), outcome in zip(state.proposed.items(), outcomes, strict=True):
        if (outcome.z > 0 if name in tested else outcome.is_sure) and not outcome.harms:
            helpful[name] = outcome.gain
        count = len(set(groups.values()))
        what = f"{count} clusters" if name == CLUSTERS else f"{count} groups by {name}"
        answers.append(
            f"vote after round {state.done}: {what} {'serve' if name in helpful else 'do not serve'} the agents better than "
            f"one model ({counts(outcome)})"
        )
    facts = {name: dict(vars(one)) for name, one in zip(state.proposed, outcomes, strict=True)}
    after = replace(
        state,
        question=False,
        answers=(*state.answers, *answers),
        outcomes={**state.outcomes, **facts},
    )
    return after, max(helpful, key=lambda name: helpful[name], default="")


def standing(state: B, name: str) -> B:
    """The state after a vote on groups: those of the cut that stands continue from their own averages, or all from one model."""
    models = state.models[:1]
    if name:
        count = max(state.proposed[name].values()) + 1
        models = tuple(state.averages.get(f"{name}-{k}", models[0]) for k in range(count))
    return replace(state, question=False, vote_after=0, averages={}, shares={}, models=models)


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
