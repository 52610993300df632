"""What both ends know of the phases of a secure sum: their names, how messages travel in them, what an order starts from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from covey.extras.secure.derivation import SKETCH, OrderStart, start_of
from covey.extras.secure.integers import Integers
from covey.extras.secure.primitives import hashed
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Vector, blocks
from covey.shared.strategies.phase_names import AHEAD as AHEAD
from covey.shared.strategies.phase_names import BOX as BOX
from covey.shared.strategies.phase_names import JOIN as JOIN
from covey.shared.strategies.phase_names import MASKED as MASKED
from covey.shared.strategies.phase_names import TRAIN
from covey.shared.strategies.phase_names import UNMASK as UNMASK
from covey.shared.strategies.phase_names import WORDS as WORDS
from covey.shared.wire.messages import Work, packed

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


# of the report to this very order: `Terms.vectors` names those of the update, alike for all members
NOT_COMPARED = frozenset({"sizes"})


def sketch(model: Vector, secret: bytes) -> bytes:
    """Where a model lies: near models have near sketches, and nobody without the secret can make two others near, or two
    near ones look different.

    Four sums of the values with random signs (Alon, Matias, Szegedy 1999), in units of the length that values of 1 would add.
    """
    signs = np.random.Generator(np.random.Philox(key=int.from_bytes(secret[:16], "little")))
    sums, square = np.zeros(4), float(model.size)
    for span in blocks(model.size):
        values = model[span].astype(np.float64)
        square += float(values @ values)
        bits = np.unpackbits(np.frombuffer(signs.bytes(-(-values.size // 8)), np.uint8))
        np.negative(values, out=values, where=bits[: values.size].view(np.bool_))
        sums += [values[bucket::4].sum() for bucket in range(4)]
    return SKETCH.pack(*(sums / max(square, 1.0) ** 0.5))


def start_of_work(
    work: Work,
    models: Sequence[Vector],
    own: int,
    *,
    messages: int,
    begins: slice | None,
    secret: bytes,
    apart: Collection[str] = (),
) -> OrderStart:
    """What an order starts from: everything that the agent received of it, so that members of a sum did the same work.

    The orders of the phases of one sum differ in what announces the phase, in `NOT_COMPARED`, and in the messages of the sum.

    Args:
        work: of the order.
        models: all vectors that it names, in their order.
        own: of these come first, with messages and without what does not travel.
        messages: the last of these are messages of the sum.
        begins: with which of the others training begins. None: each of them is evaluated.
        secret: of the agent, for the sketches of these; empty: none is needed.
        apart: phases whose sums are other work than those of all others.
    """
    numbers = dict(work.numbers)
    phase = numbers.pop(AHEAD, work.phase)
    told = slice(own - messages, own)
    refs, brought = list(work.models), list(models)
    del refs[told], brought[told]
    same = work.model_copy(update={"phase": phase, "numbers": numbers, "models": refs})
    received = packed(same.model_dump(exclude=set(NOT_COMPARED)))
    digests = [hashed("model", model.astype("<f4", copy=False).tobytes()) for model in brought]
    settings = {*NOT_COMPARED, "phase", "numbers", "models", "cluster"}
    order = hashed("order", packed(work.model_dump(exclude=settings)))
    named = order[:8] + hashed("phase", (phase if phase in apart else TRAIN).encode())[:8]
    named_models = models[: own - messages]
    # each model has a sketch of its own: one without meaning may come with the one that counts
    sketched = named_models if begins is None else named_models[begins]
    purpose = "sketch of figures" if begins is None else "sketch"
    content = b"".join(sketch(model, hashed(purpose, secret)) for model in sketched if secret)
    return start_of(received, digests, content, named)
