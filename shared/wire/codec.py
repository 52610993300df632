"""One vector to bytes and back, in one of five ways; each may carry the vector or its difference to a base.

| codec      | bytes per value | what it keeps |
|------------|-----------------|---------------|
| `float32`  | 4               | everything |
| `float16`  | 2               | 11 significant bits, beyond ±65 504 the largest value |
| `bfloat16` | 2               | 8 significant bits, the range of float32 |
| `int8`     | 1 + 4 per block | a step of (largest absolute value of the block) / 127, rounded at random without bias |
| `topk`     | 8 per kept one  | the largest `keep` share of a difference; the rest waits in the error for the next time |

Everything is little-endian. int8 follows Alistarh et al. 2017 (QSGD: stochastic rounding, scale per bucket), topk with
error feedback Stich et al. 2018 (Sparsified SGD with Memory), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import BLOCK, Vector, blocks
from covey.shared.wire.messages import Encoded

Name = Literal["float32", "float16", "bfloat16", "int8", "topk"]
Bases = Callable[[bytes], Vector]

LARGEST_FLOAT16 = np.float32(65504)
LARGEST_BFLOAT16 = np.uint32(0x7F7F0000).view(np.float32)
LARGEST_SCALE = np.nextafter(
    np.finfo(np.float32).max / np.float32(127), np.float32(0)
)  # 127 times it is finite


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Codec:
    """Which codec, and its options: `block` values per scale of int8, `keep` the share that topk sends."""

    name: Name = "float32"
    delta: bool = False
    block: Annotated[int, Field(ge=8, le=1 << 20)] = 256
    keep: Annotated[float, Field(gt=0, le=1)] = 0.01

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Codec:
        """DecodeError("codec") for anything but the four fields."""
        try:
            return cls(**wire)
        except (ValidationError, TypeError) as error:
            raise DecodeError("codec", str(error).replace("\n", " ")[:200]) from None

    def kept(self, length: int) -> int:
        """How many values of a difference (length,) topk sends: at least one, if there is one."""
        return min(length, max(1, math.ceil(self.keep * length)))

    def payload_bytes(self, length: int, based: bool) -> tuple[int, int, int]:
        """Bytes of `data`, `scale` and `index` of an encoded vector (length,); `based`: it has a base."""
        match self.name:
            case "topk" if based and self.delta:
                return 4 * self.kept(length), 0, 4 * self.kept(length)
            case "int8":
                return length, 4 * _block_count(length, self.block), 0
            case "float16" | "bfloat16":
                return 2 * length, 0, 0
        return 4 * length, 0, 0


def encode(
    vector: Vector,
    codec: Codec,
    *,
    base: Vector | None = None,
    base_digest: bytes = b"",
    error: Vector | None = None,
    rng: np.random.Generator,
) -> tuple[Encoded, Vector | None]:
    """The encoded vector (d,), and what topk left out (d,), to be passed as `error` next time (else None).

    The difference to `base` (d,) is sent where `codec.delta` is set and a base is given. A vector without a base
    goes as float32 under topk: of a signature or a gradient that is sent once, nothing may be left for later.
    `rng` is drawn from by int8 alone. Raises ValueError for a vector, difference or sum that is not finite, for
    lengths that differ, and for a base without a digest.
    """
    if base is None or not codec.delta:
        name = "float32" if codec.name == "topk" else codec.name
        return _dense(_checked(vector), name, codec.block, b"", rng), None
    if not base_digest:
        raise ValueError("a difference needs the digest of its base")
    values = _difference(vector, base)
    if codec.name == "topk":
        return _top(values, codec, base_digest, error)
    return _dense(values, codec.name, codec.block, base_digest, rng), None


def decode(encoded: Encoded, *, length: int, bases: Bases | None = None) -> Vector:
    """The vector, finite float32, (length,), or for a negative `length` -n any length up to n.

    `bases` finds the model (d,) with a digest, or raises LookupError. Raises DecodeError and nothing else: "unknown
    codec", "wrong length", "bad scale", "bad index", "no base", "wrong base", "not finite". The result may be read-only.
    """
    if encoded.length != length if length >= 0 else encoded.length > -length:
        raise DecodeError(
            "wrong length",
            f"{encoded.length} values, want {length if length >= 0 else f'<= {-length}'}",
        )
    reader = _READERS.get(encoded.codec)
    if reader is None:
        raise DecodeError("unknown codec", encoded.codec)
    if encoded.codec == "topk" and not encoded.base:
        raise DecodeError("no base", "topk is for differences alone")
    base = _find(bases, encoded) if encoded.base else None
    values = reader(encoded)
    if base is not None:
        values = _sum(values, base)
    if not _is_finite(values):
        raise DecodeError("not finite", f"codec {encoded.codec}")
    return values


# -- encoding ----------------------------------------------------------------------------------------------------------


def _dense(values: Vector, name: str, block: int, base: bytes, rng: np.random.Generator) -> Encoded:
    scale = b""
    match name:
        case "float32":
            data = values.astype("<f4", copy=False).tobytes()
        case "float16":
            data = b"".join(
                np.clip(values[span], -LARGEST_FLOAT16, LARGEST_FLOAT16).astype("<f2").tobytes()
                for span in blocks(values.size)
            )
        case "bfloat16":
            data = b"".join(_to_bfloat16(values[span]).tobytes() for span in blocks(values.size))
        case _:
            data, scale = _to_int8(values, block, rng)
    return Encoded(codec=name, length=values.size, base=base, data=data, scale=scale)


def _to_bfloat16(values: Vector) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even, on the bits: adding 0x7fff plus the lowest kept bit carries exactly then."""
    bits = np.clip(values, -LARGEST_BFLOAT16, LARGEST_BFLOAT16).view(np.uint32)
    return (
        (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    ).astype("<u2")


def _block_count(length: int, block: int) -> int:
    return -(-length // block)


def _spans(length: int, block: int) -> Iterator[slice]:
    """Slices of whole blocks, about BLOCK values each."""
    return blocks(length, block * max(1, BLOCK // block))


def _to_int8(values: Vector, block: int, rng: np.random.Generator) -> tuple[bytes, bytes]:
    """Blocks as for parts: the count says the length, ceil(d / count), so that no header is needed."""
    count = _block_count(values.size, block)
    block = _block_count(values.size, count) if count else 1
    data, scales = [], []
    for span in _spans(values.size, block):
        chunk = values[span]
        peak = np.maximum.reduceat(np.abs(chunk), np.arange(0, chunk.size, block))
        scale = np.minimum(peak / np.float32(127), LARGEST_SCALE)
        each = np.repeat(scale, block)[: chunk.size]
        steps = np.divide(
            chunk, each, out=np.zeros_like(chunk), where=each > 0
        )  # a block of zeros has no scale
        steps = np.floor(steps + rng.random(chunk.size, dtype=np.float32))
        data.append(np.clip(steps, -127, 127).astype(np.int8).tobytes())
        scales.append(scale.astype("<f4").tobytes())
    return b"".join(data), b"".join(scales)


def _top(values: Vector, codec: Codec, base: bytes, error: Vector | None) -> tuple[Encoded, Vector]:
    """Values (d,) are changed in place: what is left of them is the error to keep."""
    if error is not None:
        if error.shape != values.shape:
            raise ValueError(f"the kept error has shape {error.shape}, the vector {values.shape}")
        with np.errstate(over="ignore"):
            values += error
        _checked(values)
    index = _largest(values, codec.kept(values.size))
    sent = values[index].astype("<f4")
    values[index] = 0
    positions = index.astype("<u4").tobytes()
    return Encoded(
        codec="topk", length=values.size, base=base, data=sent.tobytes(), index=positions
    ), values


def _largest(values: Vector, count: int) -> npt.NDArray[np.intp]:
    """Ascending positions of the `count` largest absolute values (d,); of equal ones the first."""
    if not count:
        return np.empty(0, np.intp)
    magnitude = np.abs(values)
    magnitude.partition(values.size - count)
    threshold = magnitude[values.size - count]
    np.abs(values, out=magnitude)
    above = np.flatnonzero(magnitude > threshold)
    equal = np.flatnonzero(magnitude == threshold)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def _difference(vector: Vector, base: Vector) -> Vector:
    if vector.shape != base.shape:
        raise ValueError(f"the vector has shape {vector.shape}, its base {base.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        return _checked(vector - base)


def _checked(values: Vector) -> Vector:
    if not _is_finite(values):
        raise ValueError("the vector holds NaN or infinity")
    return values


def _is_finite(values: Vector) -> bool:
    return all(bool(np.isfinite(values[span]).all()) for span in blocks(values.size))


# -- decoding ----------------------------------------------------------------------------------------------------------


def _find(bases: Bases | None, encoded: Encoded) -> Vector:
    try:
        base = bases(encoded.base) if bases is not None else None
    except LookupError:
        base = None
    if base is None:
        raise DecodeError("no base", f"the model {encoded.base.hex()} is not here")
    if base.shape != (encoded.length,):
        raise DecodeError(
            "wrong base", f"{encoded.length} values against a base of shape {base.shape}"
        )
    return base


def _sum(values: Vector, base: Vector) -> Vector:
    with np.errstate(over="ignore", invalid="ignore"):
        return base + values


def _expect(encoded: Encoded, data: int, scale: int = 0, index: int = 0) -> None:
    seen = (len(encoded.data), len(encoded.scale), len(encoded.index))
    if seen != (data, scale, index):
        raise DecodeError(
            "wrong length", f"{seen} bytes of data, scale, index, want {(data, scale, index)}"
        )


def _from_float32(encoded: Encoded) -> Vector:
    _expect(encoded, 4 * encoded.length)
    return np.frombuffer(encoded.data, "<f4").astype(np.float32, copy=False)


def _from_float16(encoded: Encoded) -> Vector:
    _expect(encoded, 2 * encoded.length)
    return np.frombuffer(encoded.data, "<f2").astype(np.float32)


def _from_bfloat16(encoded: Encoded) -> Vector:
    _expect(encoded, 2 * encoded.length)
    bits = np.frombuffer(encoded.data, "<u2").astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def _from_int8(encoded: Encoded) -> Vector:
    length, count = encoded.length, len(encoded.scale) // 4
    _expect(encoded, length, 4 * count)
    block = _block_count(length, count) if count else 1
    if not block or _block_count(length, block) != count:  # a vector of no values has no scale
        raise DecodeError(
            "bad scale", f"{count} scales do not cut {length} values into equal blocks"
        )
    scale = np.frombuffer(encoded.scale, "<f4")
    if not (np.isfinite(scale).all() and (scale >= 0).all()):
        raise DecodeError("bad scale", "a scale is negative or not finite")
    values = np.frombuffer(encoded.data, np.int8).astype(np.float32)
    with np.errstate(over="ignore"):
        for span in _spans(length, block):
            own = scale[span.start // block : -(-span.stop // block)]
            values[span] *= np.repeat(own, block)[: span.stop - span.start]
    return values


def _from_topk(encoded: Encoded) -> Vector:
    count = len(encoded.data) // 4
    _expect(encoded, 4 * count, 0, 4 * count)
    index = np.frombuffer(encoded.index, "<u4")
    if count and (index[-1] >= encoded.length or not (index[1:] > index[:-1]).all()):
        raise DecodeError("bad index", f"positions must ascend and lie below {encoded.length}")
    values = np.zeros(encoded.length, np.float32)
    values[index] = np.frombuffer(encoded.data, "<f4")
    return values


_READERS: dict[str, Callable[[Encoded], Vector]] = {
    "float32": _from_float32,
    "float16": _from_float16,
    "bfloat16": _from_bfloat16,
    "int8": _from_int8,
    "topk": _from_topk,
}
