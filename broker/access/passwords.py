"""Password files as Mosquitto writes them: `user:$7$iterations$salt$hash`, PBKDF2 with SHA-512.

Covey writes the format itself: one file serves both brokers, and no other program is needed to create it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from covey.shared.errors import UserError
from covey.shared.storage.files import write_private

ITERATIONS = 101  # Mosquitto's own default: the broker computes the hash at each connection
SALT_BYTES = 12
SCHEME = "$7$"


def hash_password(password: str) -> str:
    """What a password file stores instead of the password; a new salt each time."""
    salt = os.urandom(SALT_BYTES)
    digest = _digest(password, salt, ITERATIONS)
    salt_text = _base64(salt)
    digest_text = _base64(digest)
    return f"{SCHEME}{ITERATIONS}${salt_text}${digest_text}"


def verify(stored: str, password: str) -> bool:
    """Whether the password belongs to the stored hash."""
    try:
        _, _, number, salt_text, expected_text = stored.split("$")
        salt = base64.b64decode(salt_text)
        expected = base64.b64decode(expected_text)
        digest = _digest(password, salt, int(number))
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(digest, expected)


def write(path: Path, passwords: Mapping[str, str]) -> None:
    """Write a password file for these users and their passwords."""
    save(path, {user: hash_password(password) for user, password in passwords.items()})


def save(path: Path, hashes: Mapping[str, str]) -> None:
    """Replace the file, whole or not at all. Only its owner may read it.

    Args:
        path: the password file.
        hashes: by user, as `read` returns them.

    Raises:
        UserError: a name contains ":" or a blank, which the format cannot hold.
    """
    lines = []
    for user, stored in hashes.items():
        if not _is_storable(user):
            raise UserError(f"user {user!r}: expected a name without ':' and without blanks")
        lines.append(f"{user}:{stored}\n")
    write_private(path, "".join(lines).encode())


def read(path: Path) -> dict[str, str]:
    """The hashes by user. Raises UserError that names the line which is not in the format."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"password file {path}: {error}") from None
    lines = text.splitlines()
    users = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, stored = line.strip().partition(":")
        if not colon or not _is_hash(stored):
            raise UserError(
                f"{path}, line {number}: expected user:{SCHEME}..., as mosquitto_passwd writes it"
            )
        users[user] = stored
    return users


def _is_storable(user: str) -> bool:
    if not user or ":" in user:
        return False
    return not any(letter.isspace() for letter in user)


def _is_hash(text: str) -> bool:
    return text.startswith(SCHEME) and text.count("$") == 4


def _digest(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
