"""What a fold gets of a secure sum: masked vectors as they are added up, and the means of what was under the masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from covey.extras.secure.integers import Mean, Total, digest_of, moved
from covey.extras.secure.parameters import Scale
from covey.extras.secure.phases import integers_in
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.sums import Term


@dataclass(frozen=True)
class _Summed:
    """The updates under one key."""

    start: npt.NDArray[np.floating]  # (d,) what they are differences to
    total: Total
    scale: Scale

    @property
    def mean(self) -> Mean:
        return self.total.mean(self.scale)


class SecureSums:
    """The sums of a phase: the mean of the updates under a key, added to what they started from."""

    average: Average = MEAN

    def __init__(self) -> None:
        self._sums: dict[str, _Summed] = {}

    def add(self, key: str, start: Vector | None, total: Total, scale: Scale) -> None:
        """The sum of one group.

        Args:
            key: of the sum.
            start: the model (d,) that the updates are differences to; None: they are gradients.
            total: of the updates.
            scale: of the integers, the same for all groups.
        """
        if key in self._sums:
            total = self._sums[key].total + total
        origin = np.zeros(total.values.size) if start is None else start
        self._sums[key] = _Summed(origin, total, scale)

    def mean(self, key: str, otherwise: Vector) -> Vector:
        if not self.weight(key):
            return otherwise
        return moved(self._sums[key].start, self._sums[key].mean)

    def moved(self, key: str, start: Vector, share: float) -> Vector:
        if not self.weight(key):
            return start
        target = self._sums[key].start.astype(np.float64) + self._sums[key].mean.vector
        begin = start.astype(np.float64)
        return (begin + share * (target - begin)).astype(np.float32)

    def weight(self, key: str) -> float:
        return float(self._sums[key].total.weight) if key in self._sums else 0.0

    def count(self, key: str) -> int:
        return self._sums[key].total.reported if key in self._sums else 0


@dataclass(frozen=True)
class MaskedTerm(Term):
    """A masked vector, as integers mod 2**32. `part` raises ValueError if it is not the one that the agent signed."""

    digest: bytes = b""

    def part(self, vectors: Mapping[str, Vector]) -> Vector:
        integers = integers_in(vectors[self.vector])
        if digest_of(integers) != self.digest:
            raise ValueError("the masked vector is not the one that its head names")
        return cast(Vector, integers)
