"""An experiment tracker as a run sees it, and the id under which each tracker knows the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from covey.shared.storage import json_text
from covey.shared.storage.files import write_atomically

Outcome = Literal["finished", "stopped", "failed"]
Setting = str | int | float | bool
Settings = Mapping[str, Setting]

IDS = "trackers.json"  # of the run in each tracker, in its folder: a resumed run continues there


@dataclass(frozen=True)
class TrackedRun:
    """The run as trackers know it."""

    experiment: str  # the scenario's name: runs of one experiment are compared
    name: str  # of the run, such as fedclust-7
    folder: Path
    settings: Settings  # of the scenario by dotted key, without the broker's address


class Tracker(Protocol):
    """What an adapter does. The calls come from one thread, in this order: begin, log any number of times, end."""

    def begin(self, run: TrackedRun) -> None:
        """The run has its first figures. A run that is resumed begins again, in the same folder."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures after `step` rounds."""

    def end(self, outcome: Outcome, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        """The run is over, with these figures; the files are small and describe it."""


def known_id(folder: Path, tracker: str) -> str:
    """The tracker's id of the run in this folder; empty if it has none."""
    return _ids(folder).get(tracker, "")


def remember_id(folder: Path, tracker: str, run: str) -> None:
    """Keep the tracker's id of the run in this folder."""
    text = json.dumps({**_ids(folder), tracker: run}, indent=1)
    write_atomically(folder / IDS, text.encode())


def _ids(folder: Path) -> dict[str, str]:
    """All ids of the folder. A damaged file counts as none: the tracker then has a second run."""
    file = folder / IDS
    if not file.exists():
        return {}
    try:
        found = json_text.loads(file.read_bytes())
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(tracker): str(run) for tracker, run in found.items()}
