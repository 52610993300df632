"""What a run writes into its audit log, `audit.jsonl` in its folder, and how `coordinator audit` checks it.

The head of the log is part of every checkpoint, so that lines that were cut off are missed. The log decides nothing:
no byte of a run depends on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.shared.audit import AuditLog, Flood, Head, Verdict, is_keyed, verify
from covey.shared.errors import UserError
from covey.shared.files import folder_lock

FILE = "audit.jsonl"
OPERATOR = "operator"
PUBLICATIONS = ("publish", "promote", "rollback")  # events: models were published for use
LONGEST_REASON = 300  # characters of what a peer has caused


class Trail:
    """The audit log of one run. May be used from several threads."""

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        key: bytes | None = None,
        head: Head | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = AuditLog(folder / FILE, run, key=key, head=head)
        self._now = now
        self._flood = Flood()  # of what peers cause
        self._commands = Flood()  # of what the operator commands; peers cannot use it up
        self._lock = threading.Lock()

    @property
    def head(self) -> Head:
        """The newest line."""
        return self._log.head

    def note(self, event: str, **fields: Any) -> None:
        """A line about what the coordinator itself has done."""
        with self._lock:
            self._settle()
            self._log.append(event, **fields)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write the lines of the block together, before anything that follows from it leaves this process."""
        with self._lock:
            self._log.hold()
        try:
            yield
        finally:
            with self._lock:
                self._log.release()

    def blame(self, event: str, agent: str | None, why: str) -> None:
        """A line about what a peer has caused. Of a flood most are only counted, in `more_...` lines."""
        name = agent or "unknown"
        reason = why[:LONGEST_REASON]
        with self._lock:
            self._settle()
            if self._flood.admit(event, name, self._now()):
                self._log.append(event, agent=name, why=reason)

    def command(self, why: str) -> None:
        """A line about a command of the operator."""
        with self._lock:
            self._settle()
            if self._commands.admit("control", OPERATOR, self._now()):
                self._log.append("control", agent=OPERATOR, why=why)

    def sync(self) -> None:
        """Make all lines survive a power cut. Raises OSError where the disk has no room."""
        with self._lock:
            self._settle()
            self._log.sync()

    def close(self, event: str, **fields: Any) -> None:
        """The last line of a session, after everything that was only counted."""
        with self._lock:
            for flood in (self._flood, self._commands):
                self._write_counts(flood.rest())
            self._log.append(event, **fields)
            self._log.sync()

    def _settle(self) -> None:
        now = self._now()
        for flood in (self._flood, self._commands):
            if counted := flood.due(now):
                self._write_counts(counted)

    def _write_counts(self, counted: dict[str, dict[str, int]]) -> None:
        for event, agents in counted.items():
            self._log.append(f"more_{event}", agents=agents)


@dataclass(frozen=True)
class Checked:
    """The verdict on a run's log. `anchored`: the run's checkpoint, or the user, knows a head that was compared."""

    verdict: Verdict
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
    """The verdict as `coordinator audit --json` prints it."""
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


def head_of(saved: dict[str, Any] | None) -> Head | None:
    """A head as a checkpoint holds it."""
    if not saved:
        return None
    return Head(int(saved["sequence"]), str(saved["hash"]))


def parse_head(text: str) -> Head:
    """`NUMBER:HASH`, as `coordinator audit` prints it. Raises UserError for anything else."""
    number, _, hash_ = text.partition(":")
    is_number = number.isdecimal() and int(number) >= 1
    if not is_number or not hash_:
        raise UserError(
            f"--head {text}: expected NUMBER:HASH, as an earlier `coordinator audit` printed it"
        )
    return Head(int(number), hash_)
