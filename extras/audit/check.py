"""The audit log of a run that is checked, or that gets further lines when no coordinator has the run open."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.record.audit_trail import FILE, PUBLICATIONS, Trail, head_of
from covey.extras.audit.key import is_keyed
from covey.shared.errors import UserError
from covey.shared.storage.audit import (
    BEGIN,
    NO_HASH,
    REPAIRED,
    TRUNCATED,
    Head,
    algorithm,
    canonical,
    hash_of,
    parsed,
)
from covey.shared.storage.files import folder_lock

# -- checks an audit log, line by line: whether it is whole, and where it breaks ---------------------------------------


@dataclass(frozen=True)
class Break:
    """The first line (counted from 1) that differs from what was written, and why."""

    line: int
    why: str


@dataclass(frozen=True)
class AuditVerdict:
    """The result of `verify`."""

    owner: str  # the run or folder that the log names
    lines: int  # that follow each other without a break
    head: Head | None  # of the last of these lines; None: there is none
    events: Mapping[str, int]  # number of lines by event
    first_time: str
    last_time: str
    keyed: bool  # the log was written with a key
    broken: Break | None = None
    notes: tuple[str, ...] = ()  # repairs that the log itself records
    kept: tuple[Mapping[str, Any], ...] = ()  # intact lines of the events that the caller asked for

    @property
    def whole(self) -> bool:
        """Whether the log is intact, as far as a chain can show."""
        return self.broken is None


def verify(
    path: Path,
    *,
    key: bytes | None = None,
    owner: str | None = None,
    head: Head | None = None,
    keep: Collection[str] = (),
) -> AuditVerdict:
    """Check every line of a log.

    Args:
        path: the file.
        key: the key that the log was written with, if any.
        owner: the run or folder that the log must belong to; None: any.
        head: a line that must be there, kept somewhere else.
        keep: events whose lines the verdict returns.

    Raises:
        UserError: there is no log, or its key is missing, or a key is given for a log without one.
    """
    try:
        with path.open("rb") as file:
            check = _Check(key, head, keep)
            for line in file:
                if not check.line(line):
                    break
    except FileNotFoundError:
        raise UserError(f"{path}: there is no audit log; give the folder of a run") from None
    broken = check.broken or _wrong_owner(check, owner) or _missing(check, head)
    return AuditVerdict(
        owner=check.owner,
        lines=check.lines,
        head=check.head,
        events=dict(check.events),
        first_time=check.first_time,
        last_time=check.last_time,
        keyed=check.keyed,
        broken=broken,
        notes=tuple(check.notes),
        kept=tuple(check.kept),
    )


class _Check:
    """Follows a chain line by line."""

    def __init__(self, key: bytes | None, expected: Head | None, keep: Collection[str]) -> None:
        self.key = key
        self.keep = keep  # events
        self.expected = expected  # a line that must be there
        self.found = ""  # the hash of the line with the number of `expected`
        self.owner = ""  # as the first line names it
        self.lines = 0  # intact so far
        self.head: Head | None = None  # the last intact line
        self.events: Counter[str] = Counter()
        self.first_time = ""
        self.last_time = ""
        self.keyed = False  # the log was written with a key, according to its first line
        self.broken: Break | None = None  # the first line that is not intact
        self.notes: list[str] = []
        self.kept: list[Mapping[str, Any]] = []  # lines of the events in `keep`

    def line(self, raw: bytes) -> bool:
        """Take the next line; False where the chain breaks."""
        record = parsed(raw)
        if record is not None:
            fault = self._fault(record)
        elif raw.endswith(b"\n"):
            fault = "it is not a line of an audit log"
        else:
            fault = "it is cut short"
        if record is None or fault:
            self.broken = Break(self.lines + 1, fault)
            return False
        self._take(record)
        return self.broken is None

    def _fault(self, record: Mapping[str, Any]) -> str:
        """Why a line does not follow the one before it; empty if it does."""
        before = self.head or Head(0, NO_HASH)
        if self.head is None:
            self._begin(record)
        if record["sequence"] != (expected := before.sequence + 1):
            return f"it has number {record['sequence']}, expected {expected}: lines are missing or moved"
        bare = {name: value for name, value in record.items() if name != "hash"}
        computed = hash_of(canonical(bare), self.key).encode()
        if not hmac.compare_digest(computed, record["hash"].encode(errors="replace")):
            fault = "its hash does not match its content: the line was changed"
            if self.key is not None:
                fault += ", or another key was used"
            return fault
        if record["previous"] != before.hash:
            return "it does not follow the line before: a line was changed, removed or added"
        return ""

    def _begin(self, record: Mapping[str, Any]) -> None:
        """Learn from the first line which log this is. Raises UserError if its key is missing."""
        self.keyed = record["fields"].get("hash") == algorithm(b"key")
        if self.keyed and self.key is None:
            raise UserError("this audit log was written with a key; give the key's file with --key")
        self.owner = str(record["fields"].get("owner", ""))
        self.first_time = record["time"]

    def _take(self, record: Mapping[str, Any]) -> None:
        """Count an intact line, and note what it records about the log itself."""
        self.lines += 1
        self.head = Head(record["sequence"], record["hash"])
        if self.expected is not None and self.expected.sequence == self.lines:
            self.found = record["hash"]
        self.last_time = record["time"]
        self.events[record["event"]] += 1
        if record["event"] in self.keep:
            self.kept.append(record)
        if record["event"] == REPAIRED:
            cut = record["fields"].get("cut_bytes")
            self.notes.append(
                f"line {self.lines}: an unfinished line of {cut} bytes was cut off at a restart"
            )
        if record["event"] == TRUNCATED:
            newest = record["fields"].get("sequence")
            fault = f"lines before it are missing or were written again: line {newest} once had another hash"
            self.broken = Break(self.lines, fault)


def _wrong_owner(check: _Check, owner: str | None) -> Break | None:
    if check.keyed != (check.key is not None):
        return Break(1, "the log was written without a key, expected one with a key")
    beginnings = check.events[BEGIN]
    if beginnings != 1:
        return Break(1, f"{beginnings} lines have the event {BEGIN!r}, expected one")
    if owner is None or owner == check.owner:
        return None
    return Break(1, f"the log belongs to {check.owner!r}, expected {owner!r}")


def _missing(check: _Check, head: Head | None) -> Break | None:
    """The break where a line that is known from elsewhere is missing or different."""
    if head is None:
        return None
    if head.sequence > check.lines:
        fault = f"the log ends before line {head.sequence}, which was written: the newest lines were cut off"
        return Break(check.lines + 1, fault)
    if check.found != head.hash:
        return Break(
            head.sequence, "it differs from the line that was written: the log was written again"
        )
    return None


@dataclass(frozen=True)
class Checked:
    """The verdict on a run's log. `anchored`: the run's checkpoint, or the user, knows a head that was compared."""

    verdict: AuditVerdict
    anchored: bool


def check(folder: Path, *, key: bytes | None = None, head: Head | None = None) -> Checked:
    """Check the audit log of a run's folder, also against what its checkpoint knows. Raises UserError without a log."""
    path = folder / FILE
    owner, known = _of_checkpoint(folder)
    expected = head or known
    verdict = verify(path, key=key, owner=owner, head=expected, keep=PUBLICATIONS)
    are_two = head is not None and known is not None
    if are_two and verdict.whole:
        verdict = verify(path, key=key, owner=owner, head=known, keep=PUBLICATIONS)
    return Checked(verdict, anchored=expected is not None)


def summary(checked: Checked) -> dict[str, Any]:
    """The verdict as `coordinator lab audit --json` prints it."""
    verdict = checked.verdict
    broken = verdict.broken
    head = verdict.head
    return {
        "whole": verdict.whole,
        "run": verdict.owner,
        "lines": verdict.lines,
        "head": f"{head.sequence}:{head.hash}" if head is not None else None,
        "broken_line": broken.line if broken is not None else None,
        "why": broken.why if broken is not None else None,
        "first_time": verdict.first_time,
        "last_time": verdict.last_time,
        "keyed": verdict.keyed,
        "anchored": checked.anchored,
        "events": dict(sorted(verdict.events.items())),
        "notes": list(verdict.notes),
        "publications": [_publication(line) for line in verdict.kept],
    }


def _publication(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line about models that were published."""
    return {"time": line["time"], "event": line["event"], **line["fields"]}


@contextmanager
def trail_of_finished(folder: Path, key: bytes | None) -> Iterator[Trail]:
    """The audit log of a run that no coordinator has open, to add lines to it.

    Args:
        folder: the run's folder. It is held against other coordinators for the block.
        key: signs the lines if the log is signed; unused otherwise.

    Raises:
        UserError: a coordinator is at work in the folder, the log is signed and there is no key, or the folder has no
            checkpoint.
    """
    path = folder / FILE
    is_signed = is_keyed(path)
    if is_signed and key is None:
        raise UserError(
            f"{path}: this audit log is signed, so that each publication needs the key; give its file with --audit-key"
        )
    facts = Checkpoint(folder / "checkpoint").facts()["run"]
    busy = f"{folder}: a coordinator is at work in it and writes its audit log; wait for the end of the run, or stop it"
    with folder_lock(folder, busy):
        head = head_of(facts.get("audit"))
        trail = Trail(folder, facts["run"], key=key if is_signed else None, head=head)
        yield trail
        trail.sync()


def _of_checkpoint(folder: Path) -> tuple[str | None, Head | None]:
    """The run's id and the head that its checkpoint holds; None where there is no readable checkpoint."""
    checkpoint = Checkpoint(folder / "checkpoint")
    try:
        facts = checkpoint.facts()
    except UserError:
        return None, None
    run = facts["run"]
    return run["run"], head_of(run.get("audit"))


def parse_head(text: str) -> Head:
    """`NUMBER:HASH`, as `coordinator lab audit` prints it. Raises UserError for anything else."""
    number, _, hash_ = text.partition(":")
    is_number = number.isdecimal() and int(number) >= 1
    if not is_number or not hash_:
        raise UserError(
            f"--head {text}: expected NUMBER:HASH, as an earlier `coordinator lab audit` printed it"
        )
    return Head(int(number), hash_)
