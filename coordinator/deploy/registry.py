"""The versions of models that were published to a federation, over all runs in a folder.

Each run's folder has its own list of publications, `deployments.jsonl`. Together, in the order of their serials, they are the registry:
which version all devices should use, which one some of them try, and what was in use before.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from covey.coordinator.deploy.publish import Published
from covey.coordinator.disk.versions import ModelVersion
from covey.shared.errors import UserError
from covey.shared.storage import json_text
from covey.shared.storage.files import write_atomically

FILE = "deployments.jsonl"
Act = Literal["finish", "promote", "rollback"]
Version = tuple[str, int]  # a run's id and a round


@dataclass(frozen=True)
class Publication:
    """One publication. The defaults are those of lines that earlier versions have written."""

    time: str  # UTC, ISO 8601
    act: Act
    round: int  # whose models were published
    serial: int
    run: str = ""  # that made the models
    federation: str = ""
    who: str = ""  # user and host
    figure: Mapping[str, Any] = field(default_factory=dict)  # metric and value; empty if unknown
    devices: Sequence[str] = ()  # that try a candidate; empty: it is for all
    alias: str = ""  # the operator's own name of the version
    before_run: str = ""  # whose models were in use until then; "" for none
    before_round: int = 0

    @property
    def version(self) -> Version:
        return self.run, self.round

    @property
    def before(self) -> Version | None:
        """The version that all devices used until then."""
        return (self.before_run, self.before_round) if self.before_run else None


def publications(folder: Path) -> list[Publication]:
    """All publications from a run's folder, oldest first. Raises UserError for a damaged file."""
    path = folder / FILE
    if not path.exists():
        return []
    found: list[Publication] = []
    for line in path.read_text().splitlines():
        try:
            found.append(Publication(**json_text.loads(line)))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: a line is damaged ({error}); restore the file") from None
    return found


def note(
    folder: Path,
    act: Act,
    version: ModelVersion,
    published: Published,
    federation: str,
    figure: Mapping[str, Any],
    alias: str = "",
) -> None:
    """Add a publication."""
    before = published.before.all_devices
    line = Publication(
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        act=act,
        round=version.round,
        serial=published.serial,
        run=version.run,
        federation=federation,
        who=_who(),
        figure=dict(figure),
        devices=published.devices,
        alias=alias,
        before_run=before.run if before is not None else "",
        before_round=before.round if before is not None else 0,
    )
    texts = [json_text.dumps(asdict(one)) + "\n" for one in [*publications(folder), line]]
    write_atomically(folder / FILE, "".join(texts).encode())


def _who() -> str:
    """The user of this process, and the host. A container may have a user without a name."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


CHAMPION = "champion"  # the version that all devices should use
CANDIDATE = "candidate"  # the version that some devices try
DEPTH = 4  # of the folder of a run within that of all runs: comparison, partition, method, seed
RESERVED = (CHAMPION, CANDIDATE, "best", "last")


@dataclass(frozen=True)
class Entry:
    """One publication, and the folder of the run that made its models."""

    publication: Publication
    folder: Path
    name: str  # of the folder, within that of all runs

    @property
    def version(self) -> Version:
        return self.publication.version

    def __str__(self) -> str:
        return f"{self.name}@{self.publication.round}"


@dataclass(frozen=True)
class Registry:
    """All publications of a federation that the runs in a folder have made, oldest first."""

    folder: Path
    entries: tuple[Entry, ...]

    @cached_property
    def _in_force(self) -> tuple[Entry, ...]:
        """What was published to all devices and not rolled back, each with the entry that first put it there."""
        stack: list[Entry] = []
        for entry in self.entries:
            if entry.publication.devices:
                continue
            if entry.publication.act == "rollback":
                while stack and stack[-1].version != entry.version:
                    stack.pop()
            if not stack or stack[-1].version != entry.version:
                stack.append(entry)
        return tuple(stack)

    @property
    def champion(self) -> Entry | None:
        """The version that all devices should use."""
        return self._in_force[-1] if self._in_force else None

    @property
    def candidate(self) -> Entry | None:
        """The version that some devices try: until the next publication to all of them."""
        newest = self.entries[-1] if self.entries else None
        return newest if newest is not None and newest.publication.devices else None

    @property
    def serial(self) -> int:
        """Of the newest publication to all devices; 0 for none."""
        serials = [
            entry.publication.serial for entry in self.entries if not entry.publication.devices
        ]
        return max(serials, default=0)

    def before(self) -> Entry:
        """What a rollback goes back to: from a candidate to the champion, else to the champion before.

        Raises:
            UserError: there is nothing.
        """
        stack = self._in_force
        if self.candidate is not None and stack:
            return stack[-1]
        if len(stack) > 1:
            return stack[-2]
        if not stack:
            raise UserError(
                f"{self.folder}: there is nothing to go back to: no run in this folder has published models to all devices; "
                "name another folder of runs with --runs"
            )
        before = stack[-1].publication.before
        if before is not None and before != stack[-1].version:
            run, number = before
            raise UserError(
                f"round {number} of run {run} was in use before {stack[-1]}, and its folder is not in {self.folder}; publish "
                f"it with `coordinator promote ITS-FOLDER@{number} --force`"
            )
        raise UserError(
            f"{self.folder}: there is nothing to go back to: nothing was published before {stack[-1]}"
        )

    def named(self, alias: str) -> Entry | None:
        """The newest version with a name: `champion`, `candidate`, or one that an operator gave it."""
        if alias == CHAMPION:
            return self.champion
        if alias == CANDIDATE:
            return self.candidate
        own = [entry for entry in self.entries if entry.publication.alias == alias]
        return own[-1] if own else None

    def names(self) -> dict[Version, list[str]]:
        """The names of each version that has one."""
        own = {entry.publication.alias for entry in self.entries} - {""}
        found: dict[Version, list[str]] = {}
        for alias in (CHAMPION, CANDIDATE, *sorted(own)):
            entry = self.named(alias)
            if entry is not None:
                found.setdefault(entry.version, []).append(alias)
        return found


def needed(known: Registry) -> list[Entry]:
    """The versions that devices should use, those with a name, and what a rollback would go back to."""
    found = [known.named(alias) for aliases in known.names().values() for alias in aliases]
    with suppress(UserError):
        found.append(known.before())
    return [entry for entry in found if entry is not None]


def federations(folder: Path) -> set[str]:
    """The federations to which the runs in a folder have published models."""
    return {entry.publication.federation or "default" for entry in _entries(folder)}


def registry(folder: Path, federation: str) -> Registry:
    """The registry of a federation.

    Args:
        folder: that has the folders of runs.
        federation: its name.

    Raises:
        UserError: a list of publications is damaged.
    """
    found = [
        entry for entry in _entries(folder) if entry.publication.federation in ("", federation)
    ]
    return Registry(folder, tuple(sorted(found, key=lambda entry: entry.publication.serial)))


def _entries(folder: Path) -> Iterator[Entry]:
    for run in run_folders(folder):
        for one in publications(run):
            yield Entry(one, run, run.relative_to(folder).as_posix())


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs in a folder, by name; a comparison has its runs some folders below."""
    found: set[Path] = set()
    for depth in range(1, DEPTH + 1):
        found.update(path.parent for path in folder.glob("*/" * depth + "scenario.yaml"))
    return sorted(found)
