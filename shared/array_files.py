"""`.npz` files read with a bound: what a file claims is compared with what it holds before memory is set aside.

`numpy.load` allocates what a header claims. Here a header must agree with the length of its member, and all members
together stay below a limit. Pickled objects are never loaded.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

MAX_MEMBERS = 10_000
MAX_AXES = 32


class ArrayFileError(ValueError):
    """The file is no `.npz` of plain arrays, is damaged, or unpacks to more than its limit. The text quotes no data."""


def read_npz(file: Path | BinaryIO, limit: int) -> dict[str, npt.NDArray[Any]]:
    """Every array of an `.npz` by name, at most `limit` bytes in all. Raises ArrayFileError, and OSError for no file."""
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
        raise ArrayFileError(f"not an npz file, or cut short ({type(error).__name__})") from None


def _members(archive: zipfile.ZipFile, limit: int) -> dict[str, zipfile.ZipInfo]:
    listed = archive.infolist()
    if len(listed) > MAX_MEMBERS:
        raise ArrayFileError(f"{len(listed)} members, at most {MAX_MEMBERS} are expected")
    total = sum(member.file_size for member in listed)
    if total > limit:
        raise ArrayFileError(f"it unpacks to {total} bytes, the limit is {limit}")
    members = {member.filename.removesuffix(".npy"): member for member in listed}
    if len(members) < len(listed):
        raise ArrayFileError("a name occurs twice")
    return members


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(member) as stream:
        shape, fortran, dtype = _header(stream)
        held = member.file_size - stream.tell()
        count = math.prod(shape)
        if dtype.itemsize == 0 or count * dtype.itemsize != held:
            raise ArrayFileError(
                f"an array claims {count * dtype.itemsize} bytes, its member holds {held}"
            )
        array = np.empty(count, dtype)
        _fill(stream, array)
        return array.reshape(shape, order="F" if fortran else "C")


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = npy.read_array_header_2_0(stream)
    else:
        raise ArrayFileError(f"an array of format {version}; 1.0 or 2.0 is expected")
    if dtype.hasobject:
        raise ArrayFileError("it holds Python objects; plain arrays are expected")
    if len(shape) > MAX_AXES or any(length < 0 for length in shape):
        raise ArrayFileError(f"an array has {len(shape)} axes, or an axis of negative length")
    return shape, fortran, dtype


def _fill(stream: Any, array: npt.NDArray[Any]) -> None:
    """Read to the very end: the checksum of a member is compared there alone."""
    view = array.view(np.uint8).data
    while view:
        count = stream.readinto(view)
        if not count:
            raise ArrayFileError("cut short")
        view = view[count:]
    if stream.read(1):
        raise ArrayFileError("a member is longer than its array")
