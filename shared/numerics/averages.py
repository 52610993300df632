"""How reports are combined where some of them may lie: caps, clipping, and rules that stand in for the mean.

Everything here is pure numpy over blocks: sums run in float64, in the order given (ascending agent id), so that the
same reports give the same bytes. With the default settings an average is `shared.vectors.mean`, byte for byte.

A "step" of a report is the difference between a reported vector and the vector that it started from (its base), or
the vector itself where it is a gradient and has no base.

Sources: trimmed mean and median: Yin et al. 2018, Byzantine-Robust Distributed Learning; Krum and Multi-Krum:
Blanchard et al. 2017, Machine Learning with Adversaries; geometric median: Pillutla et al. 2022, Robust Aggregation
for Federated Learning (Weiszfeld's iteration).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Vector, blocks, combine, mean, release

Rule = Literal["mean", "trimmed_mean", "median", "krum", "multi_krum", "geometric_median"]
PICKING: tuple[Rule, ...] = ("krum", "multi_krum")  # rules that pick whole reports
Pairs = Sequence[tuple[Vector, float]]
Matrix = npt.NDArray[np.float64]

TILE = 1 << 20  # values of all reports together that one block holds
FEWEST = 3  # with fewer reports than this no rule can know who lies


def lower_median(values: Sequence[float]) -> float:
    """The middle value, the smaller one of two. Raises ValueError for no values.

    The usual median of two values is their mean, which one liar among two could put anywhere.
    """
    if not values:
        raise ValueError("the median of no values does not exist")
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def most_samples(
    claimed: Sequence[int], absolute: int | None, times_median: float | None
) -> int | None:
    """The largest number of examples that a report may count with; None: any.

    `times_median` multiplies the lower median of the positive claims of a cohort.
    """
    limits: list[int] = []
    if absolute is not None:
        limits.append(absolute)
    positive = [float(one) for one in claimed if one > 0]
    if times_median is not None and positive:
        limits.append(math.ceil(times_median * lower_median(positive)))
    return min(limits, default=None)


def step_norm(vector: Vector, base: Vector | None) -> float:
    """Euclidean norm of a vector's step from its base (d,), in float64; of the vector itself without a base.

    All values count, buffers too: a liar could hide in them otherwise.
    """
    total: list[float] = []
    for span in blocks(vector.size):
        step = vector[span].astype(np.float64)
        if base is not None:
            step -= base[span]
        total.append(float(step @ step))
        release(vector)
    return math.sqrt(math.fsum(total))


def clipped(vector: Vector, base: Vector | None, limit: float, norm: float | None = None) -> Vector:
    """The vector with its step shortened to `limit`; the vector itself where the step is no longer than that.

    `norm` is `step_norm(vector, base)` where the caller knows it already.
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
    """What a fold calls instead of the weighted mean.

    `trim`: share of the reports that a trimmed mean drops on each side of every coordinate, rounded up.
    `liars`: share of the reports that Krum expects to lie, rounded up. `keep`: reports that Multi-Krum averages; None:
    all but the expected liars. `iterations` and `eps`: Weiszfeld ends after so many, or once the centre moves by less
    than eps times the typical distance.

    Every rule but the mean counts reports alike: claimed numbers of examples have no say. Fewer than three reports
    are averaged alike, for none of them can be called an outlier.
    """

    rule: Rule = "mean"
    trim: float = 0.2
    liars: float = 0.2
    keep: int | None = None
    iterations: int = 50
    eps: float = 1e-4

    def mean(self, pairs: Pairs, shares: Sequence[float] | None = None) -> Vector:
        """The average of (vector (d,), weight >= 0). Vectors without weight do not count.

        `shares` (one per pair) says how much of each report belongs to this average, for methods whose reports count
        in several clusters; only rules look at it, the mean takes the weights. Raises ValueError for weights that
        sum to zero, and for Krum with shares.
        """
        if self.rule == "mean":
            return mean(pairs)
        kept = [place for place, (_, weight) in enumerate(pairs) if weight > 0]
        if not kept:
            raise ValueError(f"an average needs a positive weight, {len(pairs)} vectors have none")
        vectors = [pairs[place][0] for place in kept]
        weights = np.array([1.0 if shares is None else shares[place] for place in kept])
        return self._robust(vectors, weights, soft=shares is not None)

    def combine(self, fixed: Pairs, reported: Pairs) -> Vector:
        """The sum of coefficient * vector over what the server holds (`fixed`) and what was reported.

        A rule takes the place of the reported vectors' weighted mean; their coefficients' sum stays.
        """
        if self.rule == "mean" or not reported:
            return combine([*fixed, *reported])
        weights = [(vector, abs(coefficient)) for vector, coefficient in reported]
        total = math.fsum(coefficient for _, coefficient in reported)
        if not any(weight > 0 for _, weight in weights):
            return combine(fixed)
        return combine([*fixed, (self.mean(weights), total)])

    def numbers(self, rows: Matrix, weights: Matrix) -> Matrix:
        """The average (d,) of a few numbers told by each of n reports (n, d): rules take the median."""
        if self.rule == "mean":
            return np.asarray(weights @ rows / weights.sum())
        return np.asarray(np.median(rows, axis=0))

    def _robust(self, vectors: Sequence[Vector], weights: Matrix, *, soft: bool) -> Vector:
        if len(vectors) < FEWEST:
            return mean(list(zip(vectors, weights.tolist(), strict=True)))
        match self.rule:
            case "trimmed_mean":
                return trimmed_mean(vectors, weights, self._cut(weights, soft=soft))
            case "median":
                return median(vectors, weights)
            case "geometric_median":
                return geometric_median(vectors, weights, self.iterations, self.eps)
        if soft:
            raise ValueError(
                f"{self.rule} picks whole reports, and here reports belong to several clusters"
            )
        best = krum_order(vectors, self.liars)
        count = 1 if self.rule == "krum" else self._kept(len(vectors))
        chosen = sorted(best[:count])
        return mean([(vectors[place], 1.0) for place in chosen])

    def _cut(self, weights: Matrix, *, soft: bool) -> float:
        """The weight that is dropped on each side: of whole reports, rounded up, where each counts as one."""
        if soft:
            return self.trim * float(weights.sum())
        return float(expected(self.trim, len(weights), (len(weights) - 1) // 2))

    def _kept(self, count: int) -> int:
        return min(self.keep or count - expected(self.liars, count, count - 1), count)


MEAN = Average()


def expected(share: float, count: int, most: int) -> int:
    """How many of `count` reports a share means, rounded up: a fifth of three is one. At most `most`."""
    return min(math.ceil(share * count - 1e-9), most)


def trimmed_mean(vectors: Sequence[Vector], weights: Matrix, cut: float) -> Vector:
    """Weighted mean (d,) of each coordinate without the weight `cut` of its smallest and of its largest values."""
    total = float(weights.sum())
    result = np.empty(vectors[0].shape, np.float32)
    for span, rows in _tiles(vectors):
        order = np.argsort(rows, axis=0, kind="stable")
        values = np.take_along_axis(rows, order, axis=0)
        own = weights[order]
        reached = np.cumsum(own, axis=0)
        inside = np.minimum(reached, total - cut) - np.maximum(reached - own, cut)
        counted = np.maximum(inside, 0.0)
        used = np.where(counted > 0, values, 0.0)
        result[span] = (counted * used).sum(axis=0) / counted.sum(axis=0)
    return result


def median(vectors: Sequence[Vector], weights: Matrix) -> Vector:
    """The weighted middle value (d,) of each coordinate; between two middle ones their mean."""
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


def geometric_median(
    vectors: Sequence[Vector], weights: Matrix, iterations: int, eps: float
) -> Vector:
    """The point (d,) with the least weighted sum of distances to the vectors, by Weiszfeld from their median."""
    centre = median(vectors, weights)
    for _ in range(iterations):
        apart = np.array([step_norm(vector, centre) for vector in vectors])
        typical = lower_median(apart.tolist())
        pull = weights / np.maximum(apart, max(1e-3 * typical, 1e-12))
        share = (pull / pull.sum()).tolist()
        following = combine(list(zip(vectors, share, strict=True)))
        moved = step_norm(following, centre)
        centre = following
        if moved <= eps * typical:
            break
    return centre


def krum_order(vectors: Sequence[Vector], liars: float) -> list[int]:
    """The places of the vectors, the one with the closest neighbours first.

    A vector's score is the sum of squared distances to its n - f - 2 nearest others, f the expected liars.
    """
    count = len(vectors)
    lying = expected(liars, count, max((count - 3) // 2, 0))
    near = max(count - lying - 2, 1)
    table = squared_distances(vectors)
    np.fill_diagonal(table, math.inf)
    scores = np.sort(table, axis=1)[:, :near].sum(axis=1)
    return [int(place) for place in np.argsort(scores, kind="stable")]


def squared_distances(vectors: Sequence[Vector]) -> Matrix:
    """Squared Euclidean distances (n, n). Coordinates are centred first, so that near vectors lose no digits."""
    table = np.zeros((len(vectors), len(vectors)))
    for _, rows in _tiles(vectors):
        centred = rows - np.median(rows, axis=0)
        products = centred @ centred.T
        squares = products.diagonal()
        table += squares[:, None] + squares[None, :] - 2 * products
    return np.maximum(table, 0.0)


def _tiles(vectors: Sequence[Vector]) -> Iterator[tuple[slice, Matrix]]:
    """Blocks of coordinates, and the values (n, width) of all vectors there in float64."""
    width = max(TILE // len(vectors), 1024)
    for span in blocks(vectors[0].size, width):
        yield span, np.stack([vector[span].astype(np.float64) for vector in vectors])
        release(*vectors)
