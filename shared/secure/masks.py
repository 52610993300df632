"""Masks: streams of ChaCha20 as integers mod 2**32, added to a vector or taken away again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import blocks
from covey.shared.secure.derivation import Stream
from covey.shared.secure.primitives import hashed, stream_of

Integers = npt.NDArray[np.uint32]  # (m,), mod 2**32
WIRE = np.dtype("<u4")


def integers_of(key: bytes, length: int) -> Integers:
    """PRG of shared/secure/README.md: the first `length` integers of a key's stream, uint32 (length,)."""
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
