"""Arrays on disk: safetensors, written whole or not at all, and mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from shared.files import replacing

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


def save_arrays(path: Path, arrays: Mapping[str, Array], facts: Any = None, *, durable: bool = True) -> None:
    """Named arrays of any numeric dtype, and JSON-able `facts`, in one safetensors file, atomically.

    One that is not `durable` survives a kill, but perhaps no power cut.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with replacing(path, durable=durable) as beside:
        save_file(contiguous, beside, metadata={"facts": json.dumps(facts, allow_nan=False)})


def open_arrays(path: Path) -> tuple[dict[str, Array], Any]:
    """The arrays of a file that `save_arrays` wrote, as read-only memory maps, and the facts.

    Raises ValueError for a file that is cut short or is no safetensors file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path} is cut short")
        header = json.loads(file.read(length))
    facts = json.loads(header.pop("__metadata__", {}).get("facts", "null"))
    return {name: _map(path, entry, 8 + length) for name, entry in header.items()}, facts


def _map(path: Path, entry: Mapping[str, Any], base: int) -> Array:
    start, stop = entry["data_offsets"]
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
    if base + stop > path.stat().st_size:
        raise ValueError(f"{path} is cut short")
    if start == stop:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", base + start, shape)
