"""The names that trackers gave a run, kept in its folder: a resumed run continues the tracker's run."""

from __future__ import annotations

import json
from pathlib import Path

from covey.shared import json_text
from covey.shared.files import write_atomically

FILE = "trackers.json"


def known_id(folder: Path, tracker: str) -> str:
    """The tracker's id of the run in this folder; empty if it has none."""
    return _read(folder).get(tracker, "")


def remember_id(folder: Path, tracker: str, run: str) -> None:
    """Keep the tracker's id of the run in this folder."""
    text = json.dumps({**_read(folder), tracker: run}, indent=1)
    write_atomically(folder / FILE, text.encode())


def _read(folder: Path) -> dict[str, str]:
    """All ids of the folder. A damaged file counts as none: the tracker then has a second run."""
    file = folder / FILE
    if not file.exists():
        return {}
    try:
        found = json_text.loads(file.read_bytes())
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(tracker): str(run) for tracker, run in found.items()}
