"""One independent random generator per seed, purpose and keys.

A generator is never seeded again: two purposes, rounds or clients never share a stream of numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np

Key = str | int
ENTROPY_BYTES = 16
SEPARATOR = "\x1f"  # does not occur in keys, so that ("a", "bc") and ("ab", "c") differ


def entropy(seed: int, purpose: str, *keys: Key) -> int:
    """128 bits that depend on every argument, and are the same on every machine and Python version."""
    words = [str(seed), purpose]
    words += [str(key) for key in keys]
    text = SEPARATOR.join(words)
    # A key may be the name of a file whose bytes are not valid UTF-8: Python holds such bytes as lone surrogates.
    encoded = text.encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=ENTROPY_BYTES).digest(), "little")


def generator(seed: int, purpose: str, *keys: Key) -> np.random.Generator:
    """The generator for one purpose, for example `generator(7, "cohort", round, attempt)`."""
    return np.random.default_rng(entropy(seed, purpose, *keys))
