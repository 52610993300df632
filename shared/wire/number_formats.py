"""Float32 vectors in 16 or 8 bits per value, and back: the formats of the codecs float16, bfloat16 and int8.

Everything is little-endian. Vectors are converted in blocks that fit into the processor's cache, and each block is
checked while it is there. `codec` adds what else travels with these bytes, and refuses bytes of a wrong length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Vector, blocks, peaks

IN_CACHE = (
    1 << 17
)  # values of a block: the few arrays of a conversion then fit into the cache of one core

FLOAT16 = np.dtype("<f2")
FLOAT32 = np.dtype("<f4")
UINT8 = np.dtype(np.uint8)
UINT16 = np.dtype("<u2")
UINT32 = np.dtype("<u4")
UINT64 = np.dtype("<u8")

HALF_BITS = np.uint32(16)
LOWEST_BIT = np.uint32(1)
ALMOST_HALF = np.uint32(0x7FFF)  # of the lowest bit that bfloat16 keeps
MAX_BFLOAT16_BITS = np.uint32(0x7F7F0000)
MAX_BFLOAT16 = MAX_BFLOAT16_BITS.view(np.float32)

MAX_FLOAT16 = np.float32(65504)
SIGN16 = np.uint16(15)  # the place of the sign in a float16
EXPONENT = np.uint32(0xFF << 23)  # of a float32
SMALLEST_NORMAL = np.uint32(127 - 14 << 23)  # 2**-14, the exponent of the subnormal float16 too
LOST_BITS = np.uint32(23 - 10)  # a float32 has 23 bits after the point, a float16 10
TIMES_2_TO_13 = np.uint32(13 << 23)  # in an exponent
# what the other terms of `_float16` have too little, so that the exponent's bias is 15 instead of 127
BIAS = np.uint32(2048)

INT8_STEPS = np.float32(127)
MAX_FLOAT32 = np.finfo(np.float32).max
LARGEST_QUOTIENT = MAX_FLOAT32 / INT8_STEPS
MAX_SCALE = np.nextafter(LARGEST_QUOTIENT, np.float32(0))  # 127 times this scale is finite
MIN_SCALE = np.float32(2.0**-119)  # 256 divided by this scale is finite
FRACTIONS = np.float32(256)  # parts of a step: as many as a random byte has values
FRACTION_BITS = np.uint16(8)
ABOVE_ZERO = np.float32(1 << 15)
SIGN8 = np.uint8(0x80)
SHARED_BITS = 5

Array = npt.NDArray[Any]
Generator = np.random.Generator


class Scratch:
    """Memory for the steps of a conversion, used for one block after the other.

    New memory for each block would cost more than the conversion, because the kernel clears it first.
    """

    def __init__(self, size: int) -> None:
        self._arrays: dict[str, Array] = {
            "bits": np.empty(size, np.uint32),
            "more_bits": np.empty(size, np.uint32),
            "short": np.empty(size, UINT16),
            "is_negative": np.empty(size, np.bool_),
        }

    def __repr__(self) -> str:
        size = self._arrays["bits"].size
        return f"<Scratch for blocks of {size} values>"

    def first(self, name: str, length: int) -> Array:
        """The first values (length,) of an array. Their contents are undefined."""
        part: Array = self._arrays[name][:length]
        return part


Conversion = Callable[[Vector, Array, Scratch], None]  # writes the short form (n,) of values (n,)
Writer = Callable[[Array], None]


def finite(values: Vector) -> Vector:
    """The values (d,) themselves. Raises ValueError unless all are finite."""
    if not all(map(math.isfinite, peaks(values))):
        raise ValueError("the vector holds NaN or infinity")
    return values


def to_float16(values: Vector) -> bytes:
    """Two bytes per value (d,). Values beyond the range become the largest one instead of infinity.

    Raises:
        ValueError: a value is not finite.
    """
    return _in_blocks(values, MAX_FLOAT16, CONVERSIONS["float16"])


def from_float16(data: bytes) -> Vector:
    """The values (d,) in `data`."""
    return np.frombuffer(data, FLOAT16).astype(np.float32)


def to_bfloat16(values: Vector) -> bytes:
    """Two bytes per value (d,): the upper half of its bits, rounded to nearest, ties to even.

    Raises:
        ValueError: a value is not finite.
    """
    return _in_blocks(values, MAX_BFLOAT16, CONVERSIONS["bfloat16"])


def from_bfloat16(data: bytes) -> Vector:
    """The values (d,) in `data`."""
    bits = np.frombuffer(data, UINT16).astype(np.uint32)
    bits <<= HALF_BITS
    return bits.view(np.float32)


def _in_blocks(values: Vector, limit: np.float32, convert: Conversion) -> bytes:
    def write(out: Array) -> None:
        scratch = Scratch(min(values.size, IN_CACHE))
        for span in blocks(values.size, IN_CACHE):
            convert(_within(values[span], limit), out[span], scratch)

    return _written(values.size, UINT16, write)


def _written(length: int, dtype: np.dtype[Any], write: Writer) -> bytes:
    """The bytes of an array (length,) that `write` fills. It must not keep the array.

    They are written in place. Bytes that grow block by block move, and lose their large pages when they do.
    """
    zeros = bytes(length * dtype.itemsize)
    content = BytesIO(zeros)
    del zeros  # or `content` would copy them before the first change
    write(np.frombuffer(content.getbuffer(), dtype))
    return content.getvalue()  # no copy, because the array is gone


def _within(values: Vector, limit: np.float32) -> Vector:
    """The values (n,), those beyond a limit replaced by it. Raises ValueError unless all are finite."""
    highest = values.max()
    lowest = values.min()
    if highest <= limit and lowest >= -limit:  # false if one of them is NaN
        return values
    return np.clip(finite(values), -limit, limit)


def _float16(values: Vector, out: Array, scratch: Scratch) -> None:
    """What `values.astype(np.float16)` returns (n,), in less time: that function takes one value after the other.

    Next to a number 2**13 times as large as its own power of two, a float32 keeps as many bits as a float16 has. So the
    sum of both ends in the digits of the float16, rounded by the processor to nearest, ties to even.
    """
    power = scratch.first("bits", values.size)
    np.bitwise_and(values.view(np.uint32), EXPONENT, out=power)
    np.clip(power, SMALLEST_NORMAL, EXPONENT, out=power)
    power += TIMES_2_TO_13 + BIAS
    digits = scratch.first("more_bits", values.size)
    rounded = digits.view(np.float32)
    np.abs(values, out=rounded)
    rounded += power.view(np.float32)
    power >>= LOST_BITS
    digits += power  # the exponent, above the digits
    np.copyto(out, digits, casting="unsafe")  # the lower half
    is_negative = scratch.first("is_negative", values.size)
    np.signbit(values, out=is_negative)  # of -0.0 too
    sign = scratch.first("short", values.size)
    np.copyto(sign, is_negative)
    sign <<= SIGN16
    out |= sign


def _bfloat16(values: Vector, out: Array, scratch: Scratch) -> None:
    bits = values.view(np.uint32)
    rounded = scratch.first("bits", values.size)
    np.right_shift(bits, HALF_BITS, out=rounded)
    rounded &= LOWEST_BIT
    # the sum carries into the kept half exactly where the value is to be rounded up, or up to even
    rounded += ALMOST_HALF
    rounded += bits
    rounded >>= HALF_BITS
    np.copyto(out, rounded, casting="unsafe")


# A process may put a faster function here if it writes the same bytes.
CONVERSIONS: dict[str, Conversion] = {"float16": _float16, "bfloat16": _bfloat16}


# -- int8 --------------------------------------------------------------------------------------------------------------


def block_count(length: int, block: int) -> int:
    """Number of blocks of at most `block` values: the quotient, rounded up."""
    return -(-length // block)


def block_length(length: int, count: int) -> int:
    """Values per block for `count` blocks; only the last block may be shorter. 1 for no blocks.

    The number of scales thus determines the length of a block, and an encoded vector needs no header.
    """
    if not count:
        return 1
    return -(-length // count)


def to_int8(values: Vector, block: int, rng: Generator) -> tuple[bytes, bytes]:
    """Steps from -127 to 127, rounded at random without bias, and the length of a step in each block.

    Args:
        values: float32 (d,).
        block: largest number of values per scale.
        rng: one draw, which seeds a faster generator.

    Returns:
        The steps, one byte per value, and the scales, one float32 per block.

    Raises:
        ValueError: a value is not finite.
    """
    count = block_count(values.size, block)
    block = block_length(values.size, count)
    random_bits = np.random.SFC64(int(rng.integers(1 << 63)))
    scales = np.empty(count, FLOAT32)

    def write(steps: Array) -> None:
        scratch = Scratch(min(values.size, max(block, IN_CACHE)))
        for span in _spans(values.size, block):
            chunk = values[span]
            fractions = scratch.first("bits", chunk.size).view(np.float32)
            np.abs(chunk, out=fractions)
            scale = _scale_of_blocks(fractions, block)
            first = span.start // block
            end = first + scale.size
            scales[first:end] = scale
            _multiply_blocks(chunk, FRACTIONS / scale, block, out=fractions)
            _round_steps(fractions, random_bits, steps[span], scratch)

    steps = _written(values.size, UINT8, write)
    return steps, scales.tobytes()


def from_int8(data: bytes, scale: Vector) -> Vector:
    """The values (d,) of steps (one byte each) and scales (blocks,), which `scales_of` has checked."""
    values = np.frombuffer(data, np.int8).astype(np.float32)
    block = block_length(values.size, scale.size)
    with np.errstate(over="ignore"):  # a hostile scale; the caller refuses what is not finite
        for span in _spans(values.size, block):
            chunk = values[span]
            first = span.start // block
            _multiply_blocks(chunk, scale[first : block_count(span.stop, block)], block, out=chunk)
    return values


def scales_of(content: bytes, length: int) -> Vector:
    """The scales (blocks,) of `length` values.

    Raises:
        ValueError: the scales do not cut the values into equal blocks, or one is negative or not finite.
    """
    scale = np.frombuffer(content, FLOAT32)
    count = scale.size
    block = block_length(length, count)
    if not block or block_count(length, block) != count:  # block 0: scales without values
        raise ValueError(f"{count} scales do not cut {length} values into equal blocks")
    is_valid = np.isfinite(scale) & (scale >= 0)
    if not is_valid.all():
        raise ValueError("a scale is negative or not finite")
    return scale


def _spans(length: int, block: int) -> Iterator[slice]:
    """Slices of whole blocks, about IN_CACHE values each."""
    return blocks(length, block * max(1, IN_CACHE // block))


def _scale_of_blocks(magnitude: Vector, block: int) -> Vector:
    """The length of a step in each block of absolute values: the largest divided by 127.

    Raises:
        ValueError: a value is not finite.
    """
    starts = np.arange(0, magnitude.size, block)
    scale: Vector = finite(np.maximum.reduceat(magnitude, starts)) / INT8_STEPS
    np.clip(scale, MIN_SCALE, MAX_SCALE, out=scale)
    return scale


def _multiply_blocks(chunk: Vector, factors: Vector, block: int, out: Vector) -> None:
    """Multiply each block of a chunk (n,) by its own factor; the last block may be shorter."""
    whole = chunk.size // block
    end = whole * block
    rows = (whole, block)
    of_rows = factors[:whole, np.newaxis]
    np.multiply(chunk[:end].reshape(rows), of_rows, out=out[:end].reshape(rows))
    np.multiply(chunk[end:], factors[whole:], out=out[end:])


def _round_steps(
    fractions: Vector, random_bits: np.random.BitGenerator, out: Array, scratch: Scratch
) -> None:
    """Write steps (n,) from 256ths of steps, rounded up with a probability equal to the fraction: right on average.

    Each value gets a random byte, the 256ths of a random number between 0 and 1. All values of a call share the five bits
    below, because a byte alone would round the value to a 256th of a step first. So the mean of many roundings differs
    from the value by at most 2**-14 of a step. The shared bits stay away from 0 and 1 by 1/64. That is more than the
    rounding error of the largest value, 127 steps, which therefore never becomes 128.
    """
    raw = random_bits.random_raw(1 + block_count(fractions.size, 8)).astype(UINT64, copy=False)
    odd = 2 * int(raw[-1] >> np.uint64(64 - SHARED_BITS)) + 1
    fractions += ABOVE_ZERO + np.float32(odd / (2 << SHARED_BITS))
    fixed = scratch.first("short", fractions.size)
    np.copyto(fixed, fractions, casting="unsafe")  # rounds down, because no value is negative
    fixed += raw.view(np.uint8)[: fixed.size]
    fixed >>= FRACTION_BITS
    np.copyto(out, fixed, casting="unsafe")
    out ^= SIGN8  # minus 128, for `ABOVE_ZERO`
