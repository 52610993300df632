"""One vector to bytes and back, in one of five ways; each may carry the vector or its difference to a base.

| codec      | bytes per value | precision |
|------------|-----------------|-----------|
| `float32`  | 4               | exact |
| `float16`  | 2               | 11 significant bits; beyond ±65 504 the largest value |
| `bfloat16` | 2               | 8 significant bits, the range of float32 |
| `int8`     | 1 + 4 per block | steps of (largest absolute value of the block) / 127, rounded at random, without bias |
| `topk`     | 8 per kept one  | the largest `keep` share of a difference; the rest is added to the next difference |

Everything is little-endian. A step of int8 is at least 2**-119, and the mean of many roundings differs from the value by
at most 2**-14 of a step. int8 follows Alistarh et al. 2017 (QSGD: stochastic rounding, one scale per bucket), topk
with error feedback Stich et al. 2018 (Sparsified SGD with Memory), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Layout, Peaks, Vector, peaks
from covey.shared.wire import number_formats
from covey.shared.wire.largest import Difference, largest
from covey.shared.wire.messages import Encoded, ModelContent
from covey.shared.wire.number_formats import FLOAT32, UINT32, finite

Name = Literal["float32", "float16", "bfloat16", "int8", "topk"]
Bases = Callable[[bytes], Vector]

Block = Annotated[int, Field(ge=8, le=1 << 20)]
Keep = Annotated[float, Field(gt=0, le=1)]
Generator = np.random.Generator
Base = Vector | None  # (d,), the model that a difference is added to
Reader = Callable[[Encoded, Base], Vector]

WORDS = "uint32"  # the codec of integers, which a scenario cannot choose
NOT_SENT = np.float32(0)  # what topk adds to the other values of a base
MOST_WORDS = 1 << 18  # of a message of secure sums
MOST_BESIDE = 1 << 22  # of what travels as a model does and is none: such messages, a companion
MAX_DETAIL = 200  # characters of a refusal


class PayloadBytes(NamedTuple):
    """Bytes of the three fields of an encoded vector."""

    data_bytes: int
    scale_bytes: int = 0
    index_bytes: int = 0


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Codec:
    """Which codec, and its options."""

    name: Name = "float32"
    delta: bool = False  # send the difference to a base, where there is one
    block: Block = 256  # int8: values per scale
    keep: Keep = 0.01  # topk: share of the values that is sent

    def to_wire(self) -> dict[str, Any]:
        """The four fields as plain data."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Codec:
        """The codec of an order. Raises DecodeError("codec") for anything but the four fields."""
        try:
            return cls(**wire)
        except (ValidationError, TypeError) as error:
            detail = str(error).replace("\n", " ")
            raise DecodeError("codec", detail[:MAX_DETAIL]) from None

    def kept(self, length: int) -> int:
        """How many values of a difference (length,) topk sends: at least one, if there is one."""
        return min(length, max(1, math.ceil(self.keep * length)))

    def payload_bytes(self, length: int, based: bool) -> PayloadBytes:
        """The size of an encoded vector (length,). `based`: the vector has a base."""
        match self.name:
            case "topk" if based and self.delta:
                count = self.kept(length)
                return PayloadBytes(4 * count, index_bytes=4 * count)
            case "int8":
                scales = number_formats.block_count(length, self.block)
                return PayloadBytes(length, scale_bytes=4 * scales)
            case "float16" | "bfloat16":
                return PayloadBytes(2 * length)
        return PayloadBytes(4 * length)


def encode(
    vector: Vector,
    codec: Codec,
    *,
    base: Vector | None = None,
    base_digest: bytes = b"",
    error: Vector | None = None,
    rng: Generator,
) -> tuple[Encoded, Vector | None]:
    """Encode a vector, or its difference to a base if `codec.delta` is set and a base is given.

    Under topk a vector without a base is sent as float32: a signature or a gradient is sent once, so nothing of it may
    be left for the next time.

    Args:
        vector: float32 (d,).
        codec: the codec and its options.
        base: the model (d,) that the vector is a difference to.
        base_digest: the digest of the base.
        error: (d,), what topk did not send the last time.
        rng: only int8 draws from it, once.

    Returns:
        The encoded vector, and under topk what was not sent (d,), to be given as `error` the next time; else None.

    Raises:
        ValueError: the vector, the difference or a sum is not finite; lengths differ; or a base has no digest.
    """
    if vector.dtype == np.uint32:  # integers mod 2**32 of secure sums: exact, whatever the codec
        return Encoded(codec=WORDS, length=vector.size, data=vector.astype(UINT32).tobytes()), None
    if base is None or not codec.delta:
        name = "float32" if codec.name == "topk" else codec.name
        encoded = _encode_dense(vector, name, codec.block, b"", rng)
        return encoded, None
    if not base_digest:
        raise ValueError("a difference needs the digest of its base")
    if vector.shape != base.shape:
        raise ValueError(f"the vector has shape {vector.shape}, its base {base.shape}")
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found later
        if codec.name == "topk":
            return _encode_topk(vector, base, codec, base_digest, error)
        difference = vector - base
    encoded = _encode_dense(difference, codec.name, codec.block, base_digest, rng)
    return encoded, None


def decode(encoded: Encoded, *, length: int, bases: Bases | None = None) -> Vector:
    """The vector that `encode` got, as far as the codec keeps it: see `measured`."""
    values, _ = measured(encoded, length=length, bases=bases)
    return values


def measured(encoded: Encoded, *, length: int, bases: Bases | None = None) -> tuple[Vector, Peaks]:
    """The vector that `encode` got, as far as the codec keeps it, and its peaks.

    Args:
        encoded: from the network.
        length: the expected number of values; -n: any number up to n.
        bases: finds the model (d,) with a digest, or raises LookupError.

    Returns:
        Finite float32 (length,). It may be read-only.

    Raises:
        DecodeError: and nothing else, for one of the reasons "unknown codec", "wrong length", "bad scale",
            "bad index", "no base", "wrong base", "not finite".
    """
    _check_length(encoded.length, length)
    if encoded.codec not in _READERS:
        raise DecodeError("unknown codec", encoded.codec)
    if encoded.codec == "topk" and not encoded.base:
        raise _no_base_of_topk()
    base = _find(bases, encoded) if encoded.base else None
    reader = _READERS[encoded.codec]
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found below
        values = reader(encoded, base)
    found = peaks(values)
    if not all(map(math.isfinite, found)):
        raise DecodeError("not finite", f"codec {encoded.codec}")
    return values, found


def _check_length(seen: int, length: int) -> None:
    if length >= 0 and seen != length:
        raise DecodeError("wrong length", f"{seen} values, expected {length}")
    if length < 0 and seen > -length:
        raise DecodeError("wrong length", f"{seen} values, expected at most {-length}")


# -- encoding ----------------------------------------------------------------------------------------------------------


def _encode_dense(
    values: Vector, name: str, block: int, base_digest: bytes, rng: Generator
) -> Encoded:
    """All values (d,), by any codec except topk. Raises ValueError unless all are finite."""
    scale = b""
    match name:
        case "float32":
            little_endian = finite(values).astype(FLOAT32, copy=False)
            data = little_endian.tobytes()
        case "float16":
            data = number_formats.to_float16(values)
        case "bfloat16":
            data = number_formats.to_bfloat16(values)
        case _:
            data, scale = number_formats.to_int8(values, block, rng)
    return Encoded(codec=name, length=values.size, base=base_digest, data=data, scale=scale)


def _encode_topk(
    vector: Vector, base: Vector, codec: Codec, base_digest: bytes, error: Vector | None
) -> tuple[Encoded, Vector]:
    """The largest values (d,) of a difference are sent. The rest of it is the error to keep.

    Raises:
        ValueError: a value is not finite, or the kept error has another length.
    """
    if error is not None and error.shape != vector.shape:
        raise ValueError(f"the kept error has shape {error.shape}, the vector {vector.shape}")
    values, index = largest(Difference(vector, base, error), codec.kept(vector.size))
    positions = index.astype(UINT32)
    sent = values[index].astype(FLOAT32)
    values[index] = 0
    encoded = Encoded(
        codec="topk",
        length=values.size,
        base=base_digest,
        data=sent.tobytes(),
        index=positions.tobytes(),
    )
    return encoded, values


# -- decoding ----------------------------------------------------------------------------------------------------------


def _find(bases: Bases | None, encoded: Encoded) -> Vector:
    """The base (d,) of a difference. Raises DecodeError "no base" or "wrong base"."""
    digest = encoded.base.hex()
    missing = DecodeError("no base", f"the model {digest} is not here")
    if bases is None:
        raise missing
    try:
        base = bases(encoded.base)
    except LookupError:
        raise missing from None
    if base.shape != (encoded.length,):
        raise DecodeError(
            "wrong base", f"{encoded.length} values against a base of shape {base.shape}"
        )
    return base


def _expect(encoded: Encoded, data: int, scale: int = 0, index: int = 0) -> None:
    """Raises DecodeError "wrong length" unless the three fields have these sizes in bytes."""
    seen = PayloadBytes(len(encoded.data), len(encoded.scale), len(encoded.index))
    expected = PayloadBytes(data, scale, index)
    if seen != expected:
        raise DecodeError(
            "wrong length",
            f"{tuple(seen)} bytes of data, scale and index, expected {tuple(expected)}",
        )


def _from_float32(encoded: Encoded, base: Base) -> Vector:
    _expect(encoded, 4 * encoded.length)
    little_endian = np.frombuffer(encoded.data, FLOAT32)
    return _sum(little_endian.astype(np.float32, copy=False), base)


def _from_float16(encoded: Encoded, base: Base) -> Vector:
    _expect(encoded, 2 * encoded.length)
    return _sum(number_formats.from_float16(encoded.data), base)


def _from_bfloat16(encoded: Encoded, base: Base) -> Vector:
    _expect(encoded, 2 * encoded.length)
    return _sum(number_formats.from_bfloat16(encoded.data), base)


def _from_int8(encoded: Encoded, base: Base) -> Vector:
    _expect(encoded, encoded.length, scale=4 * (len(encoded.scale) // 4))
    try:
        scale = number_formats.scales_of(encoded.scale, encoded.length)
    except ValueError as error:
        raise DecodeError("bad scale", str(error)) from None
    return _sum(number_formats.from_int8(encoded.data, scale), base)


def _no_base_of_topk() -> DecodeError:
    return DecodeError("no base", "topk carries differences only")


def _sum(values: Vector, base: Base) -> Vector:
    if base is None:
        return values
    return base + values


def _from_words(encoded: Encoded, base: Base) -> Any:
    """Integers mod 2**32, uint32: vectors and messages of secure sums."""
    _expect(encoded, 4 * encoded.length)
    return np.frombuffer(encoded.data, UINT32).astype(np.uint32, copy=False)


def _from_topk(encoded: Encoded, base: Base) -> Vector:
    count = len(encoded.data) // 4
    _expect(encoded, data=4 * count, index=4 * count)
    index = np.frombuffer(encoded.index, UINT32)
    if count:
        ascends = index[1:] > index[:-1]
        within = index[-1] < encoded.length
        if not (ascends.all() and within):
            raise DecodeError("bad index", f"positions must ascend and lie below {encoded.length}")
    if base is None:
        raise _no_base_of_topk()
    sent = np.frombuffer(encoded.data, FLOAT32)
    values = base + NOT_SENT
    of_base = base[index]
    values[index] = of_base + sent
    return values


_READERS: dict[str, Reader] = {
    "float32": _from_float32,
    "float16": _from_float16,
    "bfloat16": _from_bfloat16,
    "int8": _from_int8,
    "topk": _from_topk,
    WORDS: _from_words,
}


def encode_model(
    vector: Vector, layout_digest: str, codec: Codec, rng: np.random.Generator
) -> bytes:
    """A model (d,), or a part of one, as the content of a model topic."""
    encoded, _ = encode(vector, codec, base=None, base_digest=b"", error=None, rng=rng)
    return ModelContent(layout=layout_digest, vector=encoded).to_bytes()


def decode_model(content: bytes, layout: Layout, *, verified: bool = False) -> Vector:
    """The model (d,) in the content of a model topic, or the part of one that a method sends.

    Args:
        content: as it travelled.
        layout: of the whole model.
        verified: the caller has compared the digest of the content.

    Raises:
        DecodeError: the content has another layout or more values than the layout, or is damaged.
    """
    message = ModelContent.from_bytes(content, verified=verified)
    if message.layout != layout.digest:
        raise DecodeError(
            "layout", f"the model has layout {message.layout}, expected {layout.digest}"
        )
    most = max(layout.size, MOST_BESIDE) if message.vector.codec == WORDS else layout.size
    return decode(message.vector, length=-most)
