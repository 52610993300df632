"""How much a data file may unpack to: a small compressed file can claim to hold more than any machine has.

Every compressed input stays below `unpacked_limit`: 512 MiB, or 200 times its own size if that is more, and never
above 64 GiB. The environment variable COVEY_MAX_DATA_BYTES sets another limit for all files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from covey.shared.errors import DataError, UserError

LIMIT_VARIABLE = "COVEY_MAX_DATA_BYTES"
FREE_BYTES = 512 << 20  # any file may unpack to these
MAX_RATIO = 200  # of unpacked to packed bytes, beyond FREE_BYTES
MAX_BYTES = 64 << 30


def unpacked_limit(path: Path) -> int:
    """How many bytes the file may unpack to. Raises UserError for a COVEY_MAX_DATA_BYTES that is no number."""
    setting = os.environ.get(LIMIT_VARIABLE)
    if setting:
        if not setting.isdecimal():
            raise UserError(f"{LIMIT_VARIABLE} is {setting!r}; set it to a number of bytes")
        return int(setting)
    by_size = MAX_RATIO * path.stat().st_size
    return min(MAX_BYTES, max(FREE_BYTES, by_size))


def check_size(path: Path, size: int, limit: int) -> None:
    """Raises DataError for content of `size` bytes, if that is more than the file may unpack to."""
    if size > limit:
        raise too_large(path, limit)


def too_large(path: Path, limit: int) -> DataError:
    """The refusal of a file that unpacks to more than its limit."""
    fault = f"unpacks to more than {limit} bytes"
    return DataError(
        f"{path}: it {fault}; check the file, or set {LIMIT_VARIABLE} if it is right",
        public=f"a data file {fault}",
    )


class Unpacked:
    """A decompressed stream that ends in a DataError once it gave more than `limit` bytes."""

    _left: int  # bytes that may still be read; negative once there were too many

    def __init__(self, stream: IO[bytes], path: Path, limit: int) -> None:
        self._stream = stream
        self._path = path
        self._limit = limit
        self._left = limit

    def __repr__(self) -> str:
        return f"<Unpacked {self._path}: {self._left} of {self._limit} bytes left>"

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, or all of them for a negative `size`."""
        most = self._left + 1  # one more than allowed shows that there are too many
        if 0 <= size < most:
            most = size
        content = self._stream.read(most)
        self._left -= len(content)
        if self._left < 0:
            raise too_large(self._path, self._limit)
        return content
