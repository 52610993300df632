"""What both ends know of the phases of a secure sum: their names, how messages travel in them, what an order starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgpack
import numpy as np
import numpy.typing as npt

from covey.shared import json_text
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Vector
from covey.shared.secure.derivation import Start, start_of
from covey.shared.secure.masks import Integers
from covey.shared.secure.primitives import hashed
from covey.shared.strategies.base import Strategy, Training
from covey.shared.strategies.phase_names import AHEAD as AHEAD
from covey.shared.strategies.phase_names import BOX as BOX
from covey.shared.strategies.phase_names import JOIN as JOIN
from covey.shared.strategies.phase_names import UNMASK as UNMASK

WORDS = "secure"  # the vector of a report that holds a message
MASKED = "masked"
HEAD = "head"  # the number of a report with a masked vector: the words of its head
MOST_WORDS = 1 << 18  # of a message in a report
LENGTH_BYTES = 4


def words_of(content: bytes) -> Vector:
    """A message as integers, uint32 (m,), which travel like a vector."""
    framed = len(content).to_bytes(LENGTH_BYTES, "little") + content
    words = np.frombuffer(framed + bytes(-len(framed) % 4), "<u4").astype(np.uint32)
    return cast(Vector, words)


def integers_in(vector: npt.NDArray[Any]) -> Integers:
    """The integers (m,) of a vector, also where a spool has their bits as floating-point numbers."""
    return np.ascontiguousarray(vector).view(np.uint32)


def bytes_of(words: npt.NDArray[Any]) -> bytes:
    """The message in such integers. Raises DecodeError("secure words") for others."""
    content = integers_in(words).astype("<u4").tobytes()
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if LENGTH_BYTES + length > len(content):
        raise DecodeError("secure words", "expected a message in unsigned integers")
    return content[LENGTH_BYTES : LENGTH_BYTES + length]


def start_of_work(
    method: Strategy[Any],
    training: Training,
    seed: int,
    round: int,
    numbers: Mapping[str, Any],
    models: Sequence[Vector],
) -> Start:
    """What an order starts from: agents compute it from their own order."""
    settings = json_text.dumps(
        [method.model_dump(mode="json"), training.model_dump(mode="json"), seed]
    )
    packed: bytes = msgpack.packb(dict(numbers))
    digests = [hashed("model", model.astype("<f4", copy=False).tobytes()) for model in models]
    return start_of(hashed("settings", settings.encode()), "train", round, packed, digests)
