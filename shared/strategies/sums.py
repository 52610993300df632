"""What a fold gets of reports: sums of their vectors, and of a few reports the vectors themselves.

A method names, for each report, the sums in which its vectors count (`Strategy.terms`), and makes its new state from the
sums (`Strategy.fold`). How a sum is made is no concern of the method: from vectors that are added as they arrive, by
aggregators, by a rule that compares single reports, or with noise. Each way gives the same bytes for the same reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.averages import MEAN, Average, fair_weights
from covey.shared.numerics.exact_sum import Sum, weighted_moved, weighted_sum
from covey.shared.numerics.vectors import Measured, Vector

# usual names of a report's vectors
MODEL = "model"
GRADIENT = "gradient"


@dataclass(frozen=True)
class Term:
    """One vector of a report, as it counts in one sum."""

    key: str  # of the sum: usually that of a cluster's model
    weight: float  # >= 0
    vector: str = MODEL  # its name in the report
    base: str | None = None  # key of the model it started from: None is `key`, "" a gradient
    span: tuple[int, int] | None = None  # start and stop of the part that counts; None: all of it

    # How much of the report belongs to this sum, for methods whose reports count in several: rules
    # that replace the mean use it. None: a report counts in one sum alone.
    share: float | None = None

    @property
    def started_from(self) -> str:
        """The key of the model that the vector started from; empty for a gradient."""
        return self.key if self.base is None else self.base

    def part(self, vectors: Mapping[str, Vector]) -> Vector:
        """The part of the report that the sum takes in."""
        vector = vectors[self.vector]
        return vector if self.span is None else vector[slice(*self.span)]

    def size(self, sizes: Mapping[str, int]) -> int:
        """The length of `part`, where the report's vectors have these lengths."""
        if self.span is None:
            return sizes[self.vector]
        start, stop = self.span
        return stop - start


Terms = tuple[Term, ...]  # of one report; none for a report that does not count


def count(sums: Accumulator, terms: Terms, vectors: Mapping[str, Vector]) -> None:
    """Add a report up, whose vectors may be measured."""
    for term in terms:
        part = term.part(vectors)
        known = None
        if isinstance(vectors, Measured) and part is vectors[term.vector]:
            known = vectors.peaks[term.vector]
        sums.add(term.key, part, term.weight, known)


Pairs = list[tuple[Vector, float]]  # (vector, weight) under one key


class Sums(Protocol):
    """The sums of a phase by key. One to which nothing with a positive weight was added is empty."""

    @property
    def average(self) -> Average:
        """The scenario's rule, for vectors that a method has at hand."""

    def mean(self, key: str, otherwise: Vector) -> Vector:
        """The average (d,) under a key; `otherwise`, the present model, where it is empty."""

    def moved(self, key: str, start: Vector, share: float) -> Vector:
        """start + share * (average - start) (d,), rounded once; `start` where the sum is empty."""

    def weight(self, key: str) -> float:
        """The sum of the weights under a key."""

    def count(self, key: str) -> int:
        """The number of vectors under a key."""


class Totals(Protocol):
    """Sums of vectors that nothing has changed, as those of masked integers must be."""

    def total(self, key: str) -> Sum:
        """The sum (d,) of weight * vector under a key, in float64: exact for integers, while it is below 2**53."""


def fair_terms(reports: Sequence[Terms], share: float | None) -> list[Terms]:
    """The terms of all reports of a phase, none with more than its fair share of a sum's weight."""
    weights: dict[str, list[float]] = {}
    for terms in reports:
        for term in terms:
            weights.setdefault(term.key, []).append(term.weight)
    fair = {key: iter(fair_weights(claimed, share)) for key, claimed in weights.items()}
    return [
        tuple(replace(term, weight=next(fair[term.key])) for term in terms) for terms in reports
    ]


class ExactSums:
    """Sums to which vectors were added one by one, here or by aggregators."""

    def __init__(self, sums: Accumulator, average: Average = MEAN) -> None:
        self._sums = sums
        self.average = average

    def mean(self, key: str, otherwise: Vector) -> Vector:
        return self._sums.mean(key, otherwise)

    def moved(self, key: str, start: Vector, share: float) -> Vector:
        return self._sums.moved(key, start, share)

    def total(self, key: str) -> Sum:
        return self._sums.total(key)

    def weight(self, key: str) -> float:
        return self._sums.weight(key)

    def count(self, key: str) -> int:
        return self._sums.count(key)


class SumsAtHand:
    """Sums of vectors that are all at hand, by any rule. They are read when a sum is asked for."""

    def __init__(self, average: Average = MEAN) -> None:
        self.average = average
        self._pairs: dict[str, Pairs] = {}
        self._shares: dict[str, list[float]] = {}  # of these pairs, if the terms have shares

    def add(self, terms: Terms, vectors: Mapping[str, Vector]) -> None:
        """Count the vectors of one report."""
        for term in terms:
            self._pairs.setdefault(term.key, []).append((term.part(vectors), term.weight))
            if term.share is not None:
                self._shares.setdefault(term.key, []).append(term.share)

    def mean(self, key: str, otherwise: Vector) -> Vector:
        if not self.weight(key):
            return otherwise
        return self.average.mean(self._pairs[key], self._shares.get(key))

    def moved(self, key: str, start: Vector, share: float) -> Vector:
        if not self.weight(key):
            return start
        if self.average.single:
            target = self.mean(key, otherwise=start)
            return weighted_sum([(start, 1.0 - share), (target, share)])
        weights = self._fair(key)
        pairs = [(vector, weights[i]) for i, (vector, _) in enumerate(self._pairs[key])]
        return weighted_moved(pairs, start, share)

    def total(self, key: str) -> Sum:
        sums = Accumulator()
        for vector, weight in self._pairs[key]:
            sums.add(key, vector, weight)
        return sums.total(key)

    def weight(self, key: str) -> float:
        return float(sum(map(Fraction, self._fair(key)), Fraction(0)))

    def count(self, key: str) -> int:
        return len(self._pairs.get(key, []))

    def _fair(self, key: str) -> list[float]:
        weights = [weight for _, weight in self._pairs.get(key, [])]
        return fair_weights(weights, self.average.share)
