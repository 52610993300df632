"""An audit log: one JSON line per event, each with the hash of the line before it.

    {"event":"accept","fields":{...},"hash":"...","previous":"...","sequence":7,"time":"2026-01-31T12:00:00.000Z"}

`hash` is SHA-256 over the canonical JSON of the rest of the line, or HMAC-SHA-256 where the log has a key. The first
line names the run or the folder that the log belongs to (`owner`), so that no other log can take its place.

What a chain shows: a line that was changed, removed, added or moved, unless every line after it was written again.
What it cannot show by itself: that the newest lines were cut off, or that the whole file was written again. Against the
first, keep the newest `Head` somewhere else and hand it to `verify`. Against the second, use a key that whoever can
write the file does not have.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from covey.shared import json_text
from covey.shared.errors import UserError

BEGIN = "begin"  # event of the first line
REPAIRED = "log_repaired"  # an unfinished last line was cut off when the log was opened
TRUNCATED = "log_truncated"  # lines are gone that a head kept elsewhere knows of
MIN_KEY_BYTES = 16  # bytes
BLOCK_BYTES = 1 << 16
NO_HASH = ""


@dataclass(frozen=True)
class Head:
    """The newest line of a log. Kept somewhere else, it shows later that this line is still there."""

    sequence: int
    hash: str


@dataclass(frozen=True)
class Break:
    """The first line (counted from 1) that is not as it was written, and why."""

    line: int
    why: str


@dataclass(frozen=True)
class Verdict:
    """What `verify` found. `whole`: nothing is wrong as far as a chain can show."""

    owner: str
    lines: int  # that follow each other without a break
    head: Head | None
    events: Mapping[str, int]
    first_time: str
    last_time: str
    keyed: bool
    broken: Break | None = None
    notes: tuple[str, ...] = ()  # repairs that the log itself speaks of

    @property
    def whole(self) -> bool:
        return self.broken is None


def read_key(file: Path) -> bytes:
    """The key of a log. Raises UserError for a file that is missing or too short."""
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise UserError(
            f"{file}: the audit key cannot be read ({error.strerror}); name a file that holds it"
        ) from None
    if len(key) < MIN_KEY_BYTES:
        raise UserError(
            f"{file}: the audit key has {len(key)} bytes, at least {MIN_KEY_BYTES} are needed; "
            f"make one with: head -c 32 /dev/urandom | base64 > {file}"
        )
    return key


class AuditLog:
    """Appends to a log; one writer at a time, which its owner's folder lock ensures.

    A new file begins with a line that names `owner`. In an old one, a last line without an end (power cut, full disk)
    is cut off, and a line says so. `head` is what the owner remembers of an older session: where that line is gone, a
    line says so.
    A line that cannot be written (full disk) waits in memory; the next `append` and `sync` try again.
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
        self.path, self.owner = path, owner
        self._key = key
        self._now = now
        self._waiting: list[bytes] = []
        self._head, torn_bytes = _opened(path)
        if self._head is None:
            self.append(BEGIN, owner=owner, hash=_algorithm(key))
        if torn_bytes:
            self.append(REPAIRED, cut_bytes=torn_bytes)
        if head is not None and not _holds(path, head):
            self.append(TRUNCATED, sequence=head.sequence, hash=head.hash)

    @property
    def head(self) -> Head:
        """The newest line."""
        if self._head is None:
            raise RuntimeError("an open log has a first line")
        return self._head

    def append(self, event: str, **fields: Any) -> Head:
        """Add a line. `fields` are JSON-able; the line lies in the file, or waits there where the disk is full."""
        before = self._head or Head(0, NO_HASH)
        record = {
            "event": event,
            "fields": fields,
            "previous": before.hash,
            "sequence": before.sequence + 1,
            "time": _stamp(self._now()),
        }
        hash_ = _hash(record, self._key)
        self._waiting.append(_canonical(record | {"hash": hash_}) + b"\n")
        self._head = Head(before.sequence + 1, hash_)
        with contextlib.suppress(OSError):
            self._write()
        return self._head

    def sync(self) -> None:
        """Write what waits, and wait until it would survive a power cut. Raises OSError where there is no room."""
        self._write()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _write(self) -> None:
        if not self._waiting:
            return
        content = b"".join(self._waiting)
        with self.path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                written = file.write(content)
                if written != len(content):
                    raise OSError(28, "no space left on the device", str(self.path))
            except OSError:
                file.truncate(size)  # half a line would damage the next one
                raise
        self._waiting.clear()


@dataclass
class Flood:
    """Bounds the lines about events that a peer can cause at will: pure, with time in seconds as input.

    In each window the first `singly` events are written one by one. The rest are counted by event and agent, at most
    `names` agents by name, and make one line per event when the window is over.
    """

    window_s: float = 60.0
    singly: int = 20
    names: int = 50
    _began: float | None = field(default=None, init=False)
    _written: int = field(default=0, init=False)
    _counts: dict[str, Counter[str]] = field(default_factory=dict, init=False)

    def admit(self, event: str, agent: str, now: float) -> bool:
        """Whether this event gets a line of its own; otherwise it is counted."""
        if self._began is None or now >= self._began + self.window_s:
            self._began, self._written = now, 0
        if self._written < self.singly:
            self._written += 1
            return True
        counts = self._counts.setdefault(event, Counter())
        known = agent in counts or len(counts) < self.names
        counts[agent if known else "others"] += 1
        return False

    def due(self, now: float) -> dict[str, dict[str, int]]:
        """What was counted, by event and agent, once its window is over; each count is handed out once."""
        if self._began is None or now < self._began + self.window_s:
            return {}
        return self.rest()

    def rest(self) -> dict[str, dict[str, int]]:
        """What was counted and not handed out yet."""
        counted = {event: dict(counts) for event, counts in self._counts.items()}
        self._counts.clear()
        return counted


def verify(
    path: Path, *, key: bytes | None = None, owner: str | None = None, head: Head | None = None
) -> Verdict:
    """Check every line of a log, the owner where it is known, and that the line of `head` is there.

    Raises UserError where there is no log, or where a log with a key is checked without it or the reverse.
    """
    try:
        with path.open("rb") as file:
            check = _Check(key, head)
            for line in file:
                if not check.line(line):
                    break
    except FileNotFoundError:
        raise UserError(f"{path}: no audit log is here; is it the folder of a run?") from None
    broken = check.broken or _wrong_owner(check, owner) or _gone(check, head)
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
    )


class _Check:
    """Follows a chain line by line; remembers the hash of the line that `wanted` names."""

    def __init__(self, key: bytes | None, wanted: Head | None) -> None:
        self.key = key
        self.wanted = wanted
        self.found = ""
        self.owner = ""
        self.lines = 0
        self.head: Head | None = None
        self.events: Counter[str] = Counter()
        self.first_time = ""
        self.last_time = ""
        self.keyed = False
        self.broken: Break | None = None
        self.notes: list[str] = []

    def line(self, raw: bytes) -> bool:
        """Take the next line; False where the chain breaks."""
        record = _parsed(raw)
        why = "it is cut short" if not raw.endswith(b"\n") else "it is not a line of an audit log"
        if record is not None:
            why = self._wrong(record)
        if record is None or why:
            self.broken = Break(self.lines + 1, why)
            return False
        self._take(record)
        return self.broken is None

    def _wrong(self, record: Mapping[str, Any]) -> str:
        before = self.head or Head(0, NO_HASH)
        if self.head is None:
            self._begin(record)
        if record["sequence"] != before.sequence + 1:
            return f"it has number {record['sequence']}, {before.sequence + 1} was expected: lines are missing or moved"
        bare = {name: value for name, value in record.items() if name != "hash"}
        if not hmac.compare_digest(
            _hash(bare, self.key).encode(), record["hash"].encode(errors="replace")
        ):
            other = ", or another key was used" if self.key is not None else ""
            return f"its hash does not fit its content: the line was changed{other}"
        if record["previous"] != before.hash:
            return "it does not follow the line before: a line was changed, removed or added"
        return ""

    def _begin(self, record: Mapping[str, Any]) -> None:
        """Learn from the first line which log this is. Raises UserError where the key is missing or not used."""
        self.keyed = record["fields"].get("hash") == _algorithm(b"key")
        if self.keyed and self.key is None:
            raise UserError("this audit log was written with a key: name its file with --key")
        self.owner = str(record["fields"].get("owner", ""))
        self.first_time = record["time"]

    def _take(self, record: Mapping[str, Any]) -> None:
        self.lines += 1
        self.head = Head(record["sequence"], record["hash"])
        if self.wanted is not None and self.wanted.sequence == self.lines:
            self.found = record["hash"]
        self.last_time = record["time"]
        self.events[record["event"]] += 1
        if record["event"] == REPAIRED:
            cut = record["fields"].get("cut_bytes")
            self.notes.append(
                f"line {self.lines}: an unfinished line of {cut} bytes was cut off at a restart"
            )
        if record["event"] == TRUNCATED:
            newest = record["fields"].get("sequence")
            why = f"lines before it are gone or were written again: line {newest} was once there, with another hash"
            self.broken = Break(self.lines, why)


def _wrong_owner(check: _Check, owner: str | None) -> Break | None:
    if check.keyed != (check.key is not None):
        return Break(1, "the log was not written with a key, but one was expected")
    if check.events[BEGIN] != 1:
        return Break(
            1, f"one line with the event {BEGIN!r} was expected, there are {check.events[BEGIN]}"
        )
    if owner is None or owner == check.owner:
        return None
    return Break(1, f"the log belongs to {check.owner!r}, {owner!r} was expected")


def _gone(check: _Check, head: Head | None) -> Break | None:
    """Whether a line that is known from elsewhere is missing."""
    if head is None:
        return None
    if head.sequence > check.lines:
        why = f"the log ends before line {head.sequence}, which was written: the newest lines were cut off"
        return Break(check.lines + 1, why)
    if check.found != head.hash:
        return Break(
            head.sequence,
            "it is another line than the one that was written: the log was written again",
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


def _stamp(seconds: float) -> str:
    """A moment as people and programs read it: UTC, with milliseconds."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_KINDS = {"event": str, "fields": dict, "hash": str, "previous": str, "sequence": int, "time": str}


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """The record of a line; None unless the line is exactly as this module writes it."""
    try:
        record = json_text.loads(raw)
        same = isinstance(record, dict) and _canonical(record) + b"\n" == raw
    except (ValueError, RecursionError):
        return None
    if not same or record.keys() != _KINDS.keys():
        return None
    fits = all(isinstance(record[name], kind) for name, kind in _KINDS.items())
    return record if fits else None


def _opened(path: Path) -> tuple[Head | None, int]:
    """The head of a log that is there, and how many bytes of an unfinished line were cut off; None: it has no line."""
    if not path.exists():
        return None, 0
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        whole = _after_newline_before(file, end)
        file.truncate(whole)
        if whole == 0:
            return None, end
        start = _after_newline_before(file, whole - 1)
        file.seek(start)
        record = _parsed(file.read(whole - start))
        if record is None:  # damaged: `verify` names the line, and the log goes on after it
            file.seek(0)
            lines = sum(1 for _ in file)
            return Head(lines, NO_HASH), end - whole
    return Head(record["sequence"], record["hash"]), end - whole


def _after_newline_before(file: BinaryIO, end: int) -> int:
    """Where the line begins that goes on at `end`."""
    while end > 0:
        start = max(end - BLOCK_BYTES, 0)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _holds(path: Path, head: Head) -> bool:
    """Whether the line of this head is in the log. The chain itself is the business of `verify`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == head.sequence:
                record = _parsed(line)
                return record is not None and record["hash"] == head.hash
    return False
