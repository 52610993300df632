"""`arrivals.jsonl`: everything that happened to the engine of a buffered run, in order, so that the run can be replayed.

The models of a buffered run depend on the order in which reports arrived. A line has the time of the engine ("at", in
seconds), the kind of the event and its fields. Lines are written with the checkpoint that holds what they led to; a
resume cuts off the others, and adds a line of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from covey.coordinator.engine import events
from covey.coordinator.engine.events import Event
from covey.coordinator.run.disk_space import Room
from covey.shared.errors import UserError
from covey.shared.files import write_atomically
from covey.shared.strategies.base import ClientId

FILE = "arrivals.jsonl"
FIELDS = ("client", "step", "why")  # of events; the cluster of a report follows from its content
KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(events.Event)}
RESTART = "Restart"  # the kind of a line that is no event


@dataclass(frozen=True)
class Restarted:
    """The coordinator was started again."""

    reported: tuple[ClientId, ...]  # whose reports of the open step it found in its spool
    lost: tuple[int, ...] = ()  # orders whose waiting reports, or own files, it did not find


@dataclass(frozen=True)
class Arrival:
    """One line: an event, and the time of the engine when it happened."""

    at: float  # the engine's time (s)
    event: Event | Restarted


class EventLog:
    """Writes the file. Lines wait in memory until `flush`.

    Args:
        folder: of the run.
        count: lines that the checkpoint knows; others are cut off.
        room: waits while the disk is full.
    """

    def __init__(self, folder: Path, count: int, room: Room) -> None:
        self._path = folder / FILE
        self._room = room
        self._waiting: list[bytes] = []
        kept: list[bytes] = []
        if self._path.exists():
            kept = self._path.read_bytes().splitlines(keepends=True)[:count]
        self.count = len(kept)  # lines, those that wait included
        text = b"".join(kept)
        self._room.write(lambda: write_atomically(self._path, text))

    def __repr__(self) -> str:
        return f"<EventLog {self._path}: {self.count} lines>"

    def note(self, event: Event, now: float) -> None:
        """An event is about to reach the engine."""
        row: dict[str, Any] = {"at": now, "event": type(event).__name__}
        for name in FIELDS:
            if hasattr(event, name):
                row[name] = getattr(event, name)
        self._add(row)

    def note_restart(self, reported: Sequence[ClientId], lost: Iterable[int], now: float) -> None:
        """The coordinator was started again."""
        self._add({"at": now, "event": RESTART, "reported": list(reported), "lost": sorted(lost)})

    def _add(self, row: dict[str, Any]) -> None:
        self._waiting.append(json.dumps(row, allow_nan=False).encode() + b"\n")
        self.count += 1

    def flush(self) -> None:
        """Write the lines that wait; after this they survive a kill."""
        if not self._waiting:
            return
        text = b"".join(self._waiting)
        self._room.write(lambda: self._append(text))
        self._waiting.clear()

    def _append(self, text: bytes) -> None:
        """Add lines whole, or leave the file as it was."""
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                file.write(text)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise


def arrivals_of(folder: Path) -> list[Arrival]:
    """The lines of a run's folder. Raises UserError where there are none, or one is not as we write it."""
    path = folder / FILE
    if not path.exists():
        raise UserError(
            f"{path} does not exist: only runs with rounds.mode buffered record their arrivals, and others repeat without"
        )
    return list(_read(path))


def _read(path: Path) -> Iterator[Arrival]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            at = float(row.pop("at"))
            kind = row.pop("event")
            if kind == RESTART:
                lost = row.get("lost", ())  # older records have none
                yield Arrival(at, Restarted(tuple(row["reported"]), tuple(lost)))
            else:
                event = KINDS[kind](**row)
                yield Arrival(at, event)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}, line {number}: not a recorded event ({error})") from None
