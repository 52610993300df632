"""Weighted means of vectors under names, collected one vector at a time, on one machine or on several.

A coordinator keeps one accumulator for an open phase: a mean for each cluster. An aggregator keeps one of its own and
sends its bytes upwards, where they are merged. The bytes depend on what was added and on nothing else: no order, no
number of machines, and no vector that was taken out again.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgpack
import numpy as np

from covey.shared.errors import DecodeError
from covey.shared.numerics.exact_sum import ExactMean, ExactSum, Sum
from covey.shared.numerics.vectors import MAX_VALUES, Peaks, Vector

FORM = 1  # of the bytes
MAX_KEY_CHARS = 200
MAX_FRACTION_CHARS = 1200  # of a sum of weights: float64 has exponents from -1074 to 1023
MAX_EXPONENT = 1074
MAX_COUNT = 1 << 53  # vectors in a mean
MAX_REASON = 200  # characters
LITTLE_ENDIAN = np.dtype("<f8")
NOTHING = ExactMean(0)  # what is under a key that no vector has

Entry = dict[str, Any]  # a mean on the wire: its key, size, count, weight and grids


class Accumulator:
    """Means of vectors by key. All vectors under one key have the same length; different keys may differ.

    Example:
        Two halves of a cohort, merged:

        >>> import numpy as np
        >>> first = Accumulator()
        >>> first.add("0", np.array([1, 2], np.float32), 10)
        >>> second = Accumulator()
        >>> second.add("0", np.array([4, 8], np.float32), 20)
        >>> first.merge(Accumulator.from_bytes(second.to_bytes()))
        >>> first.mean("0").tolist()
        [3.0, 6.0]
    """

    _means: dict[str, ExactMean]  # by key; each counts at least one vector

    def __init__(self) -> None:
        self._means = {}

    def __repr__(self) -> str:
        return f"Accumulator({self._means})"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which vectors are counted, in ascending order."""
        return tuple(sorted(self._means))

    def count(self, key: str) -> int:
        """The number of vectors under a key."""
        return self._means.get(key, NOTHING).count

    def weight(self, key: str) -> float:
        """The sum of the weights under a key."""
        return float(self.exact_weight(key))

    def exact_weight(self, key: str) -> Fraction:
        """The sum of the weights under a key, without rounding."""
        return self._means.get(key, NOTHING).weight

    def size(self, key: str) -> int:
        """The length of the vectors under a key. Raises ValueError where nothing is counted under it."""
        return self._mean(key).size

    def add(self, key: str, vector: Vector, weight: float, known: Peaks | None = None) -> None:
        """Count a vector.

        Args:
            key: the name of the mean.
            vector: (d,) float32; it is not kept.
            weight: >= 0.
            known: the vector's peaks; None: they are looked for.

        Raises:
            ValueError: the length differs from that of other vectors under this key, the weight is negative,
                or a product is not finite. Nothing has changed then.
        """
        mean = self._means.get(key)
        if mean is None:
            mean = ExactMean(vector.size)
        mean.add(vector, weight, known)
        self._means[key] = mean

    def subtract(self, key: str, vector: Vector, weight: float) -> None:
        """Take out a vector that was added with this weight: as if it had never been added.

        Raises:
            ValueError: nothing is counted under this key, or as for `add`.
        """
        mean = self._mean(key)
        mean.subtract(vector, weight)
        if mean.count == 0:
            del self._means[key]

    def merge(self, other: Accumulator) -> None:
        """Count everything that another accumulator counts. The other one keeps its value.

        Raises:
            ValueError: vectors under one key differ in length. Nothing has changed then.
        """
        for key, theirs in other._means.items():
            mine = self._means.get(key)
            if mine is None:
                continue
            own_size = mine.size
            their_size = theirs.size
            if own_size != their_size:
                raise ValueError(f"vectors under {key!r} have lengths {own_size} and {their_size}")
        for key, theirs in other._means.items():
            if key not in self._means:
                self._means[key] = ExactMean(theirs.size)
            mine = self._means[key]
            mine.merge(theirs)

    def mean(self, key: str, otherwise: Vector | None = None) -> Vector:
        """The weighted mean (d,) under a key, rounded to float32 once.

        Args:
            key: the name of the mean.
            otherwise: the result where nothing is counted or all weights are zero.

        Raises:
            ValueError: nothing has a positive weight, and there is no `otherwise`.
        """
        if self.weight(key) > 0:
            return self._means[key].mean()
        if otherwise is None:
            raise ValueError(f"nothing with a positive weight is counted under {key!r}")
        return otherwise

    def moved(self, key: str, start: Vector, share: float) -> Vector:
        """start + share * (mean - start) (d,), rounded to float32 once; `start` where all weights are zero."""
        if self.weight(key) > 0:
            return self._means[key].moved(start, share)
        return start

    def total(self, key: str) -> Sum:
        """The sum (d,) of weight * vector under a key, in float64.

        Raises:
            ValueError: nothing is counted under this key.
        """
        return self._mean(key).total.value()

    def _mean(self, key: str) -> ExactMean:
        """The mean under a key. Raises ValueError where nothing is counted under it."""
        mean = self._means.get(key)
        if mean is None:
            raise ValueError(f"nothing is counted under {key!r}")
        return mean

    # -- on the wire -------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """All of it, for another process: usually 16 bytes per value of each mean. Equal accumulators give equal bytes."""
        means = [_entry(key, self._means[key]) for key in self.keys]
        content = msgpack.packb({"form": FORM, "means": means})
        assert isinstance(content, bytes)  # noqa: S101 - msgpack has no types
        return content

    @classmethod
    def from_bytes(cls, content: bytes, *, max_values: int = MAX_VALUES) -> Accumulator:
        """The accumulator that another process sent.

        Args:
            content: what `to_bytes` returned.
            max_values: the largest length of a vector.

        Raises:
            DecodeError: ("partial sum") it is anything else.
        """
        this = cls()
        try:
            unpacked = msgpack.unpackb(content, raw=False, strict_map_key=True)
            form = unpacked["form"]
            if form != FORM:
                raise ValueError(f"form {form!r}")
            for entry in unpacked["means"]:
                key, mean = _read_entry(entry, max_values)
                if key in this._means:
                    raise ValueError(f"two means for {key!r}")
                this._means[key] = mean
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            why = str(error)
            raise DecodeError("partial sum", why[:MAX_REASON]) from None
        return this


def _entry(key: str, mean: ExactMean) -> Entry:
    """A mean as numbers, texts and bytes by name."""
    grids: list[Any] = []
    for exponent, part in mean.total.parts().items():
        grids.append([exponent, part.astype(LITTLE_ENDIAN).tobytes()])
    numerator, denominator = mean.weight.as_integer_ratio()
    weight = f"{numerator:x}/{denominator:x}"
    return {"key": key, "size": mean.size, "count": mean.count, "weight": weight, "grids": grids}


def _read_entry(entry: Any, max_values: int) -> tuple[str, ExactMean]:
    """A key and its mean. Raises ValueError, TypeError or ArithmeticError for anything else."""
    key = entry["key"]
    size = entry["size"]
    count = entry["count"]
    if not isinstance(key, str) or len(key) > MAX_KEY_CHARS:
        raise ValueError("a key is not a short text")
    _check_whole(size, 0, max_values)
    _check_whole(count, 1, MAX_COUNT)
    mean = ExactMean(size)
    mean.total = ExactSum.from_parts(size, _read_parts(size, entry["grids"]))
    mean.weight = _read_fraction(entry["weight"])
    mean.count = count
    return key, mean


def _check_whole(number: Any, least: int, most: int) -> None:
    """Raises ValueError unless this is a whole number in a range."""
    is_whole = type(number) is int
    if not is_whole or not least <= number <= most:
        raise ValueError(f"{number!r} is not a whole number from {least} to {most}")


def _read_parts(size: int, grids: Any) -> dict[int, Sum]:
    """Raises ValueError or TypeError unless these are exponents, each with `size` values."""
    parts: dict[int, Sum] = {}
    for exponent, content in grids:
        _check_whole(exponent, -MAX_EXPONENT, MAX_EXPONENT)
        if exponent in parts:
            raise ValueError(f"two grids for 2^{exponent}")
        length = LITTLE_ENDIAN.itemsize * size
        if not isinstance(content, bytes) or len(content) != length:
            raise ValueError(f"a grid does not hold {size} values")
        parts[exponent] = np.frombuffer(content, LITTLE_ENDIAN).astype(np.float64)
    return parts


def _read_fraction(text: Any) -> Fraction:
    """A sum of weights >= 0. Raises ValueError or ZeroDivisionError for anything else."""
    if not isinstance(text, str) or len(text) > MAX_FRACTION_CHARS:
        raise ValueError("a sum of weights is not a short text")
    above, _, below = text.partition("/")
    weight = Fraction(int(above, 16), int(below, 16))
    if weight < 0:
        raise ValueError("a negative sum of weights")
    return weight
