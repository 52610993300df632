"""Users of several brokers (shards): each of them is enrolled at one, by a rule that any program can repeat."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from covey.broker.access.acl import Role
from covey.extras.users.folder import DEFAULT_FEDERATION, BrokerFolder
from covey.shared.errors import UserError
from covey.shared.mqtt.shards import shard_of
from covey.shared.sentences import counted


@dataclass(frozen=True)
class Wanted:
    """Users to enroll with one role in one federation."""

    names: tuple[str, ...]
    role: Role = "agent"
    federation: str = DEFAULT_FEDERATION
    key: bytes = b""  # the signing key of the only user, for secure sums; empty: none


def read_table(path: Path, default: Wanted) -> list[Wanted]:
    """The users of a table, with the role of `default`, and its federation where the table names none.

    Raises:
        UserError: the table has no column `id`, another column than `federation` and `key`, or a name twice in a federation.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else []
    if "id" not in columns or {*columns} - {"id", "federation", "key"}:
        raise UserError(
            f"{path}: expected a table with a column `id`, and perhaps `federation` and `key`; found "
            f"{', '.join(map(str, columns)) or 'no rows'}"
        )
    groups: dict[tuple[str, bytes], list[str]] = {}
    for number, row in enumerate(rows, 2):
        federation = (row.get("federation") or "").strip() or default.federation
        try:
            key = bytes.fromhex((row.get("key") or "").strip())
        except ValueError:
            raise UserError(
                f"{path}, line {number}: expected the 64 digits that `agent lab keys` prints as `key`"
            ) from None
        groups.setdefault((federation, key), []).append((row["id"] or "").strip())
    every = [(federation, name) for (federation, _), names in groups.items() for name in names]
    if twice := sorted({name for federation, name in every if every.count((federation, name)) > 1}):
        raise UserError(f"{path}: {', '.join(twice)} twice; expected each id once in a federation")
    return [
        replace(default, names=tuple(names), federation=federation, key=key)
        for (federation, key), names in groups.items()
    ]


def enroll_all(
    folders: Sequence[BrokerFolder], groups: Sequence[Wanted], shard: int | None = None
) -> list[Path]:
    """Enroll each user at one broker.

    Args:
        folders: of the brokers, in the order of their numbers.
        groups: of users.
        shard: the number of the broker; None: `shard_of` decides for each name.

    Returns:
        Their credentials files, in the order of the users.

    Raises:
        UserError: there is no such broker; a user is enrolled at another one; or as in `BrokerFolder.enroll_all`. What comes
            before the mistake keeps its new users.
    """
    count = len(folders)
    if shard is not None and shard >= count:
        raise UserError(
            f"--shard {shard}: --home names {counted(count, 'broker')}, counted from 0; give it once for each of them"
        )
    places: list[dict[int, list[str]]] = []
    for group in groups:
        by_shard: dict[int, list[str]] = {}
        for user in group.names:
            own = shard_of(user, count) if shard is None else shard
            by_shard.setdefault(own, []).append(user)
        for own, names in sorted(by_shard.items()):
            _check_elsewhere(folders, own, names)
        places.append(by_shard)
    files: list[Path] = []
    for group, by_shard in zip(groups, places, strict=True):
        of_group: dict[str, Path] = {}
        for own, names in sorted(by_shard.items()):
            made = folders[own].enroll_all(names, group.role, group.federation, group.key)
            of_group |= dict(zip(names, made, strict=True))
        files += [of_group[user] for user in group.names]
    return files


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
