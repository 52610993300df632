"""One independent random generator per (seed, purpose, keys...).

No global generator is ever reseeded: two purposes, rounds or clients never share a stream.
"""

from __future__ import annotations

import hashlib

import numpy as np


def entropy(seed: int, purpose: str, *keys: str | int) -> int:
    """128 bits that depend on every argument, the same on every machine and Python version."""
    text = "\x1f".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(seed: int, purpose: str, *keys: str | int) -> np.random.Generator:
    """The generator for one purpose, for example `generator(7, "cohort", round, attempt)`."""
    return np.random.default_rng(entropy(seed, purpose, *keys))
