"""An audit log: one JSON line per event, each with the hash of the line before it.

    {"event":"order","fields":{...},"hash":"...","previous":"...","sequence":7,"time":"2026-01-31T12:00:00.000Z"}

`hash` is SHA-256 over the canonical JSON of the rest of the line, or HMAC-SHA-256 where the log has a key. The first
line names the run or the folder that the log belongs to (`owner`), so that no other log can take its place.

A chain shows that a line was changed, removed, added or moved, unless every line after it was written again too. It
cannot show by itself that the newest lines were cut off, or that the whole file was written again. Against the first,
keep the newest `Head` somewhere else and pass it to `audit_check.verify`. Against the second, use a key that is out of reach of all who can
write the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from covey.shared.storage import json_text
from covey.shared.storage.journal import Journal

BEGIN = "begin"  # event of the first line
REPAIRED = "log_repaired"  # an unfinished last line was cut off when the log was opened
TRUNCATED = "log_truncated"  # a line is missing whose head was kept elsewhere
NO_HASH = ""


@dataclass(frozen=True)
class Head:
    """The newest line of a log. Kept somewhere else, it proves later that this line was not removed."""

    sequence: int
    hash: str


@dataclass(frozen=True)
class AuditEntry:
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
        self.holds = False  # lines wait: between `hold` and `release`
        self._journal = Journal(path, self._chained, keep=None, durable=False)
        self._head = _head_of(path, self._journal.newest)
        if self._head is None:
            self.append(BEGIN, owner=owner, hash=algorithm(key))
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
        self._journal.add(AuditEntry(event, fields))
        self._write()
        return self.head

    def _chained(self, entry: AuditEntry) -> bytes:
        """The line of an entry, which follows the newest one and is the newest from now on."""
        before = self._head or Head(0, NO_HASH)
        time, sequence = _timestamp(self._now()), before.sequence + 1
        # in the order of their names, between which the hash has its place
        start = canonical({"event": entry.event, "fields": entry.fields})[:-1] + b","
        end = canonical({"previous": before.hash, "sequence": sequence, "time": time})[1:]
        self._head = Head(sequence, hash_of(start + end, self._key))
        return start + f'"hash":"{self._head.hash}",'.encode() + end

    def hold(self) -> None:
        """Let further lines wait in memory until `release` or `sync`: they are then written together."""
        self.holds = True

    def release(self) -> None:
        """Write the lines that were held, and further ones at once."""
        self.holds = False
        self._write()

    def sync(self) -> None:
        """Write what waits, so that it survives a power cut. Raises OSError if the disk is full."""
        self._journal.sync()

    def _write(self) -> None:
        if not self.holds:
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


def canonical(record: Mapping[str, Any]) -> bytes:
    """The bytes of a record that are hashed and written."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def hash_of(content: bytes, key: bytes | None) -> str:
    """The hash of a line, from its bytes without it."""
    if key is None:
        return hashlib.sha256(content).hexdigest()
    return hmac.digest(key, content, "sha256").hex()


def algorithm(key: bytes | None) -> str:
    """The name of the hash, which the first line states."""
    return "sha256" if key is None else "hmac-sha256"


def _timestamp(seconds: float) -> str:
    """A time for people and programs: UTC, with milliseconds."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_KINDS = {"event": str, "fields": dict, "hash": str, "previous": str, "sequence": int, "time": str}


def parsed(raw: bytes) -> dict[str, Any] | None:
    """The record of a line; None unless the line is exactly what this module writes."""
    try:
        record: dict[str, Any] = json_text.loads(raw)
        is_canonical = isinstance(record, dict) and canonical(record) + b"\n" == raw
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
    record = parsed(newest)
    if record is None:  # damaged: a check names the line, and the log continues after it
        with path.open("rb") as file:
            return Head(sum(1 for _ in file), NO_HASH)
    return Head(record["sequence"], record["hash"])


def _holds(path: Path, head: Head) -> bool:
    """Whether the line of this head is in the log. The chain itself is checked by `audit_check`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == head.sequence:
                record = parsed(line)
                return record is not None and record["hash"] == head.hash
    return False
