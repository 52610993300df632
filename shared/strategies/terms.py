"""How a report counts in weighted means: what lets a fold take reports one at a time, in any order, on several machines.

A method whose round is a weighted mean per cluster describes each report by its terms (`Strategy.terms`), and makes its
new state from the means (`Strategy.fold_means`). The coordinator, or an aggregator before it, can then add each vector to a sum
as it arrives, instead of keeping it until the phase is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from covey.shared.numerics.averages import Average, fair_weights
from covey.shared.numerics.vectors import Vector


@dataclass(frozen=True)
class Term:
    """One vector of a report, as it counts in one mean."""

    key: str  # of the mean: usually the key of a cluster's model
    vector: str  # the name of the vector in the report
    weight: float  # >= 0

    # How much of the report belongs to this mean, for methods whose reports count in several: rules
    # that replace the mean use it. None: a report counts in one mean alone.
    share: float | None = None


Pairs = list[tuple[Vector, float]]  # (vector, weight) under one key
Terms = tuple[Term, ...]  # of one report; none for a report that does not count


def fair_terms(reports: Sequence[Terms], share: float | None) -> list[Terms]:
    """The terms of all reports of a phase, with the weights that `Average.mean` gives them."""
    weights: dict[str, list[float]] = {}
    for terms in reports:
        for term in terms:
            weights.setdefault(term.key, []).append(term.weight)
    fair = {key: iter(fair_weights(claimed, share)) for key, claimed in weights.items()}
    return [
        tuple(replace(term, weight=next(fair[term.key])) for term in terms) for terms in reports
    ]


class Means(Protocol):
    """The means of a phase by key."""

    def mean(self, key: str, otherwise: Vector) -> Vector:
        """The mean (d,) under a key; `otherwise` where nothing with a positive weight counts."""

    def count(self, key: str) -> int:
        """The number of vectors that count under a key."""


class BatchMeans:
    """The means of vectors that are all at hand, by any rule.

    With the rule "mean" they have the bytes of an `Accumulator` to which the same vectors were added.
    """

    def __init__(self, average: Average) -> None:
        self._average = average
        self._pairs: dict[str, Pairs] = {}
        self._shares: dict[str, list[float]] = {}  # of these pairs, if the terms have shares

    def add(self, terms: Terms, vectors: Mapping[str, Vector]) -> None:
        """Count the vectors of one report. They are kept until the means are made."""
        for term in terms:
            key = term.key
            vector = vectors[term.vector]
            self._pairs.setdefault(key, []).append((vector, term.weight))
            if term.share is not None:
                self._shares.setdefault(key, []).append(term.share)

    def mean(self, key: str, otherwise: Vector) -> Vector:
        """The average (d,) under a key by the rule; `otherwise` where nothing has a positive weight."""
        pairs = self._pairs.get(key, [])
        shares = self._shares.get(key)
        for _, weight in pairs:
            if weight > 0:
                return self._average.mean(pairs, shares)
        return otherwise

    def count(self, key: str) -> int:
        """The number of vectors that count under a key."""
        return len(self._pairs.get(key, []))


def describes_folds(kind: type) -> bool:
    """Whether the terms of a method hold for its folds.

    A class that replaces a fold of its base class, but not the terms, folds in a way that these terms do not describe.
    """
    terms_at = _defined_at(kind, "terms")
    folds_at = [_defined_at(kind, name) for name in ("fold", "aggregate")]
    return terms_at <= min(folds_at)


def _defined_at(kind: type, name: str) -> int:
    """How many classes up the method of this name is defined; a large number where it is nowhere."""
    classes = kind.__mro__
    for place, one in enumerate(classes):
        if name in vars(one):
            return place
    return len(classes)
