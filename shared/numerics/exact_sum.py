"""Sums of weighted vectors that give the same bytes in any order, on any number of shards, and in any tree.

A float64 sum rounds after every addition, so its last digits depend on the order of the terms. Here each term is
rounded once, to a fixed grid, and everything after that is exact: multiples of a grid's unit are added, and float64
adds them without rounding as long as their sum stays below 2^53 units. The idea is that of reproducible summation with
pre-rounded terms (Demmel and Nguyen 2013, Fast Reproducible Floating-Point Summation; Ahrens, Demmel and Nguyen 2020).

A term is weight * value. Its error is at most half a unit of the finest grid that it uses: 2^-65, or for terms that are
small altogether 2^-41 of their largest value. Both are far below what the float32 result can show.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Vector, blocks, release

Sum = npt.NDArray[np.float64]

# Grids lie 40 binary digits apart: ... 2^-104, 2^-64, 2^-24, 2^16, ...
GRID_DIGITS = 40
ANCHOR = -64  # exponent of the finest grid that terms of usual size use
FINEST = ANCHOR - 23 * GRID_DIGITS  # 2^-984: float64 still has all digits of its units
LARGEST = 2.0**900  # of a term; float64 still holds the coarser grids

# A term has fewer than 2^41 units of its coarsest grid, so 2^11 terms stay below 2^52.
TERMS_BETWEEN_CARRIES = 1 << 11

BLOCK = (
    1 << 14
)  # coordinates that are split at a time: their float64 values fit into a core's cache


class ExactSum:
    """The sum of weight * vector, exact after one rounding of each term to a fixed grid.

    Two sums of the same terms are equal to the byte, whatever the order of `add` and `merge`.

    Args:
        size: d, the length of the vectors.
    """

    _size: int  # d
    _grids: dict[int, Sum]  # by exponent e: (d,) multiples of 2^e, each below 2^53 units
    _terms: int  # the most terms that any grid has taken since the last carry

    def __init__(self, size: int) -> None:
        self._size = size
        self._grids = {}
        self._terms = 0

    def __repr__(self) -> str:
        return f"ExactSum(size={self._size})"

    def add(self, vector: Vector, weight: float) -> None:
        """Add weight * vector.

        Args:
            vector: (d,) float32.
            weight: any finite number. The product with a value is rounded to float64 first, which
                changes nothing for whole numbers below 2^29.

        Raises:
            ValueError: the vector has another length, or a product is not finite or absurdly large.
        """
        expected = (self._size,)
        if vector.shape != expected:
            raise ValueError(f"vector has shape {vector.shape}, expected {expected}")
        largest = _largest(vector)
        largest *= abs(weight)
        if not largest < LARGEST:
            raise ValueError(f"cannot add a term as large as {largest}")
        if largest == 0:
            return
        if self._terms >= TERMS_BETWEEN_CARRIES:
            self._carry()
        exponents = _exponents(largest)
        factor = np.float64(weight)
        for span in blocks(self._size, BLOCK):
            rest = vector[span] * factor
            for exponent in exponents:
                part = _split(rest, exponent)
                rest -= part
                grid = self._grid(exponent)
                grid[span] += part
        release(vector)
        self._terms += 1

    def merge(self, other: ExactSum) -> None:
        """Add another sum of vectors of the same length; it keeps its value.

        Raises:
            ValueError: the lengths differ.
        """
        length = other._size
        if length != self._size:
            raise ValueError(f"a sum of length {length}, expected {self._size}")
        self._carry()
        other._carry()
        for exponent, theirs in other._grids.items():
            grid = self._grid(exponent)
            grid += theirs
        self._terms = 2  # a carried grid holds at most one unit of the next: less than one term

    def value(self) -> Sum:
        """The sum (d,) in float64, within one unit in the last place of the exact sum."""
        self._carry()
        total = np.zeros(self._size, np.float64)
        finest_first = sorted(self._grids)
        for exponent in finest_first:
            grid = self._grids[exponent]
            total += grid
        return total

    def parts(self) -> dict[int, Sum]:
        """The whole state, for another process: by exponent e the multiples (d,) of 2^e.

        Equal sums have equal parts.
        """
        self._carry()
        used: dict[int, Sum] = {}
        for exponent in sorted(self._grids):
            grid = self._grids[exponent]
            if grid.any():
                used[exponent] = grid.copy()
        return used

    @classmethod
    def from_parts(cls, size: int, parts: dict[int, Sum]) -> ExactSum:
        """The sum whose `parts` another process sent.

        Raises:
            ValueError: these are not the parts of a sum of this length.
        """
        total = cls(size)
        for exponent, part in parts.items():
            _check_part(size, exponent, part)
            total._grids[exponent] = part.copy()
        total._terms = 1
        return total

    def _grid(self, exponent: int) -> Sum:
        """The grid of this exponent, which is made where it is missing."""
        if exponent not in self._grids:
            self._grids[exponent] = np.zeros(self._size, np.float64)
        return self._grids[exponent]

    def _carry(self) -> None:
        """Move whole units of a coarser grid there: then each grid holds half a unit of the next at most.

        Ties go to the coarser grid, so the parts of a sum are unique.
        """
        self._terms = 1
        pending = sorted(self._grids, reverse=True)
        while pending:
            exponent = pending.pop()
            coarser = exponent + GRID_DIGITS
            grid = self._grids[exponent]
            for span in blocks(self._size, BLOCK):
                moved = _nearest(grid[span], coarser)
                if not moved.any():
                    continue
                if coarser not in self._grids:
                    pending.append(coarser)
                grid[span] -= moved
                coarser_grid = self._grid(coarser)
                coarser_grid[span] += moved


class ExactMean:
    """The weighted mean of vectors, with the same bytes in any order and on any number of shards.

    Args:
        size: d, the length of the vectors.
    """

    _sum: ExactSum  # of weight * vector
    _weight: Fraction  # the exact sum of the weights

    def __init__(self, size: int) -> None:
        self._sum = ExactSum(size)
        self._weight = Fraction(0)

    def __repr__(self) -> str:
        return f"ExactMean(weight={self._weight})"

    def add(self, vector: Vector, weight: float) -> None:
        """Count a vector (d,) with this weight >= 0.

        Raises:
            ValueError: the vector has another length, the weight is negative, or a product is not finite.
        """
        if not weight >= 0:
            raise ValueError(f"a mean needs weights that are not negative, got {weight}")
        self._sum.add(vector, weight)
        self._weight += Fraction(weight)

    def merge(self, other: ExactMean) -> None:
        """Count all vectors of another mean too; it keeps its value.

        Raises:
            ValueError: the lengths differ.
        """
        self._sum.merge(other._sum)
        self._weight += other._weight

    def mean(self) -> Vector:
        """The mean (d,), rounded to float32 once.

        Raises:
            ValueError: no vector has a positive weight.
        """
        total = float(self._weight)
        if total == 0:
            raise ValueError("a mean needs a positive weight, no vector has one")
        mean = self._sum.value()
        mean /= total
        return mean.astype(np.float32)


def _largest(vector: Vector) -> float:
    """The largest absolute value; NaN where there is one."""
    if vector.size == 0:
        return 0.0
    highest = vector.max()
    lowest = vector.min()
    return float(max(highest, -lowest))


def _exponents(largest: float) -> list[int]:
    """The grids that a term is split over, coarsest first, from its largest absolute value > 0.

    The coarsest one gives the term fewer than 2^40 units; the finest is the anchor, or the next
    finer one where the whole term is small.
    """
    _, digits = math.frexp(largest)  # largest < 2^digits
    least = digits - GRID_DIGITS  # with this unit or a coarser one the term has at most 2^40
    digits_above_anchor = least - ANCHOR
    grids_above_anchor = math.ceil(digits_above_anchor / GRID_DIGITS)
    coarsest = ANCHOR + grids_above_anchor * GRID_DIGITS
    finest = min(ANCHOR, coarsest - GRID_DIGITS)
    exponents = range(coarsest, finest - 1, -GRID_DIGITS)
    return [max(exponent, FINEST) for exponent in exponents]


def _split(values: Sum, exponent: int) -> Sum:
    """The nearest multiples of 2^exponent; the values must lie below 2^51 of these units."""
    # at the size of 1.5 * 2^52 units float64 holds whole units alone, so the addition rounds
    shift = math.ldexp(1.5, 52 + exponent)
    rounded = values + shift
    rounded -= shift
    return rounded


def _nearest(values: Sum, exponent: int) -> Sum:
    """The nearest multiples of 2^exponent, and of two that are equally near the upper one."""
    unit = math.ldexp(1.0, exponent)
    units = values / unit
    units += 0.5
    np.floor(units, out=units)
    units *= unit
    return units


def _check_part(size: int, exponent: int, part: Sum) -> None:
    """Raises ValueError unless these are multiples (size,) of a grid's unit, half a unit of the next at most."""
    digits = exponent - ANCHOR
    is_on_a_grid = digits % GRID_DIGITS == 0
    is_a_sum = part.shape == (size,) and part.dtype == np.float64
    if not is_on_a_grid or not is_a_sum:
        raise ValueError(
            f"a part of shape {part.shape} for 2^{exponent}; expected float64 ({size},)"
        )
    unit = math.ldexp(1.0, exponent)
    units = part / unit
    most = 2.0 ** (GRID_DIGITS - 1)
    are_whole = np.floor(units) == units  # false for NaN
    are_few = np.abs(units) <= most
    if not (are_whole.all() and are_few.all()):
        raise ValueError(f"the part for 2^{exponent} holds values that are not units of its grid")
