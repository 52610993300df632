"""Tables on the terminal. Text that others wrote is shown as it is and never read as markup."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from covey.coordinator.compare.tables import TextTable
from covey.coordinator.run.notices import Notice

EMPTY = ("", "–")  # cells without a value


def results_table(words: TextTable) -> Table:
    """A table of results; no line of it is wrapped."""
    table = Table(title=words.title)
    for number, header in enumerate(words.headers):
        cells = _column(words, number)
        _add_column(table, header, _longest([header, *cells]), wrap_header=False)
    _add_lines(table, words)
    return table


def comparison_table(words: TextTable) -> Table:
    """A table of a comparison: many columns, whose headers may be wrapped."""
    table = Table(title=words.title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, header in enumerate(words.headers):
        _add_column(table, header, _longest(_column(words, number)), wrap_header=True)
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
    table.add_column(header, justify=justify, no_wrap=not wrap_header, min_width=width)


def _add_lines(table: Table, words: TextTable) -> None:
    for line in words.lines:
        table.add_row(*line)


def show(console: Console, table: Table) -> None:
    """Print a table with every word of it, within the width of the console.

    A table that is too wide loses its frame. If it is still too wide, each line of it becomes a block of lines.
    """
    if _width(console, table) > console.width:
        table.box = box.SIMPLE_HEAD
        table.pad_edge = False
        table.collapse_padding = True
    if _width(console, table) <= console.width:
        console.print(table, crop=False)
        return
    for block in _blocks(table):
        console.print(block, highlight=False)


def show_words(
    console: Console, words: TextTable, build: Callable[[TextTable], Table], *, min_width: int = 0
) -> None:
    """Print a table of words. On a terminal that is too narrow for it, print its columns in several tables.

    Args:
        console: where to print
        words: the table; its first column names the lines, and is repeated
        build: makes the table to print, `results_table` or `comparison_table`
        min_width: how wide a file or a pipe is at least; a terminal has a width of its own
    """
    width = console.width
    if not console.is_terminal:
        width = max(width, min_width)
    for part in _parts(console, words, build, width):
        console.print(part, width=max(width, _width(console, part)), crop=False)


def _parts(
    console: Console, words: TextTable, build: Callable[[TextTable], Table], width: int
) -> list[Table]:
    """Tables of consecutive columns that fit into the width, if a column and its line's name do."""
    parts = []
    chosen = [0]
    for column in range(1, len(words.headers)):
        longer = build(_some_columns(words, [*chosen, column]))
        if len(chosen) > 1 and _width(console, longer) > width:
            parts.append(chosen)
            chosen = [0]
        chosen.append(column)
    parts.append(chosen)
    if len(parts) > 1 and len(chosen) == 2 and len(parts[-2]) > 3:  # no column alone
        chosen.insert(1, parts[-2].pop())
    tables = []
    for place, columns in enumerate(parts):
        table = build(_some_columns(words, columns))
        if place > 0:
            table.title = None  # the first has said it
        tables.append(table)
    return tables


def _some_columns(words: TextTable, columns: Sequence[int]) -> TextTable:
    headers = [words.headers[column] for column in columns]
    lines = []
    for line in words.lines:
        lines.append([line[column] for column in columns])
    return TextTable(words.title, headers, lines)


def _width(console: Console, table: Table) -> int:
    """How wide a table is at least, with every word in it."""
    measured = Measurement.get(console, console.options.update(max_width=sys.maxsize), table)
    return measured.minimum


def _blocks(table: Table) -> Iterator[Text]:
    """A table as blocks of lines `header: cell`, without empty cells. The first cell is the heading of its block."""
    title = str(table.title)
    yield Text(title, "italic")
    columns = []
    headers = []
    for column in table.columns:
        columns.append(list(column.cells))
        headers.append(str(column.header))
    for line in zip(*columns, strict=True):
        yield _block(headers, line)


def _block(headers: Sequence[str], cells: Sequence[Any]) -> Text:
    """One line of a table as a block of lines."""
    block = Text(f"{headers[0]}: {cells[0]}")
    for header, cell in zip(headers[1:], cells[1:], strict=True):
        words = str(cell)
        if words in EMPTY:
            continue
        block.append(f"\n  {header}: ")
        if isinstance(cell, Text):
            block.append(cell)
        else:
            block.append(words)
    return block


def json_line(row: Mapping[str, Any]) -> None:
    """Print one JSON object on a line of standard output, for programs."""
    print(json.dumps(row, allow_nan=False), flush=True)


def json_notice(notice: Notice) -> None:
    """Print a notice of a run as `json_line` does."""
    json_line(notice.to_json())
