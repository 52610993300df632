"""How much a data file may unpack to: a small compressed file can claim to hold more than any machine has.

Every compressed input stays below `unpacked_limit`: 512 MiB, or 200 times its own size if that is more, and never
above 64 GiB. The environment variable COVEY_MAX_DATA_BYTES sets another limit for all files.
"""

from __future__ import annotations

import os
from pathlib import Path

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
        fault = f"unpacks to more than {limit} bytes"
        raise DataError(
            f"{path}: it {fault}; check the file, or set {LIMIT_VARIABLE} if it is right",
            public=f"a data file {fault}",
        )
