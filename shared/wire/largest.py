"""The largest values of a difference between two vectors, for the codec topk.

Sorting 11 million values takes a second. A sample shows about how large the largest are, so that only few values have to
be sorted. The outcome does not depend on the sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Vector, blocks
from covey.shared.wire.number_formats import IN_CACHE, finite

SAMPLE_EVERY = 256  # of the values, for the sample

Positions = npt.NDArray[np.intp]
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Difference:
    """A vector (d,), the base (d,) that is subtracted, and what was not sent the last time (d,), which is added."""

    vector: Vector
    base: Vector
    error: Vector | None

    def write(self, span: slice, out: Vector) -> None:
        """Write some of its values (n,) to `out`."""
        of_vector = self.vector[span]
        of_base = self.base[span]
        np.subtract(of_vector, of_base, out=out)
        if self.error is not None:
            out += self.error[span]


def largest(difference: Difference, count: int) -> tuple[Vector, Positions]:
    """All values (d,), and the ascending positions of the `count` largest absolute ones; of equal ones the first.

    Raises:
        ValueError: a value is not finite.
    """
    length = difference.vector.size
    bound = _lower_bound(difference, count)
    values = np.empty(length, np.float32)
    scratch = np.empty(min(length, IN_CACHE), np.float32)
    candidates = [np.empty(0, np.intp)]  # ascending positions
    magnitudes = [np.empty(0, np.float32)]  # of the candidates
    for span in blocks(length, IN_CACHE):
        block = values[span]
        difference.write(span, out=block)
        absolute = scratch[: block.size]
        np.abs(block, out=absolute)
        is_small = absolute < bound  # not true for NaN
        positions = np.flatnonzero(~is_small)
        magnitudes.append(absolute[positions])
        positions += span.start
        candidates.append(positions)
    index = np.concatenate(candidates)
    magnitude = np.concatenate(magnitudes)
    finite(magnitude)  # what is infinite or NaN is a candidate
    if index.size < count:
        index = np.arange(length)
        magnitude = np.abs(values)
    return values, index[_largest(magnitude, count)]


def _lower_bound(difference: Difference, count: int) -> np.float32:
    """A bound that `count` absolute values probably reach, but few more."""
    every = slice(None, None, SAMPLE_EVERY)
    length = difference.vector.size
    sample_size = -(-length // SAMPLE_EVERY)
    sample = np.empty(sample_size, np.float32)
    difference.write(every, out=sample)
    np.abs(sample, out=sample)
    expected = math.ceil(sample_size * (count / max(length, 1)))
    # how many of the largest a sample has varies by about the root of their number
    rank = sample_size - expected - 4 * (1 + math.isqrt(expected))
    if rank <= 0:
        return np.float32(0)
    in_part = np.partition(sample, rank)
    bound: np.float32 = in_part[rank]
    return bound


def _largest(magnitude: Vector, count: int) -> Chosen:
    """Which of the absolute values (n,) are the `count` largest; of equal ones the first."""
    if not count:
        return np.zeros(magnitude.size, np.bool_)
    smallest_kept = magnitude.size - count
    in_part = np.partition(magnitude, smallest_kept)
    threshold = in_part[smallest_kept]
    kept: Chosen = magnitude > threshold
    still_missing = count - np.count_nonzero(kept)
    is_equal = magnitude == threshold
    first_equal = np.flatnonzero(is_equal)[:still_missing]
    kept[first_equal] = True
    return kept
