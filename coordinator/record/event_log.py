"""`arrivals.jsonl`: everything that happened to the engine of a buffered run, in order, so that the run can be replayed.

The models of a buffered run depend on the order in which reports arrived. A line has the time of the engine ("at", in
seconds), the kind of the event and its fields. Lines are written with the checkpoint that holds what they led to; a
resume cuts off the others, and adds a line of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from covey.coordinator.disk.space import Room
from covey.coordinator.engine import events
from covey.coordinator.engine.events import Event
from covey.shared.errors import UserError
from covey.shared.storage.journal import Journal
from covey.shared.strategies.base import ClientId

FILE = "arrivals.jsonl"
FIELDS = ("client", "step", "why")  # of events; the cluster of a report follows from its content
KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(events.Event)}
RESTART = "Restart"  # the kind of a line that is no event


@dataclass(frozen=True)
class Restarted:
    """The coordinator was started again."""

    step: int  # that was open in its checkpoint; 0: none
    reported: tuple[ClientId, ...]  # whose reports of this step it found in its spool
    lost: tuple[int, ...] = ()  # orders whose waiting reports, or own files, it did not find


@dataclass(frozen=True)
class Arrival:
    """One line: an event, and the time of the engine when it happened."""

    at: float  # the engine's time (s)
    event: Event | Restarted


def arrivals_journal(folder: Path, keep: int, room: Room) -> Journal[Arrival]:
    """The file of a run, to continue it after the lines that the checkpoint knows."""
    return Journal(folder / FILE, _line_of, keep=keep, write=room.write)


def _line_of(arrival: Arrival) -> bytes:
    event = arrival.event
    row: dict[str, Any] = {"at": arrival.at, "event": type(event).__name__}
    if isinstance(event, Restarted):
        reported, lost = list(event.reported), list(event.lost)
        row |= {"event": RESTART, "step": event.step, "reported": reported, "lost": lost}
    else:
        row |= {name: getattr(event, name) for name in FIELDS if hasattr(event, name)}
    return json.dumps(row, allow_nan=False).encode()


def arrivals_of(folder: Path) -> list[Arrival]:
    """The lines of a run's folder. Raises UserError where there are none, or one is not as we write it."""
    path = folder / FILE
    if not path.exists():
        raise UserError(
            f"{path} does not exist: only runs with rounds.mode buffered record arrivals; repeat another one with `coordinator run`"
        )
    return list(_read(path))


def _read(path: Path) -> Iterator[Arrival]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            at = float(row.pop("at"))
            kind = row.pop("event")
            if kind == RESTART:
                yield Arrival(
                    at, Restarted(row["step"], tuple(row["reported"]), tuple(row["lost"]))
                )
            else:
                yield Arrival(at, KINDS[kind](**row))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}, line {number}: not a recorded event ({error})") from None
