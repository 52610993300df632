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

from covey.shared import json_text
from covey.shared.files import atomic_replace
from covey.shared.numerics.vectors import blocks, release

Array = npt.NDArray[Any]
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

    One that is not `durable` survives a kill, but perhaps no power cut. One that is `sealed` holds a digest of all of
    it, for `check_seal`.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"facts": json.dumps(facts, allow_nan=False)}
    if sealed:
        metadata["seal"] = _seal(contiguous, metadata["facts"])
    with atomic_replace(path, durable=durable) as beside:
        try:
            save_file(contiguous, beside, metadata=metadata)
        except SafetensorError as error:
            raise _as_os_error(error, path) from error


def _as_os_error(error: SafetensorError, path: Path) -> Exception:
    """What the operating system said, which safetensors only quotes."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error


def check_seal(path: Path) -> None:
    """Raises ValueError unless a `sealed` file holds what was written. Reads all of it."""
    arrays, metadata = _opened(path)
    if metadata.get("seal") != _seal(arrays, metadata.get("facts", "")):
        raise ValueError(f"{path} does not hold what was written")


def _seal(arrays: Mapping[str, Array], facts: str) -> str:
    hasher = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(arrays):
        hasher.update(f"{name}:{array_digest(arrays[name])}".encode())
    return hasher.hexdigest()


def array_digest(array: Array) -> str:
    """Names an array by dtype, shape and bytes, read in blocks."""
    hasher = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    flat = array.reshape(-1)
    for span in blocks(flat.size):
        hasher.update(np.ascontiguousarray(flat[span]).view(np.uint8).data)
    release(array)
    return hasher.hexdigest()


def open_arrays(path: Path) -> tuple[dict[str, Array], Any]:
    """The arrays of a file that `save_arrays` wrote, as read-only memory maps, and the facts.

    Raises ValueError for a file that is cut short or is no safetensors file.
    """
    arrays, metadata = _opened(path)
    return arrays, json_text.loads(metadata.get("facts", "null"))


def _opened(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays of a file as memory maps, and its metadata. Raises ValueError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path} is cut short")
        header = file.read(length)
    try:
        return _mapped(path, json_text.loads(header), 8 + length)
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None


def _mapped(path: Path, header: Any, base: int) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays and metadata by a file's header; raises KeyError, TypeError and their like for a header that is none."""
    metadata = dict(header.pop("__metadata__", {}))
    if not all(isinstance(text, str) for text in metadata.values()):
        raise TypeError("metadata is text")
    return {name: _map(path, entry, base) for name, entry in header.items()}, metadata


def _map(path: Path, entry: Mapping[str, Any], base: int) -> Array:
    start, stop = entry["data_offsets"]
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
    if any(type(length) is not int or length < 0 for length in (start, stop, *shape)):
        raise ValueError(f"{path} has a length that is no whole number")
    if base + stop > path.stat().st_size or stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{path} is cut short, or its header is damaged")
    if start == stop:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", base + start, shape)
