"""The roster in a run's folder: `roster.json`, and `roster-1.json`, `roster-2.json` for the further pages of a large fleet.

Each file is a `RosterMessage`, replaced as a whole.
"""

from __future__ import annotations

from pathlib import Path

from covey.shared.errors import DecodeError
from covey.shared.wire.documents import RosterMessage
from covey.shared.wire.roster_view import RosterView


def roster_file(folder: Path, page: int = 0) -> Path:
    """The file of one page."""
    name = f"roster-{page}.json" if page else "roster.json"
    return folder / name


def read_roster(folder: Path) -> RosterMessage:
    """All pages as one roster. Further pages that are missing or damaged are left out: they come again.

    Raises FileNotFoundError without a first page, and DecodeError for a damaged one.
    """
    content = roster_file(folder).read_bytes()
    first = RosterMessage.from_bytes(content)
    view = RosterView()
    view.take_page(0, first)
    for number in range(1, first.pages):
        try:
            content = roster_file(folder, number).read_bytes()
            page = RosterMessage.from_bytes(content)
        except (OSError, DecodeError):
            continue
        view.take_page(number, page)
    return view.message or first
