"""The cards of a fleet: which are tested, what the tests find, and the cut of the fleet by its cards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from covey.extras.cards.kinship import Card, Kinship, shifts, unpacked, within_reach
from covey.shared.numerics.clustering import Labels, Matrix
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Reports
from covey.shared.strategies.bases.cut import (
    COUNTS,
    INPUTS,
    LEAST_CARDS,
    OF_CARDS,
    SQUARES,
    Chances,
    Classes,
    found,
)
from covey.shared.strategies.phase_names import CARD

MOST_CARDS = 1000  # of more a sample is tested


def sampled(reports: Reports) -> Reports:
    """The reports with cards; of more than `MOST_CARDS` a sample."""
    with_cards = [(client, report) for client, report in reports if CARD in report.vectors]
    drawn = generator(0, "cards").permutation(len(with_cards))[:MOST_CARDS]
    return [with_cards[i] for i in np.sort(drawn).tolist()]


def cards_of(reports: Reports) -> dict[ClientId, Card]:
    """The cards that came and fit each other: those with the usual number of classes."""
    cards = {}
    for client, report in reports:
        squares = report.numbers.get(SQUARES)
        card = unpacked(report.vectors[CARD], report.numbers[COUNTS], squares)
        if card is not None:
            cards[client] = card
    shapes = Counter(card.counts.shape for card in cards.values())
    [(usual, _)] = shapes.most_common(1) or [((), 0)]
    return {client: card for client, card in cards.items() if card.counts.shape == usual}


def tested(cards: Collection[Card]) -> Chances:
    """The chances of the three tests; () for fewer than four cards."""
    if len(cards) < LEAST_CARDS:
        return ()
    shown = shifts([*cards])
    return (shown.labels, shown.style, shown.concept)


def classes_of(cards: Collection[Card]) -> Classes:
    """How many samples the agents have of each class, and how many agents have any."""
    if not cards:
        return ()
    table = np.stack([card.counts.sum(axis=0) for card in cards])  # (N, C)
    samples, holders = table.sum(axis=0).astype(int), (table > 0).sum(axis=0)
    return tuple(zip(samples.tolist(), holders.tolist(), strict=True))


def tested_in(reports: Reports) -> tuple[dict[ClientId, Card], Chances, Classes]:
    """The cards in reports that are tested, the chances of the tests, and the classes of the agents."""
    cards = cards_of(sampled(reports))
    return cards, tested(cards.values()), classes_of(cards.values())


def card_distances(fleet: Kinship, basis: str, chances: Chances) -> Matrix:
    """Squared distances (n, n) of the rows of a fit."""
    return fleet.by_inputs(found(chances)) if basis == INPUTS else fleet.by_labels()


def cut_distances(fleet: Kinship, basis: str, chances: Chances) -> Matrix:
    """The distances (n, n) of the rows of a fit, as they are cut."""
    distances: Matrix = np.sqrt(within_reach(card_distances(fleet, basis, chances)))
    return distances


def card_labels(
    fleet: Kinship, basis: str, chances: Chances, min_group: int | None = None
) -> tuple[Labels, float]:
    """The group (n,) of each row of a fit, and the mean silhouette; all 0 where there is one."""
    rule = replace(OF_CARDS, min_group=min_group)
    tree, evidence = rule.tree(cut_distances(fleet, basis, chances), chances)
    return tree.labels, evidence[0] if evidence else 0.0


def groups_in(
    cards: Collection[Card], basis: str, chances: Chances, min_group: int | None = None
) -> int:
    """The number of groups that cards with their squares show."""
    labels, _ = card_labels(Kinship.of([*cards]), basis, chances, min_group)
    return int(labels.max()) + 1
