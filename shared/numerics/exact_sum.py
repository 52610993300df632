"""Sums of weighted vectors that give the same bytes in any order, on any number of shards, and in any tree.

A float64 sum rounds after every addition, so its last digits depend on the order of the terms. Here each term is
rounded once, to a fixed grid, and everything after that is exact: multiples of a grid's unit are added, and float64
adds them without rounding as long as their sum stays below 2^53 units. The idea is that of reproducible summation with
pre-rounded terms (Demmel and Nguyen 2013, Fast Reproducible Floating-Point Summation; Ahrens, Demmel and Nguyen 2020).

A term is weight * value. Its error is at most half a unit of the finest grid that it uses. If the largest product of a
section is at least 2^-24, that is 2^-65: products below 2^-41 lose digits that float32 would show, and those below 2^-65
become zero. In a section of smaller products it is at most 2^-41 of the largest one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import BLOCK as SECTION
from covey.shared.numerics.vectors import Peaks, Vector, blocks, peaks, release

Sum = npt.NDArray[np.float64]
Pairs = Sequence[tuple[Vector, float]]

# Grids lie 40 binary digits apart: ... 2^-104, 2^-64, 2^-24, 2^16, ...
GRID_DIGITS = 40
ANCHOR = -64  # exponent of the finest grid that terms of usual size use
FINEST = ANCHOR - 23 * GRID_DIGITS  # 2^-984: float64 still has all digits of its units
COARSEST = ANCHOR + 24 * GRID_DIGITS  # 2^896
LARGEST = 2.0**900  # of a term; float64 still holds the coarser grids

# A term has fewer than 2^41 units of its coarsest grid, so 2^11 terms stay below 2^52.
TERMS_BETWEEN_CARRIES = 1 << 11

BLOCK = 1 << 14  # coordinates that are split at a time: they fit into a core's cache


class ExactSum:
    """The sum of weight * vector, exact after one rounding of each term to a fixed grid.

    Two sums of the same terms are equal to the byte, whatever the order of `add`, `subtract` and `merge`. The grids
    of a term are chosen for each section of 2^18 coordinates, from the peak of its values.

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

    @property
    def size(self) -> int:
        """d, the length of the vectors."""
        return self._size

    def clear(self) -> None:
        """Forget all terms. The memory of the grids is kept for the next ones."""
        for grid in self._grids.values():
            grid.fill(0.0)
        self._terms = 0

    def add(self, vector: Vector, weight: float, known: Peaks | None = None) -> None:
        """Add weight * vector.

        Args:
            vector: (d,) float32.
            weight: any finite number. The product with a value is rounded to float64 first, which
                changes nothing for whole numbers below 2^29.
            known: the vector's peaks; None: they are looked for.

        Raises:
            ValueError: the vector has another length, or a product is not finite or absurdly large.
                The sum is as it was.
        """
        expected = (self._size,)
        if vector.shape != expected:
            raise ValueError(f"vector has shape {vector.shape}, expected {expected}")
        sections = list(blocks(self._size, SECTION))
        grids = [_grids_of(one, weight) for one in (peaks(vector) if known is None else known)]
        memory = _working_memory(self._size)
        for section, exponents in zip(sections, grids, strict=True):
            for span in _blocks_of(section):
                self._add_block(span, vector[span], weight, exponents, memory)
        release(vector)
        self._count_term()

    def subtract(self, vector: Vector, weight: float) -> None:
        """Take weight * vector out of the sum: it is then as if the term had never been added.

        Raises:
            ValueError: as for `add`.
        """
        self.add(vector, -weight)

    def _add_block(
        self, span: slice, values: Vector, weight: float, exponents: Sequence[int], memory: Sum
    ) -> None:
        """Split one block of a term over these grids, coarsest first.

        The caller counts the term. `memory` is any (2, at least a block's width).
        """
        if not exponents:
            return
        *coarser, finest = exponents
        rest = memory[0, : values.size]
        part = memory[1, : values.size]
        np.copyto(rest, values)
        rest *= weight
        for exponent in coarser:
            _round(rest, exponent, part)
            rest -= part
            grid = self._grid(exponent)
            grid[span] += part
        _round(rest, finest, rest)
        grid = self._grid(finest)
        grid[span] += rest

    def _count_term(self) -> None:
        """Carry in time: before the grids could hold more units than float64 has digits."""
        self._terms += 1
        if self._terms >= TERMS_BETWEEN_CARRIES:
            self._carry()

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
        if not self._grids:
            return np.zeros(self._size, np.float64)
        finest, *coarser = sorted(self._grids)
        total = self._grids[finest].copy()
        for exponent in coarser:
            total += self._grids[exponent]
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
            half = math.ldexp(0.5, coarser)
            for span in blocks(self._size, BLOCK):
                here = grid[span]
                if here.max() < half and here.min() >= -half:
                    continue
                moved = nearest(here, coarser)
                if coarser not in self._grids:
                    pending.append(coarser)
                here -= moved
                coarser_grid = self._grid(coarser)
                coarser_grid[span] += moved


class ExactMean:
    """The weighted mean of vectors, with the same bytes in any order and on any number of shards.

    Args:
        size: d, the length of the vectors.
    """

    total: ExactSum  # of weight * vector
    weight: Fraction  # the exact sum of the weights
    count: int  # vectors that are counted

    def __init__(self, size: int) -> None:
        self.total = ExactSum(size)
        self.weight = Fraction(0)
        self.count = 0

    @property
    def size(self) -> int:
        """d, the length of the vectors."""
        return self.total.size

    def __repr__(self) -> str:
        return f"ExactMean(count={self.count}, weight={float(self.weight):g})"

    def add(self, vector: Vector, weight: float, known: Peaks | None = None) -> None:
        """Count a vector (d,) with this weight >= 0; `known` as for `ExactSum.add`.

        Raises:
            ValueError: the vector has another length, the weight is negative, or a product is not finite.
        """
        _check_weight(weight)
        self.total.add(vector, weight, known)
        self.weight += Fraction(weight)
        self.count += 1

    def subtract(self, vector: Vector, weight: float) -> None:
        """Count a vector no longer that was added with this weight.

        Raises:
            ValueError: as for `add`.
        """
        _check_weight(weight)
        self.total.subtract(vector, weight)
        self.weight -= Fraction(weight)
        self.count -= 1

    def merge(self, other: ExactMean) -> None:
        """Count all vectors of another mean too; it keeps its value.

        Raises:
            ValueError: the lengths differ.
        """
        self.total.merge(other.total)
        self.weight += other.weight
        self.count += other.count

    def mean(self) -> Vector:
        """The mean (d,), rounded to float32 once.

        Raises:
            ValueError: no vector has a positive weight.
        """
        return _quotient(self.total, _positive(self.weight, self.count))

    def moved(self, start: Vector, share: float) -> Vector:
        """start + share * (mean - start) (d,), rounded to float32 once.

        Raises:
            ValueError: no vector has a positive weight.
        """
        return _moved(self.total, _positive(self.weight, self.count), start, share)


def weighted_mean(pairs: Pairs) -> Vector:
    """The weighted mean (d,) of vectors: the bytes of an `ExactMean` of the same pairs.

    It needs memory for one section of a vector, not for sums of the whole length.

    Args:
        pairs: (vector (d,), weight >= 0).

    Raises:
        ValueError: there are no pairs, the vectors differ in length, a product is not finite, or the weights
            sum to zero.
    """
    return _sum_in_sections(pairs, _weight_of(pairs))


def weighted_moved(pairs: Pairs, start: Vector, share: float) -> Vector:
    """start + share * (mean - start) (d,), where the mean is that of `pairs`: the bytes of `ExactMean.moved`.

    Raises:
        ValueError: as for `weighted_mean`.
    """
    return _sum_in_sections(pairs, _weight_of(pairs), start, share)


def weighted_sum(pairs: Pairs) -> Vector:
    """The sum of coefficient * vector (d,), with the same bytes in any order, rounded to float32 once.

    Args:
        pairs: (vector (d,), coefficient).

    Raises:
        ValueError: there are no pairs, the vectors differ in length, or a product is not finite.
    """
    if not pairs:
        raise ValueError("cannot sum no vectors")
    return _sum_in_sections(pairs, 1.0)


def _weight_of(pairs: Pairs) -> float:
    """The sum of the weights, rounded once. Raises ValueError unless it is positive."""
    total = Fraction(0)
    for _, weight in pairs:
        _check_weight(weight)
        total += Fraction(weight)
    return _positive(total, len(pairs))


def _sum_in_sections(
    pairs: Pairs, divisor: float, start: Vector | None = None, share: float = 1.0
) -> Vector:
    """The sum of coefficient * vector, divided, one section after another; as far from `start` as `share` goes."""
    first, _ = pairs[0]
    result = np.empty(first.shape, np.float32)
    for vector, _ in pairs:
        if vector.shape != first.shape:
            raise ValueError(f"vectors of shapes {first.shape} and {vector.shape}")
    memory = _working_memory(first.size)
    total = ExactSum(0)
    for section in blocks(first.size, SECTION):
        grids = [_grids_of(peaks(vector[section])[0], coefficient) for vector, coefficient in pairs]
        for span in _blocks_of(section):
            width = span.stop - span.start
            if width != total.size:
                total = ExactSum(width)
            total.clear()
            everything = slice(0, width)
            for (vector, coefficient), exponents in zip(pairs, grids, strict=True):
                total._add_block(everything, vector[span], coefficient, exponents, memory)
                total._count_term()
                # now, not after the block: a hundred mapped blocks are a hundred megabytes
                release(vector)
            if start is None:
                result[span] = _quotient(total, divisor)
            else:
                result[span] = _moved(total, divisor, start[span], share)
    return result


def _blocks_of(section: slice) -> Iterator[slice]:
    """Slices that cover a section in order, short enough for a core's cache."""
    for start in range(section.start, section.stop, BLOCK):
        yield slice(start, min(start + BLOCK, section.stop))


def _working_memory(size: int) -> Sum:
    """Two rows as long as a block of a vector of this length: allocating them for each block costs more than the sum."""
    return np.empty((2, min(BLOCK, size)), np.float64)


def _quotient(total: ExactSum, divisor: float) -> Vector:
    """A sum, divided and rounded to float32."""
    values = total.value()
    values /= divisor
    return values.astype(np.float32)


def _moved(total: ExactSum, divisor: float, start: Vector, share: float) -> Vector:
    """start + share * (total / divisor - start), rounded to float32."""
    values = total.value()
    values /= divisor
    if share != 1:  # the whole way is the mean itself, to the bit
        values *= share
        values += (1.0 - share) * start.astype(np.float64)
    return values.astype(np.float32)


def _check_weight(weight: float) -> None:
    """Raises ValueError for a weight that no mean can have."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"a mean needs finite weights that are not negative, got {weight}")


def _positive(total: Fraction, count: int) -> float:
    """The sum of the weights. Raises ValueError unless it is positive."""
    weight = float(total)
    if not weight > 0:
        raise ValueError(
            f"a mean needs a positive sum of weights, not {weight} over {count} vectors"
        )
    return weight


def _grids_of(peak: float, weight: float) -> list[int]:
    """The grids of weight * values that have this peak, coarsest first; none where all products are zero.

    Raises ValueError where a product is not finite or absurdly large.
    """
    largest = peak * abs(weight)
    if not largest < LARGEST:
        raise ValueError(f"cannot add a term as large as {largest}")
    if largest == 0:
        return []
    return _exponents(largest)


def _exponents(largest: float) -> list[int]:
    """The grids that a term is split over, coarsest first, from its largest absolute value > 0.

    The coarsest one gives the term fewer than 2^40 units; the finest is the anchor, or the next
    finer one where the whole term is small.
    """
    _, digits = math.frexp(largest)  # largest < 2^digits
    least = digits - GRID_DIGITS  # with this unit or a coarser one the term has at most 2^40
    digits_above_anchor = least - ANCHOR
    coarsest = ANCHOR + math.ceil(digits_above_anchor / GRID_DIGITS) * GRID_DIGITS
    finest = min(ANCHOR, coarsest - GRID_DIGITS)
    return [max(exponent, FINEST) for exponent in range(coarsest, finest - 1, -GRID_DIGITS)]


def _round(values: Sum, exponent: int, out: Sum) -> None:
    """The nearest multiples of 2^exponent; the values must lie below 2^51 of these units."""
    # at the size of 1.5 * 2^52 units float64 holds whole units alone, so the addition rounds
    shift = math.ldexp(1.5, 52 + exponent)
    np.add(values, shift, out=out)
    np.subtract(out, shift, out=out)


def nearest(values: Sum, exponent: int) -> Sum:
    """The nearest multiples of 2^exponent, and of two that are equally near the upper one."""
    unit = math.ldexp(1.0, exponent)
    units = values / unit
    units += 0.5
    np.floor(units, out=units)
    units *= unit
    return units


def _check_part(size: int, exponent: int, part: Sum) -> None:
    """Raises ValueError unless these are multiples (size,) of a grid's unit, half a unit of the next at most."""
    is_on_a_grid = (exponent - ANCHOR) % GRID_DIGITS == 0 and FINEST <= exponent <= COARSEST
    is_a_sum = part.shape == (size,) and part.dtype == np.float64
    if not is_on_a_grid or not is_a_sum:
        raise ValueError(
            f"a part of shape {part.shape} for 2^{exponent}; expected float64 ({size},)"
        )
    unit = math.ldexp(1.0, exponent)
    with np.errstate(over="ignore"):  # infinite units are too many
        units = part / unit
    most = 2.0 ** (GRID_DIGITS - 1)
    are_whole = np.floor(units) == units  # false for NaN
    are_few = np.abs(units) <= most
    if not (are_whole.all() and are_few.all()):
        raise ValueError(f"the part for 2^{exponent} holds values that are not units of its grid")
