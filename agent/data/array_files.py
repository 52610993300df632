"""Read `.npz` files within a limit: the claims of a file are compared with its size before memory is allocated.

`numpy.load` allocates what a header claims. Here a header must agree with the length of its member, and all members
together must stay below a limit. Pickled objects are never loaded.
"""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

MAX_MEMBERS = 10_000
MAX_AXES = 32

Array = npt.NDArray[Any]
Members = dict[str, zipfile.ZipInfo]
Order = Literal["C", "F"]


class ArrayFileError(ValueError):
    """The file is no `.npz` of plain arrays, is damaged, or unpacks to more than its limit. The text quotes no data."""


@dataclass(frozen=True)
class _Header:
    """The header of one array."""

    shape: tuple[int, ...]
    is_fortran: bool  # the first axis varies fastest
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(file: Path | BinaryIO, limit: int) -> dict[str, Array]:
    """Read all arrays of an `.npz` by name.

    Args:
        file: a path or an open, seekable file.
        limit: the largest number of bytes of all arrays together.

    Raises:
        ArrayFileError: the file is not acceptable.
        OSError: the file cannot be read.
    """
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return read_npz(opened, limit)
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, limit)
            return {name: _read(archive, member) for name, member in members.items()}
    except ArrayFileError:
        raise
    except MemoryError:
        raise ArrayFileError("its arrays do not fit into memory") from None
    except Exception as error:  # zipfile, zlib and numpy raise a dozen types for damaged bytes
        kind = type(error).__name__
        raise ArrayFileError(f"not an npz file, or cut short ({kind})") from None


def _members(archive: zipfile.ZipFile, limit: int) -> Members:
    """The members by the name of their array, after the checks that need no content."""
    listed = archive.infolist()
    if len(listed) > MAX_MEMBERS:
        raise ArrayFileError(f"{len(listed)} members, expected at most {MAX_MEMBERS}")
    total = sum(member.file_size for member in listed)
    if total > limit:
        raise ArrayFileError(f"it unpacks to {total} bytes, the limit is {limit}")
    members = {}
    for member in listed:
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise ArrayFileError("a name occurs twice")
        members[name] = member
    return members


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        header = _read_header(stream)
        present = member.file_size - stream.tell()
        claimed = header.size_bytes
        if header.dtype.itemsize == 0 or claimed != present:
            raise ArrayFileError(f"an array claims {claimed} bytes, but its member holds {present}")
        array = np.empty(math.prod(header.shape), header.dtype)
        _fill(stream, array)
    order: Order = "F" if header.is_fortran else "C"
    return array.reshape(header.shape, order=order)


def _read_header(stream: IO[bytes]) -> _Header:
    version = npy.read_magic(stream)
    match version:
        case (1, 0):
            header = _Header(*npy.read_array_header_1_0(stream))
        case (2, 0):
            header = _Header(*npy.read_array_header_2_0(stream))
        case _:
            raise ArrayFileError(f"an array of format {version}, expected 1.0 or 2.0")
    if header.dtype.hasobject:
        raise ArrayFileError("it holds Python objects, expected plain arrays")
    axes = len(header.shape)
    if axes > MAX_AXES or min(header.shape, default=0) < 0:
        raise ArrayFileError(f"an array has {axes} axes, or an axis of negative length")
    return header


def _fill(stream: Any, array: Array) -> None:
    """Read to the very end: zipfile compares the checksum of a member only there."""
    view = array.view(np.uint8).data
    while view:
        count = stream.readinto(view)
        if not count:
            raise ArrayFileError("cut short")
        view = view[count:]
    if stream.read(1):
        raise ArrayFileError("a member is longer than its array")
