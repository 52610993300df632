"""The list of `coordinator doctor` on a terminal, and moments as people read them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from covey.coordinator.odd import Odd
from covey.coordinator.view.printed import show
from covey.coordinator.view.table import NONE, Column, Table
from covey.shared.sentences import counted

NOTHING_ODD = "nothing odd"


def show_odd(console: Console, found: Sequence[Odd]) -> None:
    """Print what is odd about a fleet, the most serious first."""
    if found:
        show(console, odd_table(found))
    else:
        console.print(NOTHING_ODD, highlight=False)


def odd_table(found: Sequence[Odd]) -> Table:
    """A line for each thing that is odd."""
    rows = [[one.who, one.what, moment(one.since), one.next.replace("`", "")] for one in found]
    columns = [Column(title) for title in ("device", "what", "since", "next")]
    return Table(f"odd: {counted(len(found), 'thing')}", columns, rows)


def moment(seconds: float | None) -> str:
    """A time of day, with the date if that is not today's."""
    if seconds is None:
        return NONE
    then = time.localtime(seconds)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M", then)
