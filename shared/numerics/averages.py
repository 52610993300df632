"""Combining reports of which some may be false: caps, clipping, and rules that replace the mean.

Everything here is pure numpy over blocks. Weighted means and sums of reports are exact sums
(`numerics.exact_sum`), so the same reports give the same bytes in any order. Everything else runs in
float64, in the order given (ascending agent id).

The "step" of a report is the difference between a reported vector and the vector that it started
from (its base), or the vector itself where it is a gradient and has no base.

Sources. Trimmed mean and median: Yin et al. 2018, Byzantine-Robust Distributed Learning. Krum and
Multi-Krum: Blanchard et al. 2017, Machine Learning with Adversaries. Geometric median: Pillutla et
al. 2022, Robust Aggregation for Federated Learning (Weiszfeld's iteration).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.exact_sum import weighted_mean
from covey.shared.numerics.vectors import Vector, blocks, combine, release

Rule = Literal["mean", "trimmed_mean", "median", "krum", "multi_krum", "geometric_median"]
Pairs = Sequence[tuple[Vector, float]]
Matrix = npt.NDArray[np.float64]

TILE = 1 << 20  # values of all reports together in one block
# values of an inner product that the linear algebra library does not divide among threads: the sum is then the same with
# any number of cores, and no worker waits for a thread whose core is busy with training
OF_ONE_THREAD = 1 << 13
MIN_REPORTS = 3  # with fewer reports no rule can find an outlier
WEISZFELD = 50  # iterations towards the geometric median
STILL = 1e-4  # of the typical distance: a centre that moves less has arrived


def lower_median(values: Sequence[float]) -> float:
    """The middle value, or the smaller one of two middle values.

    The usual median of two values is their mean, which one of two reports could put anywhere.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("the median of no values does not exist")
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def most_samples(claimed: Sequence[int], times_median: float | None) -> int | None:
    """The largest number of examples that a report may count with; None: any number.

    Args:
        claimed: the numbers of examples that the reports of a cohort claim.
        times_median: the limit as a multiple of the lower median of the positive claims.
    """
    positive = [float(examples) for examples in claimed if examples > 0]
    if times_median is None or not positive:
        return None
    return math.ceil(times_median * lower_median(positive))


def largest_weight(weights: Sequence[float], share: float) -> float:
    """The largest weight that a report may have in a mean, so that no report owns it.

    No report has more than `share` of the sum of all weights after the limit, or than twice an equal share where that is
    more. Weights within the limit stay as they are, and the order of the weights does not matter.

    Args:
        weights: of the reports of one mean, >= 0.
        share: between 0 and 1.
    """
    ordered = sorted((weight for weight in weights if weight > 0), reverse=True)
    if not ordered:
        return math.inf
    share = max(share, 2.0 / len(ordered))
    limit = ordered[0]
    for larger, weight in enumerate(ordered):  # how many weights are larger than the limit
        others = 1.0 - share * larger
        if others <= 0:
            break
        limit = share * math.fsum(ordered[larger:]) / others
        if weight <= limit:
            break
    return limit


def fair_weights(weights: Sequence[float], share: float | None) -> list[float]:
    """The weights, none of them above `largest_weight`; as they are if `share` is None."""
    if share is None:
        return list(weights)
    limit = largest_weight(weights, share)
    return [min(weight, limit) for weight in weights]


def step_norm(vector: Vector, base: Vector | None) -> float:
    """The Euclidean norm of a vector's step from its base (d,), in float64.

    Without a base it is the norm of the vector. All values count, buffers too: otherwise a false
    report could hide in them.
    """
    total: list[float] = []
    for span in blocks(vector.size):
        step = vector[span].astype(np.float64)
        if base is not None:
            step -= base[span]
        for few in blocks(step.size, OF_ONE_THREAD):
            part = step[few]
            total.append(float(part @ part))
        release(vector)
    return math.sqrt(math.fsum(total))


def clipped(vector: Vector, base: Vector | None, limit: float, norm: float | None = None) -> Vector:
    """The vector (d,) with its step shortened to `limit`, if the step is longer.

    Args:
        vector: the reported vector (d,).
        base: the vector that it started from (d,); None: the vector is a step.
        limit: the largest norm of the step.
        norm: `step_norm(vector, base)` if the caller has it already.
    """
    length = step_norm(vector, base) if norm is None else norm
    if length <= limit:
        return vector
    share = limit / length
    if base is None:
        return combine([(vector, share)])
    return combine([(base, 1.0 - share), (vector, share)])


@dataclass(frozen=True)
class Average:
    """The average that a fold uses: the weighted mean, or a rule that replaces it.

    Every rule but the mean counts all reports alike, whatever number of examples they claim. Fewer
    than three reports are averaged alike by every rule, because none can be called an outlier.
    """

    rule: Rule = "mean"
    trim: float = 0.2  # share of the reports dropped on each side of a coordinate, rounded up
    liars: float = 0.2  # share of the reports that Krum expects to be false, rounded up
    share: float | None = None  # of the weights, that the mean gives one report; see `fair_weights`

    @property
    def single(self) -> bool:
        """Whether the rule looks at single reports: their sum is not enough."""
        return self.rule != "mean"

    @property
    def picks(self) -> bool:
        """Whether the rule picks whole reports."""
        return self.rule in ("krum", "multi_krum")

    def mean(self, pairs: Pairs, shares: Sequence[float] | None = None) -> Vector:
        """The average of vectors.

        Args:
            pairs: (vector (d,), weight >= 0). Vectors without weight do not count.
            shares: how much of each report belongs to this average, for methods whose reports
                count in several clusters. Only rules use it; the mean uses the weights, without
                what is more than a fair share.

        Raises:
            ValueError: the weights sum to zero, or Krum got shares.
        """
        if not self.single:
            fair = fair_weights([weight for _, weight in pairs], self.share)
            return weighted_mean([(vector, fair[i]) for i, (vector, _) in enumerate(pairs)])
        vectors: list[Vector] = []
        counted: list[float] = []
        for place, (vector, weight) in enumerate(pairs):
            if weight > 0:
                vectors.append(vector)
                counted.append(1.0 if shares is None else shares[place])
        if not vectors:
            raise ValueError(f"an average needs a positive weight, {len(pairs)} vectors have none")
        return self._robust(vectors, np.array(counted), soft=shares is not None)

    def _robust(self, vectors: Sequence[Vector], weights: Matrix, *, soft: bool) -> Vector:
        if len(vectors) < MIN_REPORTS:
            return weighted_mean(list(zip(vectors, weights.tolist(), strict=True)))
        match self.rule:
            case "trimmed_mean":
                return trimmed_mean(vectors, weights, self._cut(weights, soft=soft))
            case "median":
                return median(vectors, weights)
            case "geometric_median":
                return geometric_median(vectors, weights)
        if soft:
            raise ValueError(
                f"{self.rule} picks whole reports, and here reports belong to several groups"
            )
        best = krum_order(vectors, self.liars)
        sound = len(vectors) - expected(self.liars, len(vectors), len(vectors) - 1)
        count = 1 if self.rule == "krum" else sound
        return weighted_mean([(vectors[place], 1.0) for place in sorted(best[:count])])

    def _cut(self, weights: Matrix, *, soft: bool) -> float:
        """The weight that is dropped on each side; that of whole reports where each counts as one."""
        if soft:
            return self.trim * float(weights.sum())
        count = len(weights)
        return float(expected(self.trim, count, (count - 1) // 2))


MEAN = Average()


def expected(share: float, count: int, most: int) -> int:
    """How many of `count` reports a share means, rounded up: a fifth of three is one.

    At most `most`.
    """
    # the small subtraction keeps 0.2 * 15 at 3, where floats give a little more
    rounded_up = math.ceil(share * count - 1e-9)
    return min(rounded_up, most)


def trimmed_mean(vectors: Sequence[Vector], weights: Matrix, cut: float) -> Vector:
    """The weighted mean (d,) of each coordinate without its smallest and its largest values.

    Args:
        vectors: n vectors (d,).
        weights: of the vectors (n,).
        cut: the weight that is dropped on each side.
    """
    total = float(weights.sum())
    result = np.empty(vectors[0].shape, np.float32)
    for span, rows in _tiles(vectors):
        order = np.argsort(rows, axis=0, kind="stable")
        values = np.take_along_axis(rows, order, axis=0)
        own = weights[order]
        reached = np.cumsum(own, axis=0)
        # the part of each value's weight that lies between `cut` and `total - cut`
        counted = np.maximum(np.minimum(reached, total - cut) - np.maximum(reached - own, cut), 0.0)
        used = np.where(counted > 0, values, 0.0)
        result[span] = (counted * used).sum(axis=0) / counted.sum(axis=0)
    return result


def median(vectors: Sequence[Vector], weights: Matrix) -> Vector:
    """The weighted middle value (d,) of each coordinate; the mean of two middle ones."""
    half = float(weights.sum()) / 2
    result = np.empty(vectors[0].shape, np.float32)
    for span, rows in _tiles(vectors):
        order = np.argsort(rows, axis=0, kind="stable")
        values = np.take_along_axis(rows, order, axis=0)
        reached = np.cumsum(weights[order], axis=0)
        lower = np.argmax(reached >= half * (1 - 1e-12), axis=0)
        upper = np.argmax(reached > half * (1 + 1e-12), axis=0)
        columns = np.arange(values.shape[1])
        result[span] = (values[lower, columns] + values[upper, columns]) / 2
    return result


def geometric_median(vectors: Sequence[Vector], weights: Matrix) -> Vector:
    """The point (d,) with the least weighted sum of distances to the vectors.

    Weiszfeld's iteration from their median.

    Args:
        vectors: n vectors (d,).
        weights: of the vectors (n,).
    """
    centre = median(vectors, weights)
    for _ in range(WEISZFELD):
        apart = np.array([step_norm(vector, centre) for vector in vectors])
        typical = lower_median(apart.tolist())
        least = max(1e-3 * typical, 1e-12)  # a vector at the centre must not take all the weight
        pull = weights / np.maximum(apart, least)
        shares = (pull / pull.sum()).tolist()
        following = combine(list(zip(vectors, shares, strict=True)))
        moved = step_norm(following, centre)
        centre = following
        if moved <= STILL * typical:
            break
    return centre


def krum_order(vectors: Sequence[Vector], liars: float) -> list[int]:
    """The places of the vectors, the one with the closest neighbours first.

    A vector's score is the sum of squared distances to its n - f - 2 nearest others, where f is
    the number of expected liars.

    Args:
        vectors: n vectors (d,).
        liars: the share of expected liars.
    """
    n = len(vectors)
    neighbours = max(n - expected(liars, n, max((n - 3) // 2, 0)) - 2, 1)
    table = squared_distances(vectors)
    np.fill_diagonal(table, math.inf)
    scores = np.sort(table, axis=1)[:, :neighbours].sum(axis=1)
    return [int(place) for place in np.argsort(scores, kind="stable")]


def squared_distances(vectors: Sequence[Vector]) -> Matrix:
    """Squared Euclidean distances (n, n) of n vectors (d,).

    Coordinates are centred first, so that near vectors lose no digits.
    """
    count = len(vectors)
    table = np.zeros((count, count))
    for _, rows in _tiles(vectors):
        centred = rows - np.median(rows, axis=0)
        products = centred @ centred.T
        squares = products.diagonal()
        table += squares[:, None] + squares[None, :] - 2 * products
    return np.maximum(table, 0.0)


def _tiles(vectors: Sequence[Vector]) -> Iterator[tuple[slice, Matrix]]:
    """Blocks of coordinates with the values (n, width) of all vectors there, in float64."""
    for span in blocks(vectors[0].size, max(TILE // len(vectors), 1024)):
        rows = [vector[span].astype(np.float64) for vector in vectors]
        yield span, np.stack(rows)
        release(*vectors)
