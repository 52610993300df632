"""Damage by a disk to the reports in a run's spool, while no coordinator is at work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covey.coordinator.disk.report_file import ReportFile
from covey.coordinator.disk.spool import REPORTS


def file_of(run_folder: Path, step: int) -> Path:
    """The file with the reports of a step."""
    return run_folder / "spool" / str(step) / REPORTS


def files(run_folder: Path) -> list[Path]:
    """The files of all steps with reports."""
    return sorted((run_folder / "spool").glob(f"[0-9]*/{REPORTS}"))


def flip(path: Path, client: str, bit: int = 0) -> None:
    """Change one bit of a report's vectors, or of its text if it has none."""
    entry = ReportFile(path).entry(client)
    content = bytearray(path.read_bytes())
    place = entry.start + bit // 8
    if entry.size == 0:
        place = content.rindex(client.encode(), 0, entry.start)
    content[place] ^= 1 << bit % 8
    path.write_bytes(content)


def lose(path: Path, client: str) -> None:
    """Remove a report from the file without a trace."""
    rewrite(path, client, None)


def rewrite(path: Path, client: str, facts: Mapping[str, Any] | None) -> None:
    """Give a report these facts; None removes it."""
    before = ReportFile(path)
    reports = []
    for other in before.clients:
        vectors = {name: np.array(values) for name, values in before.vectors(other).items()}
        reports.append((other, vectors, before.entry(other).facts()))
    path.unlink()
    after = ReportFile(path)
    for other, vectors, known in reports:
        if other != client:
            after.append(other, vectors, known)
        elif facts is not None:
            after.append(other, vectors, known | dict(facts))


def cut_before(path: Path, client: str) -> None:
    """Cut the file where the vectors of a report begin: it and all later ones are gone."""
    start = ReportFile(path).entry(client).start
    with path.open("r+b") as file:
        file.truncate(start)
