"""Updates as integers mod 2**32, discrete Gaussian noise on them, and the mean that their sum stands for.

Rounding is to the nearest integer and draws no random numbers: the same update always gives the same integers, so that the
sum of a group has the same bytes in any order, with masks and without.

Masks: streams of ChaCha20 as integers mod 2**32, added to a vector or taken away again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.extras.secure.derivation import Stream
from covey.extras.secure.parameters import Scale
from covey.extras.secure.primitives import hashed, stream_of
from covey.shared.numerics.vectors import Vector, blocks

Integers = npt.NDArray[np.uint32]  # (m,), mod 2**32
WIRE = np.dtype("<u4")


def integers_of(key: bytes, length: int) -> Integers:
    """PRG of extras/secure/protocol.md: the first `length` integers of a key's stream, uint32 (length,)."""
    content = stream_of(key).update(bytes(WIRE.itemsize * length))
    return np.frombuffer(content, WIRE).astype(np.uint32, copy=False)


def add_masks(vector: Integers, streams: Iterable[Stream]) -> None:
    """Add the masks of some streams to a vector (m,), in place. One block of each stream is in memory at a time."""
    for sign, key in streams:
        stream = stream_of(key)
        for span in blocks(vector.size):
            content = stream.update(bytes(WIRE.itemsize * (span.stop - span.start)))
            mask = np.frombuffer(content, WIRE)
            if sign > 0:
                vector[span] += mask
            else:
                vector[span] -= mask


def digest_of(vector: Integers) -> bytes:
    """The name of a vector (m,): H over its bytes on the wire."""
    return hashed("vector", vector.astype(WIRE, copy=False).tobytes())


_DRAW = np.dtype("<u8")  # 64 random bits decide one number
_SIGN_BIT = np.uint64(1)
_ROUNDING = 0.5  # of a unit: the most that the rounding of one agent moves a value of the sum


class OutOfRangeError(ValueError):
    """A sum that no honest members have made."""


@dataclass(frozen=True)
class Mean:
    """The mean of the updates in a sum."""

    vector: npt.NDArray[np.float64]  # (d,), to be added to the model that they started from
    weight: int  # of all updates
    shortened: int | None  # updates that were longer than `clip`; None under noise, which hides it
    was_long: bool  # the mean was longer than `clip`, so that a member lied, and was shortened


def weight_of(examples: int, scale: Scale) -> int:
    """The weight of an update."""
    return 1 if scale.is_noised else min(examples, scale.cap)


def to_integers(update: npt.NDArray[np.floating], examples: int, scale: Scale) -> Integers:
    """A finite update (d,) as the integers mod 2**32 that count in the sum, uint32 (d + scale.slots,)."""
    values = update.astype(np.float64)
    norm = float(np.linalg.norm(values))
    is_long = norm > scale.clip
    if is_long:
        values *= scale.clip / norm
    weight = weight_of(examples, scale)
    values *= weight / scale.unit
    np.rint(values, out=values)
    np.clip(values, -scale.levels, scale.levels, out=values)
    slots = [] if scale.is_noised else [weight, int(is_long)]
    return np.concatenate([values.astype(np.int64), slots]).astype(np.uint32)


def add_noise(integers: Integers, scale: Scale, key: bytes) -> None:
    """Add discrete Gaussian noise of `scale.deviation` units to integers (m,), in place.

    The noise is cut at `scale.tail`. Of 64 bits of the key's stream one is the sign, and a table of cumulated weights turns
    the others into the size.

    Args:
        integers: of an update.
        scale: the deviation.
        key: 32 secret bytes, used for this once.
    """
    if not scale.is_noised:
        return
    thresholds = _tail_weights(scale.deviation, scale.tail)
    stream = stream_of(key)
    for span in blocks(integers.size):
        bits = np.frombuffer(stream.update(bytes(_DRAW.itemsize * (span.stop - span.start))), _DRAW)
        below = np.searchsorted(thresholds, bits >> _SIGN_BIT, side="right")
        sizes = thresholds.size - below
        integers[span] += np.where(bits & _SIGN_BIT, sizes, -sizes).astype(np.uint32)


def _tail_weights(deviation: float, tail: int) -> npt.NDArray[np.uint64]:
    """The probability of noise of at least k units, k from `tail` down to 1, in units of 2**-63.

    They are summed from the smallest, so that the far tail is as exact as the rest.
    """
    sizes = np.arange(tail, 0, -1).astype(np.float64)
    one_side = np.cumsum(np.exp(-(sizes**2) / (2.0 * deviation**2)))
    total = 1.0 + 2.0 * one_side[-1]
    return np.asarray(2.0 * one_side / total * 2.0**63).astype(np.uint64)


def from_wire(content: bytes) -> Integers:
    """The integers in the bytes of a vector: little-endian uint32."""
    return np.frombuffer(content, WIRE).astype(np.uint32)


@dataclass(frozen=True)
class Total:
    """The sum of some updates, of one group or of several: exact, so that groups may be drawn in any way."""

    values: npt.NDArray[np.int64]  # (d,), in units
    weight: int
    reported: int
    shortened: int | None  # None under noise

    def __add__(self, other: Total) -> Total:
        shortened = None
        if self.shortened is not None and other.shortened is not None:
            shortened = self.shortened + other.shortened
        return Total(
            self.values + other.values,
            self.weight + other.weight,
            self.reported + other.reported,
            shortened,
        )

    def mean(self, scale: Scale) -> Mean:
        """The mean of the updates.

        That of honest updates is never longer than `clip`, apart from rounding. A longer one is shortened to it.
        """
        length = self.values.size
        if self.weight == 0:
            return Mean(np.zeros(length), 0, self.shortened, was_long=False)
        mean = self.values.astype(np.float64) * (scale.unit / self.weight)
        norm = float(np.linalg.norm(mean))
        slack = _ROUNDING * self.reported * math.sqrt(length) * scale.unit / self.weight
        was_long = norm > scale.clip + slack and not scale.is_noised
        if was_long:
            mean *= scale.clip / norm
        return Mean(mean, self.weight, self.shortened, was_long)


def total_of(integers: Integers, reported: int, scale: Scale) -> Total:
    """The sum of the updates in a sum without masks.

    Args:
        integers: the sum of `to_integers` of all reported updates, uint32 (d + scale.slots,).
        reported: number of updates, at least 1.
        scale: the same for all.

    Raises:
        OutOfRangeError: values, weight or count are larger than honest updates can make them.
    """
    signed = integers.view(np.int32)
    length = signed.size - scale.slots
    values = signed[:length].astype(np.int64)
    largest = reported * (scale.levels + scale.tail)
    if values.size and max(int(values.max()), -int(values.min())) > largest:
        raise OutOfRangeError(f"a value of the sum exceeds {largest}")
    if scale.is_noised:
        return Total(values, reported, reported, None)
    weight, shortened = int(signed[length]), int(signed[length + 1])
    if not 0 <= weight <= reported * scale.cap or not 0 <= shortened <= reported:
        raise OutOfRangeError(f"weight {weight} and count {shortened} of {reported} updates")
    return Total(values, weight, reported, shortened)


def mean_of(integers: Integers, reported: int, scale: Scale) -> Mean:
    """The mean of the updates in a sum without masks. Arguments and errors are those of `total_of`."""
    return total_of(integers, reported, scale).mean(scale)


def moved(base: Vector, mean: Mean) -> Vector:
    """The model (d,) that a mean leads to: summed in float64, rounded once."""
    return (base.astype(np.float64) + mean.vector).astype(np.float32)
