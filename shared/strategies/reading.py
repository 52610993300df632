"""What others do with a method: read reports for its fold, and fold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.strategies.base import GRADIENT, MODEL, ClientId, Order, Phase, Reports, Strategy
from covey.shared.strategies.server import Moving, Served
from covey.shared.strategies.sums import Sums, SumsAtHand, Terms

S = TypeVar("S")


Orders = Mapping[ClientId, Order]


def is_whole(strategy: Strategy[Any], order: Order) -> bool:
    """Whether the fold gets the vectors of the report that answers this order."""
    return strategy.facts.individual or order.whole


def bases_of(strategy: Strategy[Any], order: Order, terms: Terms) -> dict[str, str]:
    """The key of the model that each vector started from, by the vector's name; "" for a gradient.

    Clipping shortens the difference between the two. A model that is no difference to any model of its order has the key
    "" too. Vectors that are only compared with others have none. `terms` are those of the report that answers the order.
    """
    bases = {term.vector: term.started_from for term in terms}
    if is_whole(strategy, order):
        usual = {MODEL: order.models[0] if order.models else "", GRADIENT: ""}
        bases = {**usual, **bases}
    return bases


def sums_of(
    strategy: Strategy[Any], state: Any, phase: Phase, reports: Reports, average: Average = MEAN
) -> Sums:
    """The sums of reports that are all at hand, by the scenario's rule."""
    sums = SumsAtHand(average)
    for client, report in reports:
        sums.add(strategy.terms(state, phase, client, report), report.vectors)
    return sums


def fold(
    strategy: Strategy[S],
    state: S,
    phase: Phase,
    *,
    sums: Sums,
    reports: Reports,
    orders: Orders,
    parameters: int | None = None,
) -> S:
    """The strategy's state after a phase, whose models the server's optimiser has moved.

    Args:
        strategy: the method.
        state: before the phase.
        phase: with the ids of those who were invited.
        sums: of all reports.
        reports: of the phase; those with vectors that the fold does not need may have them.
        orders: that they answer.
        parameters: P, the values at the front of a model that are trained; None: all of them.
    """
    known = [
        (client, report if is_whole(strategy, orders[client]) else replace(report, vectors={}))
        for client, report in reports
    ]
    server = strategy.server
    if server is None or server.takes_the_mean:
        return strategy.fold(state, phase, sums, known)
    if not isinstance(state, Moving):
        kind = type(state).__name__
        raise TypeError(f"strategy.server: {kind} has no moments; make it a subclass of Moving")
    served = Served(sums, server, state.moments, parameters)
    after: Any = strategy.fold(state, phase, served, known)
    moved: S = replace(after, moments=served.moments)
    return moved


def folded(
    strategy: Strategy[S],
    state: S,
    phase: Phase,
    *,
    reports: Reports,
    average: Average = MEAN,
    parameters: int | None = None,
) -> S:
    """The strategy's state after a phase whose reports are all at hand."""
    return fold(
        strategy,
        state,
        phase,
        sums=sums_of(strategy, state, phase, reports, average),
        reports=reports,
        orders={client: strategy.order(state, phase, client) for client, _ in reports},
        parameters=parameters,
    )
