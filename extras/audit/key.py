"""The key of an audit log, which signs its lines."""

from __future__ import annotations

from pathlib import Path

from covey.shared.errors import UserError
from covey.shared.storage.audit import algorithm, parsed

MIN_KEY_BYTES = 16  # bytes


def read_key(file: Path) -> bytes:
    """The key of a log. Raises UserError if the file is missing or too short."""
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise UserError(
            f"{file}: the audit key cannot be read ({error.strerror}); give a file that contains it"
        ) from None
    if len(key) < MIN_KEY_BYTES:
        raise UserError(
            f"{file}: the audit key has {len(key)} bytes, expected at least {MIN_KEY_BYTES}; "
            f"make one with: head -c 32 /dev/urandom | base64 > {file}"
        )
    return key


def is_keyed(path: Path) -> bool:
    """Whether the first line of a log announces a key. False for a log that is missing or damaged."""
    try:
        with path.open("rb") as file:
            record = parsed(file.readline())
    except FileNotFoundError:
        return False
    return record is not None and record["fields"].get("hash") == algorithm(b"key")
