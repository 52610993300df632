"""Gaussian noise from a key: only a holder of the key can repeat it.

Bits come from SHAKE-256, a cryptographic generator, and become normal numbers by the method of Box and Muller. A key is
secret on a device and at a real coordinator. A simulation derives it from the scenario's seed, so that runs repeat.
"""

from __future__ import annotations

import hashlib
import math
import secrets

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import blocks
from covey.shared.seeds import entropy

KEY_BYTES = 32
SIMULATED_KEY_BYTES = 16
COUNTER_BYTES = 8
UNUSED_BITS = np.uint64(11)  # of 64 random bits: a float64 has 53
UNIT = 2.0**-53  # the distance of neighbouring numbers of `uniform`

Float64 = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint64]


def new_key() -> bytes:
    """A secret key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


class Noise:
    """A stream of random numbers. Streams with the same key give the same numbers in the same order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._drawn = 0  # blocks of bits so far: each is generated from the key and its number

    def __repr__(self) -> str:
        return f"Noise(secret key, {self._drawn} blocks drawn)"

    @classmethod
    def secret(cls) -> Noise:
        """A stream that cannot be repeated: its key comes from the operating system and is not stored."""
        return cls(new_key())

    @classmethod
    def simulated(cls, seed: int, purpose: str, *keys: str | int) -> Noise:
        """A stream for simulations. It protects nothing: anyone who knows the seed can repeat it."""
        return cls(entropy(seed, purpose, *keys).to_bytes(SIMULATED_KEY_BYTES, "little"))

    def uniform(self, count: int) -> Float64:
        """Numbers in [0, 1), float64 (count,)."""
        return (self._bits(count) >> UNUSED_BITS).astype(np.float64) * UNIT

    def normal(self, count: int) -> Float64:
        """Standard normal numbers, float64 (count,)."""
        result = np.empty(count, np.float64)
        for span in blocks(count):
            result[span] = self._normal_block(span.stop - span.start)
        return result

    def _normal_block(self, width: int) -> Float64:
        """Box and Muller: two uniform numbers become two independent normal ones."""
        pairs = -(-width // 2)  # rounded up: the last number of an odd block is dropped
        logarithm = np.log1p(-self.uniform(pairs))
        radius = np.sqrt(-2.0 * logarithm)
        angle = 2.0 * math.pi * self.uniform(pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:width]

    def _bits(self, count: int) -> Bits:
        """64 random bits for each of `count` numbers, never used before."""
        self._drawn += 1
        stream = hashlib.shake_256(self._key + self._drawn.to_bytes(COUNTER_BYTES, "little"))
        return np.frombuffer(stream.digest(8 * count), "<u8").astype(np.uint64)
