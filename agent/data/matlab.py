"""MATLAB 5 files, as far as arrays of numbers go: a strict reader that checks every length before it is used.

SciPy's reader takes far more kinds of content, and ends the process on some damaged files. A file is a header of 128
bytes and then elements: a type, a length, the content. An array is an element of elements: flags, dimensions, a name
and the values (MathWorks, "MAT-File Format", level 5). An element may be compressed with zlib as a whole.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

HEADER_BYTES = 128
TAG_BYTES = 8
VERSION_5 = 0x0100
VERSION_7_3 = 0x0200
COMPLEX = 0x0800  # flag of an array
CLASS_MASK = 0xFF  # the part of the flags that names an array's class

# types of elements (table 1-1 of the format)
INT8 = 1
INT32 = 5
UINT32 = 6
MATRIX = 14
COMPRESSED = 15

# how values are stored: type of an element -> numpy's type
STORED_TYPES = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
# what an array holds: class of an array (table 1-3) -> numpy's type
ARRAY_TYPES = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}

MAX_AXES = 8
MAX_ELEMENTS = 1000
HEAD_BYTES = 512  # of a compressed array: enough for flags, dimensions and a name


class MatlabError(ValueError):
    """The bytes are no MATLAB 5 file of plain arrays; the text quotes none of them."""


@dataclass(frozen=True)
class _Tag:
    """Where an element lies in the bytes around it."""

    kind: int  # type of the element
    begin: int  # of its content
    end: int
    following: int  # where the next element begins

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self.end - self.begin


@dataclass(frozen=True)
class _Head:
    """What comes before an array's values."""

    name: str
    shape: tuple[int, ...]
    array_class: int  # key of ARRAY_TYPES for arrays of real numbers
    values_at: int  # where the element of the values begins


def read_arrays(content: bytes, names: Collection[str], limit: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays with these names, in column-major order as they are stored.

    Args:
        content: the file.
        names: which arrays to read; others are skipped without being unpacked.
        limit: bytes that each array may unpack to.

    Raises:
        MatlabError: another version, or damaged content.
    """
    order = _byte_order(content)
    found: dict[str, npt.NDArray[Any]] = {}
    for kind, body in _elements(content, HEADER_BYTES, order):
        matrix: bytes | None = None
        if kind == MATRIX:
            matrix = body
        if kind == COMPRESSED:
            matrix = _unpacked_matrix(body, names, limit, order)
        if matrix is None:
            continue
        head = _head(matrix, order)
        if head.name in names:
            found[head.name] = _array(matrix, head, order)
    return found


def _unpacked_matrix(body: bytes, names: Collection[str], limit: int, order: str) -> bytes | None:
    """The content of a compressed array with one of the names; None for anything else, which is not unpacked whole."""
    start = _inflated_start(body)
    if len(start) < TAG_BYTES:
        return None
    (kind,) = struct.unpack(f"{order}I", start[:4])
    if kind != MATRIX:
        return None
    if _head(start[TAG_BYTES:], order).name not in names:
        return None
    element = _inflated(body, limit)
    (_, matrix), *_ = _elements(element, 0, order)  # all of them are checked
    return matrix


def _byte_order(content: bytes) -> str:
    """ "<" or ">". Raises MatlabError for another version."""
    order = {b"IM": "<", b"MI": ">"}.get(content[126:HEADER_BYTES])
    if len(content) < HEADER_BYTES or order is None:
        raise MatlabError("cut short or not a MATLAB 5 file")
    (version,) = struct.unpack(f"{order}H", content[124:126])
    if version == VERSION_7_3:
        raise MatlabError("a MATLAB 7.3 file; expected MATLAB 5: save it with -v7")
    if version != VERSION_5:
        raise MatlabError("cut short or not a MATLAB 5 file")
    return order


def _elements(content: bytes, start: int, order: str) -> Iterator[tuple[int, bytes]]:
    """Type and content of each element from `start` on."""
    for _ in range(MAX_ELEMENTS):
        if start >= len(content):
            return
        tag = _tag(content, start, order)
        yield tag.kind, content[tag.begin : tag.end]
        start = tag.following
    raise MatlabError(f"more than {MAX_ELEMENTS} elements")


def _tag(content: bytes, start: int, order: str) -> _Tag:
    """The tag at `start`. Raises MatlabError if the element does not fit into the content."""
    begin = start + TAG_BYTES
    if len(content) < begin:
        raise MatlabError("cut short")
    kind, size = struct.unpack(f"{order}II", content[start:begin])
    small_size = kind >> 16
    if small_size:  # a small element: its length and its content are in the tag
        if small_size > 4:
            raise MatlabError("a small element is longer than its place")
        begin = start + 4
        return _Tag(kind & 0xFFFF, begin, begin + small_size, start + TAG_BYTES)
    end = begin + size
    if end > len(content):
        raise MatlabError("cut short")
    padding = 0 if kind == COMPRESSED else -size % 8
    return _Tag(kind, begin, end, end + padding)


def _inflated_start(body: bytes) -> bytes:
    """The first HEAD_BYTES of a compressed element."""
    try:
        return zlib.decompressobj().decompress(body, HEAD_BYTES)
    except zlib.error:
        raise MatlabError("a compressed element is damaged") from None


def _inflated(body: bytes, limit: int) -> bytes:
    """All of a compressed element. Raises MatlabError if it is cut short or larger than `limit`."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(body, limit)
        excess = unpacking.decompress(unpacking.unconsumed_tail, 1)
    except zlib.error:
        raise MatlabError("a compressed element is damaged") from None
    if excess:
        raise MatlabError(f"an array unpacks to more than {limit} bytes")
    if not unpacking.eof:
        raise MatlabError("a compressed element is cut short")
    return content


def _head(matrix: bytes, order: str) -> _Head:
    """Flags, dimensions and name of an array. Raises MatlabError if one of them is missing."""
    flags_tag = _tag(matrix, 0, order)
    if flags_tag.kind != UINT32 or flags_tag.size != 8:
        raise MatlabError("an array without flags")
    (flags,) = struct.unpack_from(f"{order}I", matrix, flags_tag.begin)
    array_class = flags & CLASS_MASK
    if flags & COMPLEX:
        array_class = 0  # no array of real numbers
    shape_tag = _tag(matrix, flags_tag.following, order)
    axes, rest = divmod(shape_tag.size, 4)
    if shape_tag.kind != INT32 or rest or not 1 <= axes <= MAX_AXES:
        raise MatlabError("an array without dimensions")
    shape = struct.unpack_from(f"{order}{axes}i", matrix, shape_tag.begin)
    name_tag = _tag(matrix, shape_tag.following, order)
    if name_tag.kind != INT8 or min(shape) < 0:
        raise MatlabError("an array without a name, or with a negative length")
    name = matrix[name_tag.begin : name_tag.end].decode("ascii", "replace")
    return _Head(name, shape, array_class, name_tag.following)


def _array(matrix: bytes, head: _Head, order: str) -> npt.NDArray[Any]:
    """The values of an array in the type of its class. Raises MatlabError if they do not fill its dimensions."""
    if head.array_class not in ARRAY_TYPES:
        raise MatlabError(f"{head.name} is not an array of real numbers")
    tag = _tag(matrix, head.values_at, order)
    if tag.kind not in STORED_TYPES:
        raise MatlabError(f"{head.name} holds values of an unknown type")
    stored = np.dtype(order + STORED_TYPES[tag.kind])
    count = math.prod(head.shape)
    if tag.size != count * stored.itemsize:
        raise MatlabError(
            f"{head.name} holds {tag.size} bytes, its dimensions ask for another number"
        )
    values = np.frombuffer(matrix, stored, count, tag.begin)
    with np.errstate(invalid="ignore", over="ignore"):
        array = values.astype(ARRAY_TYPES[head.array_class])
    return array.reshape(head.shape, order="F")
