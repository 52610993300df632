"""The end of a run that experiment trackers follow: its page, which they keep with it, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.coordinator.record import records
from covey.extras.outlets.tracking import TrackedObserver, tracking
from covey.shared.errors import UserError
from covey.shared.storage.files import write_atomically

if TYPE_CHECKING:
    from covey.extras.compare.grid import Cell


def finish_tracked(tracked: TrackedObserver, folder: Path, result: Mapping[str, Any]) -> None:
    """Give the result to the trackers, after the run's page was written for them."""
    if not tracked.has_trackers:
        return
    _write_page(folder)
    tracked.finished(result)


def track_afterwards(
    names: Sequence[str], cell: Cell, folder: Path, remark: Callable[[str], None]
) -> None:
    """Track a cell that another machine has finished, from its record.

    Args:
        names: of the trackers
        cell: of the comparison
        folder: the cell's, with its record and result
        remark: called with a sentence if a tracker fails
    """
    with tracking(names, cell.scenario, folder, remark, cell.name) as tracked:
        tracked.replay(records.lines(folder))
        finish_tracked(tracked, folder, records.finished(folder))


def _write_page(folder: Path) -> None:
    """The page that `coordinator report` writes. A run without a page is tracked without it."""
    from covey.extras.dashboard.curves import curves
    from covey.extras.dashboard.html_report import page

    try:
        runs = curves([folder], [records.finished(folder)])
        write_atomically(folder / records.PAGE, page(runs, [folder]).encode())
    except (OSError, UserError):
        return
