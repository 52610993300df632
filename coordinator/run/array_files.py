"""Arrays on disk: safetensors, written whole or not at all, and mapped into memory."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from covey.shared import json_text
from covey.shared.files import atomic_replace
from covey.shared.numerics.vectors import blocks, release

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Metadata = dict[str, str]
_FACTS = json.JSONEncoder(allow_nan=False)
_CRC_MARK = "crc32:"  # how seals begin; those of an earlier version have no mark
HEADER_LENGTH_BYTES = 8  # a file begins with the length of its header, little endian
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


def save_arrays(
    path: Path,
    arrays: Mapping[str, Array],
    facts: Any = None,
    *,
    durable: bool = True,
    sealed: bool = False,
) -> None:
    """Named arrays of any numeric dtype, and JSON-able `facts`, in one safetensors file, atomically.

    One that is not `durable` survives a kill, but perhaps no power cut. One that is `sealed` holds a checksum of all of
    it, for `check_seal`.
    """
    contiguous: Arrays = {}
    for name, array in arrays.items():
        contiguous[name] = np.ascontiguousarray(array)
    text = _FACTS.encode(facts)
    metadata = {"facts": text}
    if sealed:
        metadata["seal"] = _crc_seal(contiguous, text)
    with atomic_replace(path, durable=durable) as beside:
        try:
            save_file(contiguous, beside, metadata=metadata)
        except SafetensorError as error:
            raise _as_os_error(error, path) from error


def _as_os_error(error: SafetensorError, path: Path) -> Exception:
    """What the operating system said, which safetensors only quotes."""
    message = str(error)
    quoted = re.search(r"os error (\d+)", message)
    if quoted is None:
        return error
    number = int(quoted[1])
    said = os.strerror(number)
    return OSError(number, said, str(path))


def check_seal(path: Path) -> None:
    """Raises ValueError unless a `sealed` file holds what was written. Reads all of it."""
    arrays, metadata = _opened(path)
    facts = metadata.get("facts", "")
    stored = metadata.get("seal", "")
    seal = _crc_seal if stored.startswith(_CRC_MARK) else _digest_seal
    if stored != seal(arrays, facts):
        raise ValueError(f"{path} does not hold what was written")


def _crc_seal(arrays: Mapping[str, Array], facts: str) -> str:
    """A checksum of the whole content. It finds what a disk has damaged, and takes a fifth of a digest's time."""
    checksum = zlib.crc32(facts.encode())
    for name in sorted(arrays):
        array = arrays[name]
        form = f"{name}:{array.dtype.str}{array.shape}"
        checksum = zlib.crc32(form.encode(), checksum)
        content = array.reshape(-1).view(np.uint8)
        checksum = zlib.crc32(content.data, checksum)
        release(array)
    return f"{_CRC_MARK}{checksum:08x}"


def _digest_seal(arrays: Mapping[str, Array], facts: str) -> str:
    """The seal of files that an earlier version wrote."""
    content = facts.encode()
    hasher = hashlib.blake2b(content, digest_size=16)
    for name in sorted(arrays):
        digest = array_digest(arrays[name])
        entry = f"{name}:{digest}"
        hasher.update(entry.encode())
    return hasher.hexdigest()


def array_digest(array: Array) -> str:
    """Names an array by dtype, shape and bytes, read in blocks."""
    form = f"{array.dtype.str}{array.shape}"
    hasher = hashlib.blake2b(form.encode(), digest_size=16)
    flat = array.reshape(-1)
    for span in blocks(flat.size):
        values = np.ascontiguousarray(flat[span])
        content = values.view(np.uint8)
        hasher.update(content.data)
    release(array)
    return hasher.hexdigest()


def open_arrays(path: Path) -> tuple[Arrays, Any]:
    """The arrays of a file that `save_arrays` wrote, as read-only memory maps, and the facts.

    Raises ValueError for a file that is cut short or is no safetensors file.
    """
    arrays, metadata = _opened(path)
    text = metadata.get("facts", "null")
    facts = json_text.loads(text)
    return arrays, facts


def _opened(path: Path) -> tuple[Arrays, Metadata]:
    """The arrays of a file, which is mapped into memory once, and its metadata. Raises ValueError."""
    with path.open("rb") as file:
        first_bytes = file.read(HEADER_LENGTH_BYTES)
        length = int.from_bytes(first_bytes, "little")
        base = HEADER_LENGTH_BYTES + length
        descriptor = file.fileno()
        if os.fstat(descriptor).st_size < base:
            raise ValueError(f"{path} is cut short")
        text = file.read(length)
        whole = np.memmap(file, np.uint8, "r")
    try:
        header = json_text.loads(text)
        return _arrays(path, header, whole[base:])
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None


def _arrays(path: Path, header: Any, content: Array) -> tuple[Arrays, Metadata]:
    """Arrays and metadata by a file's header; raises KeyError, TypeError and their like for a header that is none."""
    saved = header.pop("__metadata__", {})
    metadata: Metadata = dict(saved)
    for text in metadata.values():
        if not isinstance(text, str):
            raise TypeError("metadata is text")
    arrays: Arrays = {}
    for name, entry in header.items():
        arrays[name] = _array(path, entry, content)
    return arrays, metadata


def _array(path: Path, entry: Mapping[str, Any], content: Array) -> Array:
    """One array of a file, by its entry in the header; `content` is all after the header, as bytes."""
    start, stop = entry["data_offsets"]
    name = entry["dtype"]
    dtype = np.dtype(_DTYPES[name])
    shape = tuple(entry["shape"])
    for length in (start, stop, *shape):
        if type(length) is not int or length < 0:
            raise ValueError(f"{path} has a length that is no whole number")
    size = math.prod(shape) * dtype.itemsize
    is_whole = stop <= content.size
    if not is_whole or stop - start != size:
        raise ValueError(f"{path} is cut short, or its header is damaged")
    values = content[start:stop].view(dtype)
    return values.reshape(shape)
