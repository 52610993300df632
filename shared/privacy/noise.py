"""Gaussian noise from a key: whoever lacks the key cannot repeat it, whoever holds it gets the same noise again.

Bits come from SHAKE-256, a cryptographic generator, and become normal numbers by Box and Muller's method. A key is
secret on a device and at a real coordinator; a simulation derives it from the scenario's seed, so that runs repeat.
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
MANTISSA = 2.0**-53

Float64 = npt.NDArray[np.float64]


def new_key() -> bytes:
    """A secret key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


class Noise:
    """A stream of numbers. Two streams with the same key give the same numbers in the same order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._drawn = 0  # calls so far: each gets bits of its own

    @classmethod
    def secret(cls) -> Noise:
        """A stream that nobody can repeat: its key comes from the operating system and is never stored."""
        return cls(new_key())

    @classmethod
    def simulated(cls, seed: int, purpose: str, *keys: str | int) -> Noise:
        """A stream that anyone who knows the seed can repeat: it hides nothing and is for simulations only."""
        return cls(entropy(seed, purpose, *keys).to_bytes(16, "little"))

    def uniform(self, count: int) -> Float64:
        """Numbers in [0, 1), (count,)."""
        whole = (self._bits(count) >> np.uint64(11)).astype(np.float64)
        return whole * MANTISSA

    def normal(self, count: int) -> Float64:
        """Standard normal numbers, (count,)."""
        result = np.empty(count, np.float64)
        for span in blocks(count):
            width = span.stop - span.start
            pairs = -(-width // 2)
            radius = np.sqrt(-2.0 * np.log1p(-self.uniform(pairs)))
            angle = 2.0 * math.pi * self.uniform(pairs)
            both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
            result[span] = both[:width]
        return result

    def _bits(self, count: int) -> npt.NDArray[np.uint64]:
        self._drawn += 1
        stream = hashlib.shake_256(self._key + self._drawn.to_bytes(8, "little"))
        return np.frombuffer(stream.digest(8 * count), "<u8").astype(np.uint64)
