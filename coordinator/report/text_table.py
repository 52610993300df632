"""Tables on the terminal. Text that others wrote is shown as it is and never read as markup."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from covey.coordinator.compare.tables import TextTable
from covey.coordinator.run.notices import Notice


def results_table(words: TextTable) -> Table:
    """A table of results; no line of it is wrapped."""
    table = Table(title=words.title)
    for number, header in enumerate(words.headers):
        cells = _column(words, number)
        longest = _longest([header, *cells])
        _add_column(table, header, longest, wrap_header=False)
    _add_lines(table, words)
    return table


def comparison_table(words: TextTable) -> Table:
    """A table of a comparison: many columns, whose headers may be wrapped."""
    table = Table(title=words.title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, header in enumerate(words.headers):
        cells = _column(words, number)
        longest = _longest(cells)
        _add_column(table, header, longest, wrap_header=True)
    _add_lines(table, words)
    return table


def _column(words: TextTable, number: int) -> list[str]:
    return [line[number] for line in words.lines]


def _longest(cells: Sequence[str]) -> int:
    """Characters of the longest of these cells."""
    return max(len(cell) for cell in cells)


def _add_column(table: Table, header: str, width: int, *, wrap_header: bool) -> None:
    """Add a column of at least this width; the first is set to the left, the others to the right."""
    justify: Literal["left", "right"] = "left"
    if table.columns:
        justify = "right"
    table.add_column(
        header,
        justify=justify,
        no_wrap=not wrap_header,
        min_width=width,
    )


def _add_lines(table: Table, words: TextTable) -> None:
    for line in words.lines:
        table.add_row(*line)


def show(console: Console, table: Table) -> None:
    """Print a table with every word of it; a terminal that is too narrow breaks its lines."""
    unbounded = console.options.update(max_width=sys.maxsize)
    measured = Measurement.get(console, unbounded, table)
    width = max(console.width, measured.minimum)
    console.print(table, width=width, crop=False)


def json_line(row: Mapping[str, Any]) -> None:
    """Print one JSON object on a line of standard output, for programs."""
    line = json.dumps(row, allow_nan=False)
    print(line, flush=True)


def json_notice(notice: Notice) -> None:
    """Print a notice of a run as `json_line` does."""
    row = notice.to_json()
    json_line(row)
