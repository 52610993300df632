"""The versions of models that were published to a federation, over all runs in a folder.

The audit log of each run has a line for each publication of its models, and one for what devices made of it. Together, in the
order of their serials, they are the registry: which version is in force, which one some devices try, and what was in force before.

The devices' word on one publication, from their own statuses: who took it over, who rejected it, who has not answered. Pure.
"""

from __future__ import annotations

import getpass
import hashlib
import math
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from covey.coordinator.record.audit_trail import FILE, OUTCOME, PUBLICATIONS, Trail
from covey.coordinator.record.records import run_folders
from covey.extras.audit.key import is_keyed
from covey.shared.errors import UserError
from covey.shared.sentences import some
from covey.shared.storage.audit import canonical, hash_of, parsed
from covey.shared.wire.documents import AgentStatus

MAX_NAMES = 5  # of devices in a sentence
REJECTED, NOT_YET = 1, 3  # exit codes


@dataclass(frozen=True)
class DeploymentOutcome:
    """What each device has made of a publication. Devices without `--model-dir` take no part in it."""

    taken: Sequence[str] = ()  # they use it
    rejected: Mapping[str, str] = field(default_factory=dict)  # with their newest decision
    undecided: Sequence[str] = ()  # online, and have not judged it yet
    offline: Sequence[str] = ()  # they judge it when they connect again, if they keep models

    @property
    def is_refused(self) -> bool:
        """Whether every device that has answered keeps another model."""
        return bool(self.rejected) and not self.taken

    @property
    def is_open(self) -> bool:
        """Whether a device does not use it, or not yet."""
        return bool(self.rejected or self.undecided or self.offline)

    @property
    def exit_code(self) -> int:
        """1: a device rejected the models; 3: none did, and some have not answered; 0: all took them over."""
        if self.rejected:
            return REJECTED
        return NOT_YET if self.undecided or self.offline else 0

    @property
    def sentence(self) -> str:
        """For a person."""
        rejected = list(self.rejected)
        parts = [f"{len(self.taken)} took it over", f"{len(rejected)} rejected it{_of(rejected)}"]
        if self.undecided:
            verb = "has" if len(self.undecided) == 1 else "have"
            parts.append(f"{len(self.undecided)} {verb} not answered yet{_of(self.undecided)}")
        if self.offline:
            verb = "is" if len(self.offline) == 1 else "are"
            parts.append(f"{len(self.offline)} {verb} offline{_of(self.offline)}")
        return "devices: " + ", ".join(parts)

    def after(self, earlier: DeploymentOutcome | None) -> DeploymentOutcome:
        """This outcome after an earlier one. A device that took the version then has not rejected it since: it moved on."""
        before = set() if earlier is None else set(earlier.taken)
        rejected = {agent: why for agent, why in self.rejected.items() if agent not in before}
        return replace(self, taken=sorted({*self.taken, *before}), rejected=rejected)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _of(agents: Sequence[str]) -> str:
    return f" ({some(agents, MAX_NAMES)})" if agents else ""


def outcome_of(
    statuses: Mapping[str, AgentStatus],
    version: tuple[str, int],
    serial: int,
    devices: Collection[str] = (),
) -> DeploymentOutcome:
    """The outcome of a publication.

    Args:
        statuses: the newest of each device.
        version: that was published, as its run and round.
        serial: of the publication.
        devices: that it is for; empty for all.
    """
    taken: list[str] = []
    rejected: dict[str, str] = {}
    undecided: list[str] = []
    offline: list[str] = []
    for agent, status in sorted(statuses.items()):
        if devices and agent not in devices:
            continue
        if not status.online:
            offline.append(agent)
        elif status.model is None:
            continue
        elif status.model.serial < serial:
            undecided.append(agent)
        elif (status.model.run, status.model.round) == version:
            taken.append(agent)
        else:
            rejected[agent] = status.model.note
    return DeploymentOutcome(taken, rejected, undecided, offline)


def sample(devices: Iterable[str], share: float, version: str) -> list[str]:
    """A share of devices, at least one. A larger share of the same version has the devices of a smaller one.

    Args:
        devices: all that could try it.
        share: above 0, at most 1.
        version: names what is tried: another version meets other devices first.
    """
    ranked = sorted(
        devices, key=lambda agent: hashlib.blake2b(f"{version}/{agent}".encode()).digest()
    )
    return sorted(ranked[: max(1, math.ceil(share * len(ranked) - 1e-9))])


Act = Literal["publish", "promote", "rollback"]
Version = tuple[str, int]  # a run's id and a round


@dataclass(frozen=True)
class Publication:
    """One publication. The serial is its id: the broker and the devices know it by that."""

    act: Act
    round: int  # whose models were published
    serial: int
    run: str  # that made the models
    federation: str
    time: str = ""  # UTC, ISO 8601: of the line in the log
    who: str = ""  # user and host
    figure: Mapping[str, Any] = field(default_factory=dict)  # metric and value; empty if unknown
    devices: Sequence[str] = ()  # that try a candidate; empty: it is for all
    alias: str = ""  # the operator's own name of the version
    force: bool = False
    before_run: str = ""  # whose models were in force until then; "" for none
    before_round: int = 0
    outcome: DeploymentOutcome | None = None  # from a line of its own; None: not known

    @property
    def version(self) -> Version:
        return self.run, self.round

    @property
    def before(self) -> Version | None:
        """The version that was in force until then."""
        return (self.before_run, self.before_round) if self.before_run else None


def note(trail: Trail, publication: Publication) -> None:
    """Add a publication to the log of its run."""
    fields = asdict(publication)
    act = fields.pop("act")
    del fields["time"], fields["outcome"]  # each line has the one, a later line the other
    trail.note(
        act, **{name: value for name, value in fields.items() if value not in ("", 0, (), {})}
    )


def note_outcome(trail: Trail, serial: int, outcome: DeploymentOutcome) -> None:
    """Add what devices made of a publication, in the same log."""
    trail.note(OUTCOME, serial=serial, **outcome.to_json())


def _lines(folder: Path) -> Iterator[tuple[int, str, str, Mapping[str, Any]]]:
    """The number, event, time and fields of the lines about publications in the log of a run."""
    marks = [f'"event":"{event}"'.encode() for event in (*PUBLICATIONS, OUTCOME)]
    path = folder / FILE
    if not path.exists():
        return
    is_signed = is_keyed(path)  # without the key it cannot be seen whether a value was changed
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not any(mark in line for mark in marks):
                continue
            record = parsed(line)
            if record is not None:
                bare = canonical({name: record[name] for name in record if name != "hash"})
            if record is not None and (is_signed or record["hash"] == hash_of(bare, None)):
                yield number, record["event"], record["time"], record["fields"]
            elif line.endswith(b"\n"):
                raise UserError(
                    f"{path}: line {number} is damaged, so what this run has published is not known; `coordinator lab audit "
                    f"{folder}` checks the log"
                )


def publications(folder: Path) -> list[Publication]:
    """All publications from a run's folder, oldest first. Raises UserError for a line that is damaged or of another version."""
    found: dict[int, Publication] = {}
    for number, event, time, fields in _lines(folder):
        try:
            serial = int(fields["serial"])
            if event != OUTCOME:
                found[serial] = Publication(event, time=time[:19] + "Z", **fields)  # type: ignore[arg-type]
            elif serial in found:
                words = {name: value for name, value in fields.items() if name != "serial"}
                found[serial] = replace(found[serial], outcome=DeploymentOutcome(**words))
        except (KeyError, ValueError, TypeError):
            raise UserError(
                f"{folder / FILE}: line {number} is of another version of Covey, so what this run has published is not known "
                "here; that version can publish its models"
            ) from None
    return list(found.values())


def operator() -> str:
    """The user of this process, and the host. A container may have a user without a name."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


CHAMPION = "champion"  # the version that all devices should use
CANDIDATE = "candidate"  # the version that some devices try
RESERVED = (CHAMPION, CANDIDATE, "best", "last")


@dataclass(frozen=True)
class RegistryEntry:
    """One publication, and the folder of the run that made its models."""

    publication: Publication
    folder: Path
    name: str  # of the folder, within that of all runs

    @property
    def is_trial(self) -> bool:
        """Whether only some devices try it."""
        return bool(self.publication.devices)

    @property
    def outcome(self) -> DeploymentOutcome | None:
        """What devices made of it; None: not known."""
        return self.publication.outcome

    @property
    def is_refused(self) -> bool:
        """Whether no device took it over, and some have kept another model instead: it is not in force."""
        return self.outcome is not None and self.outcome.is_refused

    @property
    def is_open_rollback(self) -> bool:
        """Whether devices have not gone back yet: the next rollback, with --force or not, goes to the same version."""
        is_open = self.outcome is not None and self.outcome.is_open
        return self.publication.act == "rollback" and is_open

    @property
    def version(self) -> Version:
        return self.publication.version

    def __str__(self) -> str:
        return f"{self.name}@{self.publication.round}"


@dataclass(frozen=True)
class Registry:
    """All publications of a federation that the runs in a folder have made, oldest first.

    `faults`: why those of some runs are not known, by the run's folder. Of these nothing is published.
    """

    folder: Path
    entries: tuple[RegistryEntry, ...]
    faults: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def _in_force(self) -> tuple[RegistryEntry, ...]:
        """What was in force on all devices and not rolled back, each with the entry that first put it there."""
        stack: list[RegistryEntry] = []
        for entry in self.entries:
            if entry.is_trial:
                continue
            _back_to(stack, entry.publication.before)  # its operator saw what devices had refused
            if entry.is_refused:
                continue
            if entry.publication.act == "rollback":
                _back_to(stack, entry.version)
            if not stack or stack[-1].version != entry.version:
                stack.append(entry)
        return tuple(stack)

    @property
    def newest(self) -> RegistryEntry | None:
        """The newest publication, be it for all devices or for some."""
        return self.entries[-1] if self.entries else None

    @property
    def champion(self) -> RegistryEntry | None:
        """The version in force: the newest for all devices that they did not refuse."""
        return self._in_force[-1] if self._in_force else None

    @property
    def candidate(self) -> RegistryEntry | None:
        """The version that some devices try: until the next publication to all of them."""
        newest = self.newest
        return newest if newest is not None and newest.is_trial else None

    @property
    def earlier(self) -> tuple[RegistryEntry, ...]:
        """The versions that were in force, oldest first, and the one that is."""
        return self._in_force

    def judged(self, entry: RegistryEntry, outcome: DeploymentOutcome) -> Registry:
        """The registry with what devices make of a publication now."""
        now = replace(entry, publication=replace(entry.publication, outcome=outcome))
        entries = [now if one is entry else one for one in self.entries]
        return replace(self, entries=tuple(entries))

    def title(self, version: Version) -> str:
        """The one name of a version: the operator's own, else the run's folder and the round; "" if it is not known."""
        for entry in reversed(self.entries):
            if entry.version == version and entry.publication.alias:
                return entry.publication.alias
        return next((str(one) for one in self.entries if one.version == version), "")

    @property
    def serial(self) -> int:
        """Of the newest publication to all devices; 0 for none."""
        serials = [
            entry.publication.serial for entry in self.entries if not entry.publication.devices
        ]
        return max(serials, default=0)

    def before(self) -> RegistryEntry:
        """What a rollback goes back to: from a candidate to the champion, else to the champion before.

        From a version that devices refused it is the champion too. A rollback that some devices refused, or have not answered,
        is repeated: the next one goes to the same version.

        Raises:
            UserError: there is nothing.
        """
        stack = self._in_force
        newest = self.newest
        if newest is not None and newest.is_open_rollback:
            return newest
        if newest is not None and stack and (newest.is_trial or newest.is_refused):
            return stack[-1]
        before = stack[-1].publication.before if stack else None
        if self.faults and before is not None and before not in [one.version for one in stack]:
            raise UserError(
                f"what was in force before {self.title(stack[-1].version)} is not known: {'; '.join(self.faults.values())}. "
                "Name the version to go back to: `coordinator rollback --to VERSION`"
            )
        if len(stack) > 1:
            return stack[-2]
        if not stack:
            raise UserError(
                f"{self.folder}: there is nothing to go back to: no run in this folder has published models to all devices; "
                "name another folder of runs with --runs"
            )
        if before is not None and before != stack[-1].version:
            run, number = before
            raise UserError(
                f"a version that was in force before {self.title(stack[-1].version)} is not in {self.folder}: round {number} of "
                f"run {run}. Publish it with `coordinator promote ITS-FOLDER@{number}`"
            )
        raise UserError(
            f"{self.folder}: there is nothing to go back to: nothing was in force before {self.title(stack[-1].version)}; "
            "`coordinator promote VERSION` publishes another one"
        )

    def named(self, alias: str) -> RegistryEntry | None:
        """The newest version with a name: `champion`, `candidate`, or one that an operator gave it."""
        if alias == CHAMPION:
            return self.champion
        if alias == CANDIDATE:
            return self.candidate
        own = [entry for entry in self.entries if entry.publication.alias == alias]
        return own[-1] if own else None

    def names(self) -> dict[Version, list[str]]:
        """Which version is the champion and which one the candidate, and those to which an operator gave a name."""
        own = {entry.publication.alias for entry in self.entries} - {""}
        found: dict[Version, list[str]] = {}
        for alias in (CHAMPION, CANDIDATE, *sorted(own)):
            entry = self.named(alias)
            if entry is not None:
                found.setdefault(entry.version, []).append(alias)
        return found

    def roles(self, version: Version) -> list[str]:
        """Champion, candidate, or neither."""
        return [one for one in self.names().get(version, ()) if one in (CHAMPION, CANDIDATE)]


def needed(known: Registry) -> list[RegistryEntry]:
    """The versions that devices should use, those with a name, and what a rollback would go back to: any, if that is not known."""
    found = [known.named(alias) for aliases in known.names().values() for alias in aliases]
    with suppress(UserError):
        found.append(known.before())
    if known.faults:
        found += known.earlier
    return [entry for entry in found if entry is not None]


def registries(folder: Path, *known: str) -> dict[str, Registry]:
    """The registries of the federations to which the runs in a folder have published models, and of those that are named.

    A run whose publications cannot be read is left out: it is among the faults of each registry, and closes no other one.

    Args:
        folder: that has the folders of runs.
        known: names of federations.
    """
    found: dict[str, dict[int, RegistryEntry]] = {name: {} for name in known}
    faults: dict[Path, str] = {}
    for run in run_folders(folder):
        name = run.relative_to(folder).as_posix()
        try:
            for one in publications(run):
                of, entry = found.setdefault(one.federation, {}), RegistryEntry(one, run, name)
                # a copy of a folder has the same lines, or those of an earlier day
                if one.serial not in of or (entry.outcome and not of[one.serial].outcome):
                    of[one.serial] = entry
        except (UserError, OSError) as error:
            faults[run] = str(error)
    return {
        name: Registry(folder, tuple(of[serial] for serial in sorted(of)), faults)
        for name, of in sorted(found.items())
    }


def registry(folder: Path, federation: str) -> Registry:
    """The registry of a federation, from a folder that has the folders of runs."""
    return registries(folder, federation)[federation]


def _back_to(stack: list[RegistryEntry], version: Version | None) -> None:
    """Take off what lies above a version, if that is there."""
    if any(one.version == version for one in stack):
        while stack[-1].version != version:
            stack.pop()
