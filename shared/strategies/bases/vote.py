"""Votes of a fleet: whether the average of its group serves an agent better than that of all agents.

Each agent compares them on samples that it holds back (`HOLD_BACK`), both without its own model, which
weighs more in the smaller average: with it, groups drawn at random would win. It sends a mean difference
of losses and the variance of that mean; numerics/votes.py has the outcome.

An agent's vote for itself against the model of its cluster is another question and needs no phase: the
evaluation asks it (`evaluation.fallback`), with the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from covey.shared.numerics.averages import fair_weights
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.numerics.votes import LEAST, Outcome, counted, difference
from covey.shared.strategies.base import (
    CAP,
    COUNTED,
    HOLD_BACK,
    LARGEST,
    LAST_MODEL,
    VOTE,
    ClientId,
    ClientState,
    Expected,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Sums,
)
from covey.shared.strategies.bases.hard import Clustered
from covey.shared.strategies.bases.single import counted as samples_counted

# numbers of orders and reports of a vote
SHARE = "share"  # of the agent's own model in each average
GAIN = "gain"
VARIANCE = "variance"

Differences = list[tuple[float, float]]  # of each comparison: a mean difference and its variance


@dataclass(frozen=True)
class Ballot(Clustered):
    """The state of a method whose agents vote on averages of one round."""

    done: int = 0  # rounds that are complete
    question: str = ""  # the vote that is due; empty: none

    # for the vote: the averages of groups (d,) by their keys, and the share of an agent's own model in
    # each average that counts it
    averages: dict[str, Vector] = field(default_factory=dict)
    shares: dict[ClientId, dict[str, float]] = field(default_factory=dict)

    answers: tuple[str, ...] = ()  # of the votes, for people
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)  # by what was voted on


B = TypeVar("B", bound=Ballot)


def ballots(voters: Sequence[ClientId], comparisons: int) -> Phase:
    """The phase of a vote; an agent without samples to compare on abstains."""
    numbers = {
        GAIN: Expected(comparisons, -LARGEST, LARGEST, required=False),
        VARIANCE: Expected(comparisons, 0.0, LARGEST, required=False),
    }
    return Phase(VOTE, tuple(voters), {}, ends_round=False, may_be_empty=True, numbers=numbers)


def comparing(state: Ballot, order: Order, client: ClientId, keys: tuple[str, ...]) -> Order:
    """The order to compare the first of these averages with each of the others."""
    shares = state.shares.get(client, {})
    numbers = {HOLD_BACK: 1, SHARE: [shares.get(key, 0.0) for key in keys]}
    return replace(order, models=keys, cluster=None, numbers={**order.numbers, **numbers})


def ballot(differences: Differences, local: Local) -> Report:
    """The report of a vote."""
    if not differences:
        return Report({}, local.examples)
    gains, variances = zip(*differences, strict=True)
    return Report({}, local.examples, {GAIN: list(gains), VARIANCE: list(variances)})


def group_or_all(job: Job, local: Local, client_state: ClientState) -> Differences:
    """Losses under the average of all agents minus those under each average of the agent's group.

    Each average is taken without the agent's own model. An average of nothing else is the agent's own model.
    """
    held = job.held_back
    weight = min(job.numbers[CAP], local.examples) if CAP in job.numbers else 1
    shares = [float(share) * weight for share in job.numbers[SHARE]]
    if held is None or held.examples < LEAST or (any(shares) and LAST_MODEL not in client_state):
        return []
    own = client_state.get(COUNTED, client_state.get(LAST_MODEL, job.models[0]))
    losses = []
    for average, share in zip(job.models, shares, strict=True):
        if share >= 1.0:
            average = own
        elif share > 0:
            average = combine([(average, 1 / (1 - share)), (own, -share / (1 - share))])
        losses.append(held.losses(average))
    return [difference(losses[0], of_group) for of_group in losses[1:]]


def with_averages(
    state: B,
    common: str,
    keys_of: Callable[[ClientId], tuple[str, ...]],
    sums: Sums,
    reports: Reports,
) -> B:
    """The state with the averages of all groups, and each agent's share in its own ones.

    Args:
        state: before the vote.
        common: the key of the average of all agents, which is the present model of all.
        keys_of: the keys of the averages of an agent's groups.
        sums: of the round, under these keys.
        reports: of the round.
    """
    members: dict[str, dict[ClientId, float]] = {common: {}}
    for client, report in reports:
        for key in (common, *keys_of(client)):
            members.setdefault(key, {})[client] = samples_counted(report)
    averages = {}
    shares: dict[ClientId, dict[str, float]] = {}
    for key, weights in sorted(members.items()):
        total = sums.weight(key)
        if total <= 0:
            continue
        if key != common:
            averages[key] = sums.mean(key, otherwise=state.models[0])
        for client, weight in zip(
            weights, fair_weights([*weights.values()], sums.average.share), strict=True
        ):
            shares.setdefault(client, {})[key] = weight / total
    return replace(state, averages=averages, shares=dict(sorted(shares.items())))


def can_vote(state: Ballot, client: ClientId, common: str, keys: Sequence[str]) -> bool:
    """Whether each average exists that the client compares, also without its own model."""
    own = state.shares.get(client, {})
    return bool(keys) and all(key in state.averages for key in keys) and own.get(common, 0.0) < 1.0


def outcomes_of(reports: Reports, comparisons: int) -> list[Outcome]:
    """What the agents voted in each comparison."""
    votes = [report.numbers for _, report in reports if {GAIN, VARIANCE} <= report.numbers.keys()]
    return [
        counted([(vote[GAIN][place], vote[VARIANCE][place]) for vote in votes])
        for place in range(comparisons)
    ]


def count(outcome: Outcome) -> str:
    """An outcome in a sentence."""
    return f"{outcome.better} of {outcome.voters} gain, z {outcome.z:.2f}"


def facts(outcome: Outcome) -> dict[str, Any]:
    """An outcome in the record."""
    return dict(vars(outcome))
