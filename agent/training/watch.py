"""New files of a folder, as soon as they are whole: `agent predict --watch`. Pure but for reading the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from covey.agent.data.load import TABLES

KINDS = (*TABLES, ".npz")
Stamp = tuple[int, int]  # size and time of the last change, ns


def seen(folder: Path) -> dict[Path, Stamp]:
    """The files in a folder that could be predicted, with what changes when they do."""
    found: dict[Path, Stamp] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in KINDS and not path.name.startswith("."):
            try:
                stat = path.stat()
            except FileNotFoundError:  # it was moved away
                continue
            found[path] = stat.st_size, stat.st_mtime_ns
    return found


def whole(
    now: Mapping[Path, Stamp], before: Mapping[Path, Stamp], done: Mapping[Path, Stamp]
) -> list[Path]:
    """The files that have stopped to change since the last look, and were not dealt with as they are.

    Args:
        now, before: what two looks have seen.
        done: the files that were dealt with, as they were then.
    """
    return [path for path, stamp in now.items() if before.get(path) == stamp != done.get(path)]
