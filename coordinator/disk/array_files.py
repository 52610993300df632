"""Arrays on disk: safetensors, written whole or not at all, and mapped into memory."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from covey.shared.numerics.vectors import blocks, release
from covey.shared.storage import json_text
from covey.shared.storage.files import atomic_replace

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Metadata = dict[str, str]
_FACTS = json.JSONEncoder(allow_nan=False)
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
    path: Path, arrays: Mapping[str, Array], facts: Any = None, *, durable: bool = True
) -> None:
    """Named arrays of any numeric dtype, and JSON-able `facts`, in one safetensors file, atomically.

    One that is not `durable` survives a kill, but perhaps no power cut.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"facts": _FACTS.encode(facts)}
    with atomic_replace(path, durable=durable) as beside:
        try:
            save_file(contiguous, beside, metadata=metadata)
        except SafetensorError as error:
            raise _as_os_error(error, path) from error


def _as_os_error(error: SafetensorError, path: Path) -> Exception:
    """What the operating system said, which safetensors only quotes."""
    quoted = re.search(r"os error (\d+)", str(error))
    if quoted is None:
        return error
    number = int(quoted[1])
    return OSError(number, os.strerror(number), str(path))


def array_digest(array: Array) -> str:
    """Names an array by dtype, shape and bytes, read in blocks."""
    hasher = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    flat = array.reshape(-1)
    for span in blocks(flat.size):
        hasher.update(np.ascontiguousarray(flat[span]).view(np.uint8).data)
    release(array)
    return hasher.hexdigest()


def open_arrays(path: Path) -> tuple[Arrays, Any]:
    """The arrays of a file that `save_arrays` wrote, as read-only memory maps, and the facts.

    Raises ValueError for a file that is cut short or is no safetensors file.
    """
    arrays, metadata = _opened(path)
    return arrays, json_text.loads(metadata.get("facts", "null"))


def _opened(path: Path) -> tuple[Arrays, Metadata]:
    """The arrays of a file, which is mapped into memory once, and its metadata. Raises ValueError."""
    with path.open("rb") as file:
        first_bytes = file.read(HEADER_LENGTH_BYTES)
        length = int.from_bytes(first_bytes, "little")
        base = HEADER_LENGTH_BYTES + length
        if os.fstat(file.fileno()).st_size < base:
            raise ValueError(f"{path} is cut short")
        text = file.read(length)
        whole = np.memmap(file, np.uint8, "r")
    try:
        return _arrays(path, json_text.loads(text), whole[base:])
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None


def _arrays(path: Path, header: Any, content: Array) -> tuple[Arrays, Metadata]:
    """Arrays and metadata by a file's header; raises KeyError, TypeError and their like for a header that is none."""
    metadata: Metadata = dict(header.pop("__metadata__", {}))
    for text in metadata.values():
        if not isinstance(text, str):
            raise TypeError("metadata is text")
    return {name: _array(path, entry, content) for name, entry in header.items()}, metadata


def _array(path: Path, entry: Mapping[str, Any], content: Array) -> Array:
    """One array of a file, by its entry in the header; `content` is all after the header, as bytes."""
    start, stop = entry["data_offsets"]
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    shape = tuple(entry["shape"])
    for length in (start, stop, *shape):
        if type(length) is not int or length < 0:
            raise ValueError(f"{path} has a length that is not a whole number")
    size = math.prod(shape) * dtype.itemsize
    is_whole = stop <= content.size
    if not is_whole or stop - start != size:
        raise ValueError(f"{path} is cut short, or its header is damaged")
    return content[start:stop].view(dtype).reshape(shape)
