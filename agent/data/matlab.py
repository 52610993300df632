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
VERSION_5, VERSION_7_3 = 0x0100, 0x0200
MATRIX, COMPRESSED = 14, 15
INT8, INT32, UINT32 = 1, 5, 6
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {
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
COMPLEX = 0x0800
MAX_AXES = 8
MAX_ELEMENTS = 1000
HEAD_BYTES = 512  # of a compressed array: enough for flags, dimensions and a name


class MatlabError(ValueError):
    """The bytes are no MATLAB 5 file of plain arrays; the text quotes none of them."""


@dataclass(frozen=True)
class _Head:
    """What an array says of itself, and where its values begin."""

    name: str
    shape: tuple[int, ...]
    kind: int
    values_at: int


def read_arrays(content: bytes, names: Collection[str], limit: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays with these names; each unpacks to at most `limit` bytes. Raises MatlabError."""
    order = _byte_order(content)
    found: dict[str, npt.NDArray[Any]] = {}
    for kind, body in _elements(content, HEADER_BYTES, order):
        if kind == COMPRESSED:
            # not padded, and an element of its own: only what is wanted is unpacked whole
            head = _head_of(_inflated(body, HEAD_BYTES, whole=False), order)
            if head is not None and head.name in names:
                [(kind, body)] = list(_elements(_inflated(body, limit, whole=True), 0, order))[
                    :1
                ] or [(0, b"")]
        if kind == MATRIX:
            head = _head(body, order)
            if head.name in names:
                found[head.name] = _array(body, head, order)
    return found


def _byte_order(content: bytes) -> str:
    """ "<" or ">". Raises MatlabError for another version."""
    orders = {b"IM": "<", b"MI": ">"}
    order = orders.get(content[126:HEADER_BYTES])
    if len(content) < HEADER_BYTES or order is None:
        raise MatlabError("cut short or not a MATLAB 5 file")
    (version,) = struct.unpack(f"{order}H", content[124:126])
    if version == VERSION_7_3:
        raise MatlabError("a MATLAB 7.3 file; SVHN ships as MATLAB 5: save it with -v7")
    if version != VERSION_5:
        raise MatlabError("cut short or not a MATLAB 5 file")
    return order


def _elements(content: bytes, start: int, order: str) -> Iterator[tuple[int, bytes]]:
    """Type and content of each element from `start` on."""
    for _ in range(MAX_ELEMENTS):
        if start >= len(content):
            return
        kind, begin, end, start = _tag(content, start, order)
        yield kind, content[begin:end]
    raise MatlabError(f"more than {MAX_ELEMENTS} elements")


def _tag(content: bytes, start: int, order: str) -> tuple[int, int, int, int]:
    """An element's type, where its content begins and ends, and where the next element begins."""
    if len(content) < start + 8:
        raise MatlabError("cut short")
    kind, size = struct.unpack(f"{order}II", content[start : start + 8])
    if kind >> 16:  # a small element: its length and its content are in the tag
        kind, size, begin, following = kind & 0xFFFF, kind >> 16, start + 4, start + 8
        if size > 4:
            raise MatlabError("a small element is longer than its place")
    else:
        begin = start + 8
        following = begin + size + (0 if kind == COMPRESSED else -size % 8)
    if begin + size > len(content):
        raise MatlabError("cut short")
    return kind, begin, begin + size, following


def _inflated(body: bytes, limit: int, *, whole: bool) -> bytes:
    """The first `limit` bytes of a compressed element; MatlabError where `whole` and there are more."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(body, limit)
        more = unpacking.decompress(unpacking.unconsumed_tail, 1) if whole else b""
    except zlib.error:
        raise MatlabError("a compressed element is damaged") from None
    if more:
        raise MatlabError(f"an array unpacks to more than {limit} bytes")
    if whole and not unpacking.eof:
        raise MatlabError("a compressed element is cut short")
    return content


def _head_of(element: bytes, order: str) -> _Head | None:
    """The head of an array from the first bytes of its element; None for anything else."""
    if len(element) < 8 or struct.unpack(f"{order}I", element[:4])[0] != MATRIX:
        return None
    return _head(element[8:], order)


def _head(body: bytes, order: str) -> _Head:
    flags_kind, begin, end, at = _tag(body, 0, order)
    if flags_kind != UINT32 or end - begin != 8:
        raise MatlabError("an array without flags")
    (flags,) = struct.unpack(f"{order}I", body[begin : begin + 4])
    axes_kind, begin, end, at = _tag(body, at, order)
    axes = (end - begin) // 4
    if axes_kind != INT32 or not 1 <= axes <= MAX_AXES or (end - begin) % 4:
        raise MatlabError("an array without dimensions")
    shape = struct.unpack(f"{order}{axes}i", body[begin:end])
    name_kind, begin, end, at = _tag(body, at, order)
    if name_kind != INT8 or min(shape) < 0:
        raise MatlabError("an array without a name, or with a negative length")
    kind = flags & 0xFF if not flags & COMPLEX else 0
    return _Head(body[begin:end].decode("ascii", "replace"), tuple(shape), kind, at)


def _array(body: bytes, head: _Head, order: str) -> npt.NDArray[Any]:
    if head.kind not in CLASSES:
        raise MatlabError(f"{head.name} is no array of real numbers")
    kind, begin, end, _ = _tag(body, head.values_at, order)
    if kind not in TYPES:
        raise MatlabError(f"{head.name} holds values of an unknown type")
    stored = np.dtype(order + TYPES[kind])
    if end - begin != math.prod(head.shape) * stored.itemsize:
        raise MatlabError(
            f"{head.name} holds {end - begin} bytes, its dimensions ask for another number"
        )
    values = np.frombuffer(body, stored, math.prod(head.shape), begin)
    with np.errstate(invalid="ignore", over="ignore"):
        return values.astype(CLASSES[head.kind]).reshape(head.shape, order="F")
