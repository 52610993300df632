"""Tables on the terminal. Text that others wrote is shown as it is and never read as markup."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

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
        cells = [header, *_column(words, number)]
        _add_column(table, header, cells, wrap_header=False)
    return _with_lines(table, words)


def comparison_table(words: TextTable) -> Table:
    """A table of a comparison: many columns, whose headers may be wrapped."""
    table = Table(title=words.title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, header in enumerate(words.headers):
        cells = _column(words, number)
        _add_column(table, header, cells, wrap_header=True)
    return _with_lines(table, words)


def _column(words: TextTable, number: int) -> list[str]:
    return [line[number] for line in words.lines]


def _add_column(table: Table, header: str, cells: Sequence[str], *, wrap_header: bool) -> None:
    """Add a column as wide as the widest of these cells; the first column is set to the left."""
    width = max(len(cell) for cell in cells)
    justify: Any = "right" if table.columns else "left"
    table.add_column(header, justify=justify, no_wrap=not wrap_header, min_width=width)


def _with_lines(table: Table, words: TextTable) -> Table:
    for line in words.lines:
        table.add_row(*line)
    return table


def show(console: Console, table: Table) -> None:
    """Print a table with every word of it; a terminal that is too narrow breaks its lines."""
    unbounded = console.options.update(max_width=sys.maxsize)
    needed = Measurement.get(console, unbounded, table).minimum
    console.print(table, width=max(console.width, needed), crop=False)


def json_line(row: Mapping[str, Any]) -> None:
    """Print one JSON object on a line of standard output, for programs."""
    print(json.dumps(row, allow_nan=False), flush=True)


def json_notice(notice: Notice) -> None:
    """Print a notice of a run as `json_line` does."""
    json_line(notice.to_json())
