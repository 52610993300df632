"""Users of several brokers (shards): each of them is enrolled at one, by a rule that any program can repeat."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from covey.broker.access.acl import Role
from covey.broker.folder import BrokerFolder
from covey.shared.errors import UserError
from covey.shared.mqtt.shards import shard_of


def enroll_all(
    folders: Sequence[BrokerFolder],
    users: Sequence[str],
    role: Role,
    federation: str,
    shard: int | None = None,
    key: bytes = b"",
) -> list[Path]:
    """Enroll each user at one broker.

    Args:
        folders: of the brokers, in the order of their numbers.
        users: their names.
        role: of all of them.
        federation: of all of them.
        shard: the number of the broker; None: `shard_of` decides for each name.
        key: the signing key of the only user, for secure sums; empty: none.

    Returns:
        Their credentials files, in the order of the users.

    Raises:
        UserError: there is no such broker; a user is enrolled at another one; or as in `BrokerFolder.enroll_all`. A broker
            that comes before the one with the mistake keeps its new users.
    """
    count = len(folders)
    if shard is not None and shard >= count:
        raise UserError(
            f"--shard {shard}: there are {count} brokers, counted from 0; give --home once for each of them"
        )
    by_shard: dict[int, list[str]] = {}
    for user in users:
        own = shard_of(user, count) if shard is None else shard
        by_shard.setdefault(own, []).append(user)
    for own, names in sorted(by_shard.items()):
        _check_elsewhere(folders, own, names)
    files: dict[str, Path] = {}
    for own, names in sorted(by_shard.items()):
        files |= dict(
            zip(names, folders[own].enroll_all(names, role, federation, key), strict=True)
        )
    return [files[user] for user in users]


def _check_elsewhere(folders: Sequence[BrokerFolder], own: int, names: Sequence[str]) -> None:
    """Raise UserError for a user whom another broker has already: a device lives on one."""
    for number, folder in enumerate(folders):
        if number == own:
            continue
        known = folder.entries()
        for name in names:
            if name in known:
                typed = shlex.quote(str(folder.folder))
                raise UserError(
                    f"{name} is enrolled at {folder.folder}, and belongs to {folders[own].folder} now; first run "
                    f"`broker expel {name} --home {typed}`, or name the old one with --shard {number}"
                )
