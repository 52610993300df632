"""Password files as Mosquitto writes them: `user:$7$iterations$salt$hash`, PBKDF2 with SHA-512.

Written here too, so that one file serves both brokers and none of the programs is needed to make it.
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
from covey.shared.files import write_private

ITERATIONS = 101  # Mosquitto's own number: its broker computes the hash at each connection


def hash_password(password: str) -> str:
    """What a password file keeps of a password."""
    salt = os.urandom(12)
    made = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    return f"$7${ITERATIONS}${_text(salt)}${_text(made)}"


def write(path: Path, passwords: Mapping[str, str]) -> None:
    """A password file for these users and their passwords."""
    save(path, {user: hash_password(password) for user, password in passwords.items()})


def save(path: Path, users: Mapping[str, str]) -> None:
    """User to hash, as `read` gives them, in a file that only its owner may read: whole or not at all.

    A name that the file could not hold raises UserError.
    """
    for user in users:
        if not user or ":" in user or any(letter.isspace() for letter in user):
            raise UserError(f"user {user!r}: a name without ':' and without blanks is wanted")
    lines = [f"{user}:{made}\n" for user, made in users.items()]
    write_private(path, "".join(lines).encode())


def read(path: Path) -> dict[str, str]:
    """User to hash. Raises UserError with the line that is not understood."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"password file {path}: {error}") from None
    users = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, made = line.strip().partition(":")
        if not colon or made.count("$") != 4 or not made.startswith("$7$"):
            raise UserError(
                f"{path}, line {number}: user:$7$... is wanted, as mosquitto_passwd writes it"
            )
        users[user] = made
    return users


def verify(made: str, password: str) -> bool:
    """Is it the password behind the hash?"""
    try:
        _, _, iterations, salt, wanted = made.split("$")
        found = hashlib.pbkdf2_hmac(
            "sha512", password.encode(), base64.b64decode(salt), int(iterations)
        )
        return hmac.compare_digest(found, base64.b64decode(wanted))
    except (ValueError, binascii.Error):
        return False


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
