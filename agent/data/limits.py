"""How much a data file may unpack to: a small file can claim to hold more than any machine has.

What a reader makes of files stays below `unpacked_limit`: 512 MiB, or 200 times their own size if that is more, and never
above 64 GiB. The environment variable COVEY_MAX_DATA_BYTES sets another limit for all files. A database, which can also
compute without end, makes at most a step for every `STEP_BYTES` of that.
"""

from __future__ import annotations

import os
from pathlib import Path

from covey.shared.errors import DataError, UserError

LIMIT_VARIABLE = "COVEY_MAX_DATA_BYTES"
FREE_BYTES = 512 << 20  # any file may unpack to these
MAX_RATIO = 200  # of unpacked to packed bytes, beyond FREE_BYTES
MAX_BYTES = 64 << 30
ROW_BYTES = 64  # of a row's number and label, as Python's own objects
VALUE_BYTES = 8  # of a feature in a table: float32, twice while its blocks are put together
ARRAY_VALUE_BYTES = 4  # of a number in an array, at least: most types become float32
MAX_CELL_BYTES = (
    131_072  # of a text or content in a database; Python's reader of CSV has this limit too
)
STEP_BYTES = 16


def unpacked_limit(*paths: Path) -> int:
    """How many bytes the files may unpack to, together. Raises UserError for a COVEY_MAX_DATA_BYTES that is no number."""
    setting = os.environ.get(LIMIT_VARIABLE)
    if setting:
        if not setting.isdecimal():
            raise UserError(f"{LIMIT_VARIABLE} is {setting!r}; set it to a number of bytes")
        return int(setting)
    by_size = MAX_RATIO * sum(path.stat().st_size for path in paths)
    return min(MAX_BYTES, max(FREE_BYTES, by_size))


def check_size(path: Path, size: int, limit: int) -> None:
    """Raises DataError for content of `size` bytes, if that is more than the file may unpack to."""
    if size > limit:
        fault = f"unpacks to more than {limit} bytes"
        raise DataError(
            f"{path}: it {fault}; check the file, or set {LIMIT_VARIABLE} if it is right",
            public=f"a data file {fault}",
        )
