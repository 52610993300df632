"""Stale reports of buffered rounds: which model an agent began with, and its report carried over to the present one.

Reports that began with an older model are carried over before they are folded:

    w_i' = w + (1 + s)^-a * (w_i - w_i,start)

w is the cluster's model now, w_i what agent i trained, w_i,start the version that it began with and s the folds of
that model since then. The fold takes w_i' as if the agent had begun with w. If all agents have equally many samples, the mean of these is
FedBuff's update (Nguyen et al. 2022, algorithm 1, server learning rate 1). Our deviation: FedBuff's mean is uniform, ours
counts samples. Robust rules and clipping see the same steps. A fresh report (s = 0) is folded as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.coordinator.engine.events import ANY, NONE, Reported
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import MODEL, ClientId, Phase, Strategy
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.phase_names import TRAIN
from covey.shared.strategies.reading import bases_of


@dataclass(frozen=True)
class Began:
    """What the agent of a stale report began with."""

    phase: Phase  # of its order
    keys: Sequence[str]  # of the models that the order named
    start: Callable[
        [str], Vector
    ]  # gives the model (d,) behind one of these keys, as the agent had it
    folds: int  # s: of that model since then


def fresh(
    scenario: Scenario, state: Any, client: ClientId, report: Report, began: Began | None
) -> Report:
    """The report as if its agent had begun with the present model; one that is not stale as it is."""
    if began is None:
        return report
    strategy = scenario.strategy
    key = started_from(strategy, state, began.phase, client=client, report=report, keys=began.keys)
    if key is None:
        return report
    share = staleness_weight(began.folds, scenario.rounds.staleness)
    return carried_over(report, began.start(key), strategy.model(state, key), share)


def started_from(
    strategy: Strategy[Any],
    state: Any,
    phase: Phase,
    *,
    client: ClientId,
    report: Report,
    keys: Sequence[str],
) -> str | None:
    """The key of the model that the agent began with: the only one of its order (`keys`), or the one that it chose."""
    if len(keys) == 1:
        return keys[0]
    order = strategy.order(state, phase, client)
    chosen = bases_of(strategy, order, strategy.terms(state, phase, client, report)).get(MODEL)
    return chosen if chosen in keys else None


def reported(
    strategy: Strategy[Any],
    state: Any,
    phase: Phase,
    *,
    client: ClientId,
    number: int,
    report: Report,
    keys: Sequence[str],
) -> Reported:
    """What the engine learns of the report of an own order, whose models have these keys."""
    if phase.name != TRAIN:  # an entry
        return Reported(client, number, phase=phase)
    buffer = strategy.buffer
    if buffer.cluster_of is None:
        cluster = strategy.assignment(state).get(client, 0)
    else:
        cluster = buffer.cluster_of(state, client, report)
    if buffer.ages_together:
        return Reported(client, number, cluster, ANY)
    key = started_from(strategy, state, phase, client=client, report=report, keys=keys)
    began_with = None if key is None else int(key) if key.isdecimal() else NONE
    return Reported(client, number, cluster, began_with)


def carried_over(report: Report, start: Vector, present: Vector, share: float) -> Report:
    """The report as if its agent had begun with the present model (d,); `share` is the weight by its staleness."""
    model = combine([(present, 1.0), (report.vectors[MODEL], share), (start, -share)])
    return replace(report, vectors={**report.vectors, MODEL: model})


def staleness_weight(staleness: int, exponent: float) -> float:
    """(1 + s)^-a: what a report counts after s folds of the model that it began with (Nguyen et al. 2022, section 5)."""
    weight: float = (1 + staleness) ** -exponent
    return weight
