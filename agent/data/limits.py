"""How much a data file may unpack to: a small compressed file can claim to hold more than any machine has.

Every compressed input stays below `unpacked_limit`: 512 MiB, or 200 times its own size where that is more, and never
above 64 GiB. The environment variable COVEY_MAX_DATA_BYTES sets another limit for all files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from covey.shared.errors import DataError, UserError

LIMIT_VARIABLE = "COVEY_MAX_DATA_BYTES"
FREE_BYTES = 512 << 20
MAX_RATIO = 200
MAX_BYTES = 64 << 30


def unpacked_limit(path: Path) -> int:
    """How many bytes the file may unpack to. Raises UserError for a COVEY_MAX_DATA_BYTES that is no number."""
    if chosen := os.environ.get(LIMIT_VARIABLE):
        if not chosen.isdecimal():
            raise UserError(f"{LIMIT_VARIABLE} is {chosen!r}; set it to a number of bytes")
        return int(chosen)
    return min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * path.stat().st_size))


def check_size(path: Path, size: int, limit: int) -> None:
    """DataError where content of `size` bytes is more than the file may unpack to."""
    if size > limit:
        raise too_large(path, limit)


def too_large(path: Path, limit: int) -> DataError:
    """The refusal of a file that unpacks to more than its limit."""
    advice = f"check the file, or set {LIMIT_VARIABLE} if it is right"
    said = f"it unpacks to more than {limit} bytes; {advice}"
    return DataError(f"{path}: {said}", public=f"a data file unpacks to more than {limit} bytes")


class Unpacked:
    """A decompressed stream that ends in a DataError once it gave more than `limit` bytes."""

    def __init__(self, stream: IO[bytes], path: Path, limit: int) -> None:
        self._stream = stream
        self._path = path
        self._limit = limit
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, or all of them for a negative `size`."""
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        content = self._stream.read(wanted)
        self._left -= len(content)
        if self._left < 0:
            raise too_large(self._path, self._limit)
        return content
