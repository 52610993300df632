"""What a run writes into its audit log, `audit.jsonl` in its folder. `audit_check` checks it.

The head of the log is part of every checkpoint, so that lines that were cut off are missed. The log decides nothing:
no byte of a run depends on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covey.shared.storage.audit import AuditLog, Flood, Head

FILE = "audit.jsonl"
OPERATOR = "operator"
PUBLICATIONS = ("publish", "promote", "rollback")  # events: models were published for use
OUTCOME = "outcome"  # event: what devices made of them
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

    @property
    def holds(self) -> bool:
        """Whether lines wait for `release`."""
        return self._log.holds

    def hold(self) -> None:
        """Let lines wait until `release`: they are then written together."""
        with self._lock:
            self._log.hold()

    def release(self) -> None:
        """Write the lines that wait."""
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


def head_of(saved: dict[str, Any] | None) -> Head | None:
    """A head as a checkpoint holds it."""
    if not saved:
        return None
    return Head(int(saved["sequence"]), str(saved["hash"]))
