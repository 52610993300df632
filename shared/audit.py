"""An audit log: one JSON line per event, each with the hash of the line before it.

    {"event":"accept","fields":{...},"hash":"...","previous":"...","sequence":7,"time":"2026-01-31T12:00:00.000Z"}

`hash` is SHA-256 over the canonical JSON of the rest of the line, or HMAC-SHA-256 where the log has a key. The first
line names the run or the folder that the log belongs to (`owner`), so that no other log can take its place.

A chain shows that a line was changed, removed, added or moved, unless every line after it was written again too. It
cannot show by itself that the newest lines were cut off, or that the whole file was written again. Against the first,
keep the newest `Head` somewhere else and pass it to `verify`. Against the second, use a key that is out of reach of all who can
write the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.journal import Journal

BEGIN = "begin"  # event of the first line
REPAIRED = "log_repaired"  # an unfinished last line was cut off when the log was opened
TRUNCATED = "log_truncated"  # a line is missing whose head was kept elsewhere
MIN_KEY_BYTES = 16  # bytes
NO_HASH = ""


@dataclass(frozen=True)
class Head:
    """The newest line of a log. Kept somewhere else, it proves later that this line was not removed."""

    sequence: int
    hash: str


@dataclass(frozen=True)
class Break:
    """The first line (counted from 1) that differs from what was written, and why."""

    line: int
    why: str


@dataclass(frozen=True)
class Verdict:
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
            record = _parsed(file.readline())
    except FileNotFoundError:
        return False
    return record is not None and record["fields"].get("hash") == _algorithm(b"key")


@dataclass(frozen=True)
class Entry:
    """The content of a line; its fields are JSON-able."""

    event: str
    fields: Mapping[str, Any]


class AuditLog:
    """Appends to a log. It has one writer at a time, which the lock of its owner's folder guarantees.

    A new file begins with a line that names `owner`. If the last line of an old file has no end (power cut, full disk),
    it is cut off, and a line records that. A line that cannot be written (full disk) waits in memory; the next `append`
    and `sync` try again.

    Args:
        path: the file.
        owner: the run or folder that the log belongs to.
        key: for HMAC; None: a plain hash.
        head: the newest line that the owner remembers. If it is missing, a line records that.
        now: the clock, in seconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        owner: str,
        *,
        key: bytes | None = None,
        head: Head | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.owner = owner
        self._key = key
        self._now = now
        self._writes_later = False  # between `hold` and `release`
        self._journal = Journal(path, self._chained, keep=None, durable=False)
        self._head = _head_of(path, self._journal.newest)
        if self._head is None:
            self.append(BEGIN, owner=owner, hash=_algorithm(key))
        if self._journal.torn_bytes:
            self.append(REPAIRED, cut_bytes=self._journal.torn_bytes)
        if head is not None and not _holds(path, head):
            self.append(TRUNCATED, sequence=head.sequence, hash=head.hash)

    def __repr__(self) -> str:
        return f"AuditLog({self.path}, line {self.head.sequence})"

    @property
    def head(self) -> Head:
        """The newest line."""
        if self._head is None:
            raise RuntimeError("an open log has a first line")
        return self._head

    def append(self, event: str, **fields: Any) -> Head:
        """Add a line with JSON-able fields. It is written at once, or waits in memory if the disk is full."""
        self._journal.add(Entry(event, fields))
        self._write()
        return self.head

    def _chained(self, entry: Entry) -> bytes:
        """The line of an entry, which follows the newest one and is the newest from now on."""
        before = self._head or Head(0, NO_HASH)
        record = {
            "event": entry.event,
            "fields": entry.fields,
            "previous": before.hash,
            "sequence": before.sequence + 1,
            "time": _timestamp(self._now()),
        }
        self._head = Head(before.sequence + 1, _hash(record, self._key))
        return _canonical(record | {"hash": self._head.hash})

    def hold(self) -> None:
        """Let further lines wait in memory until `release` or `sync`: they are then written together."""
        self._writes_later = True

    def release(self) -> None:
        """Write the lines that were held, and further ones at once."""
        self._writes_later = False
        self._write()

    def sync(self) -> None:
        """Write what waits, so that it survives a power cut. Raises OSError if the disk is full."""
        self._journal.sync()

    def _write(self) -> None:
        if not self._writes_later:
            with contextlib.suppress(OSError):
                self._journal.flush()


@dataclass
class Flood:
    """Limits the lines about events that a peer can cause at will. Pure, with time in seconds as input.

    In each window the first `singly` events get a line each. The rest are counted by event and agent, with at most
    `names` agents by name, and become one line per event when the window is over.
    """

    window_s: float = 60.0
    singly: int = 20
    names: int = 50
    _started: float | None = field(default=None, init=False)  # of the current window
    _written: int = field(default=0, init=False)  # events of this window with a line of their own
    # events without one, by event and agent; cleared when they are handed out
    _counts: dict[str, Counter[str]] = field(default_factory=dict, init=False)

    def admit(self, event: str, agent: str, now: float) -> bool:
        """Whether this event gets a line of its own. If not, it is counted."""
        if self._started is None or now >= self._started + self.window_s:
            self._started = now
            self._written = 0
        if self._written < self.singly:
            self._written += 1
            return True
        counts = self._counts.setdefault(event, Counter())
        is_named = agent in counts or len(counts) < self.names
        name = agent if is_named else "others"
        counts[name] += 1
        return False

    def due(self, now: float) -> dict[str, dict[str, int]]:
        """The counts by event and agent once their window is over. Each count is handed out once."""
        if self._started is None or now < self._started + self.window_s:
            return {}
        return self.rest()

    def rest(self) -> dict[str, dict[str, int]]:
        """The counts that were not handed out yet."""
        counted = {event: dict(counts) for event, counts in self._counts.items()}
        self._counts.clear()
        return counted


def verify(
    path: Path,
    *,
    key: bytes | None = None,
    owner: str | None = None,
    head: Head | None = None,
    keep: Collection[str] = (),
) -> Verdict:
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
    return Verdict(
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
        record = _parsed(raw)
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
        expected = before.sequence + 1
        if record["sequence"] != expected:
            return f"it has number {record['sequence']}, expected {expected}: lines are missing or moved"
        bare = {name: value for name, value in record.items() if name != "hash"}
        computed = _hash(bare, self.key).encode()
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
        self.keyed = record["fields"].get("hash") == _algorithm(b"key")
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


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hash(record: Mapping[str, Any], key: bytes | None) -> str:
    content = _canonical(record)
    if key is None:
        return hashlib.sha256(content).hexdigest()
    return hmac.digest(key, content, "sha256").hex()


def _algorithm(key: bytes | None) -> str:
    return "sha256" if key is None else "hmac-sha256"


def _timestamp(seconds: float) -> str:
    """A time for people and programs: UTC, with milliseconds."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_KINDS = {"event": str, "fields": dict, "hash": str, "previous": str, "sequence": int, "time": str}


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """The record of a line; None unless the line is exactly what this module writes."""
    try:
        record: dict[str, Any] = json_text.loads(raw)
        is_canonical = isinstance(record, dict) and _canonical(record) + b"\n" == raw
    except (ValueError, RecursionError):
        return None
    if not is_canonical or record.keys() != _KINDS.keys():
        return None
    for name, kind in _KINDS.items():
        if not isinstance(record[name], kind):
            return None
    return record


def _head_of(path: Path, newest: bytes) -> Head | None:
    """The head of an existing log; None: it has no line."""
    if not newest:
        return None
    record = _parsed(newest)
    if record is None:  # damaged: `verify` names the line, and the log continues after it
        with path.open("rb") as file:
            return Head(sum(1 for _ in file), NO_HASH)
    return Head(record["sequence"], record["hash"])


def _holds(path: Path, head: Head) -> bool:
    """Whether the line of this head is in the log. The chain itself is checked by `verify`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == head.sequence:
                record = _parsed(line)
                return record is not None and record["hash"] == head.hash
    return False
