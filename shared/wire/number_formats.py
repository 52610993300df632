"""Float32 vectors in 16 or 8 bits per value, and back: the formats of the codecs float16, bfloat16 and int8.

Everything is little-endian. Vectors are converted in blocks that fit into the processor's cache, straight into the
bytes that travel. `codec` adds what else travels with these bytes, and refuses bytes of a wrong length.
"""

# density: bit patterns and constants of number formats; a formula split further is harder to compare with its source

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Vector, blocks

IN_CACHE = (
    1 << 15
)  # values of a block: the few arrays of a conversion then fit into the cache of one core

FLOAT16 = np.dtype("<f2")
FLOAT32 = np.dtype("<f4")
UINT16 = np.dtype("<u2")

HALF_BITS = np.uint32(16)
LOWEST_BIT = np.uint32(1)
ALMOST_HALF = np.uint32(0x7FFF)  # of the lowest bit that bfloat16 keeps
MAX_FLOAT16 = np.float32(65504)
MAX_BFLOAT16_BITS = np.uint32(0x7F7F0000)
MAX_BFLOAT16 = MAX_BFLOAT16_BITS.view(np.float32)

INT8_STEPS = np.float32(127)
MAX_FLOAT32 = np.finfo(np.float32).max
LARGEST_QUOTIENT = MAX_FLOAT32 / INT8_STEPS
MAX_SCALE = np.nextafter(LARGEST_QUOTIENT, np.float32(0))  # 127 times this scale is finite

Array = npt.NDArray[Any]
Conversion = Callable[[Vector, Array], None]  # values (n,), where their short form (n,) goes
Generator = np.random.Generator


def to_float16(values: Vector) -> bytes:
    """Two bytes per value (d,). Values beyond the range become the largest one instead of infinity."""
    return _in_blocks(values, FLOAT16, _float16)


def from_float16(data: bytes) -> Vector:
    """The values (d,) in `data`."""
    halves = np.frombuffer(data, FLOAT16)
    return halves.astype(np.float32)


def to_bfloat16(values: Vector) -> bytes:
    """Two bytes per value (d,): the upper half of its bits, rounded to nearest, ties to even."""
    return _in_blocks(values, UINT16, _bfloat16)


def from_bfloat16(data: bytes) -> Vector:
    """The values (d,) in `data`."""
    halves = np.frombuffer(data, UINT16)
    bits = halves.astype(np.uint32)
    bits <<= HALF_BITS
    return bits.view(np.float32)


def _in_blocks(values: Vector, form: np.dtype[Any], convert: Conversion) -> bytes:
    short: Array = np.empty(values.size, form)
    for span in blocks(values.size, IN_CACHE):
        convert(values[span], short[span])
    return short.tobytes()


def _float16(values: Vector, short: Array) -> None:
    highest = values.max()
    lowest = values.min()
    within = values
    if highest > MAX_FLOAT16 or lowest < -MAX_FLOAT16:
        within = np.clip(values, -MAX_FLOAT16, MAX_FLOAT16)
    short[:] = within


def _bfloat16(values: Vector, short: Array) -> None:
    within = np.clip(values, -MAX_BFLOAT16, MAX_BFLOAT16)
    bits = within.view(np.uint32)
    lowest_kept = bits >> HALF_BITS
    lowest_kept &= LOWEST_BIT
    # the sum carries into the kept half exactly where the value is to be rounded up, or up to even
    bits += ALMOST_HALF
    bits += lowest_kept
    bits >>= HALF_BITS
    short[:] = bits


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
        values: finite float32 (d,).
        block: largest number of values per scale.
        rng: one draw per value.

    Returns:
        The steps, one byte per value, and the scales, one float32 per block.
    """
    count = block_count(values.size, block)
    block = block_length(values.size, count)
    steps = np.empty(values.size, np.int8)
    scales = np.empty(count, FLOAT32)
    for span in _spans(values.size, block):
        chunk = values[span]
        scale = _scale_of_blocks(chunk, block)
        first = span.start // block
        end = first + scale.size
        scales[first:end] = scale
        divisor = np.where(scale > 0, scale, np.float32(np.inf))  # a block of zeros has no scale
        scale_of_values = _repeated(divisor, block, chunk.size)
        steps[span] = _rounded_steps(chunk, scale_of_values, rng)
    return steps.tobytes(), scales.tobytes()


def from_int8(data: bytes, scale: Vector) -> Vector:
    """The values (d,) of steps (one byte each) and scales (blocks,), which `scales_of` has checked."""
    steps = np.frombuffer(data, np.int8)
    values = steps.astype(np.float32)
    block = block_length(values.size, scale.size)
    with np.errstate(over="ignore"):  # a hostile scale; the caller refuses what is not finite
        for span in _spans(values.size, block):
            chunk = values[span]
            first = span.start // block
            end = block_count(span.stop, block)
            chunk *= _repeated(scale[first:end], block, chunk.size)
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
    whole_blocks = max(1, IN_CACHE // block)
    return blocks(length, block * whole_blocks)


def _scale_of_blocks(chunk: Vector, block: int) -> Vector:
    """The length of a step in each block: its largest absolute value divided by 127."""
    starts = np.arange(0, chunk.size, block)
    magnitude = np.abs(chunk)
    peaks = np.maximum.reduceat(magnitude, starts)
    scale = np.minimum(peaks / INT8_STEPS, MAX_SCALE)
    return scale.astype(FLOAT32)


def _repeated(scale: Vector, block: int, length: int) -> Vector:
    """The scale of each of `length` values; the last block may be shorter."""
    repeated = np.repeat(scale, block)
    return repeated[:length]


def _rounded_steps(chunk: Vector, scale: Vector, rng: Generator) -> Vector:
    """Multiples of the scale, rounded up with a probability equal to the fraction: right on average."""
    steps = chunk / scale
    steps += rng.random(chunk.size, dtype=np.float32)
    np.floor(steps, out=steps)
    return np.clip(steps, -INT8_STEPS, INT8_STEPS, out=steps)
