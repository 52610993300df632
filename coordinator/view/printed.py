"""Tables and JSON on the terminal. Text that others wrote is shown as it is and never read as markup."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich.table
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from covey.coordinator.view.table import NONE, Column, Table

if TYPE_CHECKING:  # a table needs no notices
    from covey.coordinator.record.notices import Notice

Styles = Mapping[str, str]  # the colour of cells, by their words
NO_STYLES: Styles = {}
WIDE = 72  # a table of results is as wide as its title, up to these columns


def framed(table: Table, styles: Styles = NO_STYLES, width: int = sys.maxsize) -> rich.table.Table:
    """A table in a frame, at least as wide as its title. No word is cut; words move to further lines for this width."""
    drawn = rich.table.Table(title=table.title, min_width=len(table.title))
    for column, wide in zip(table.columns, _widths(table, width), strict=True):
        drawn.add_column(column.title, justify=_side(column), width=wide)
    for row in table.rows:
        drawn.add_row(*[Text(cell, styles[cell]) if cell in styles else cell for cell in row])
    return drawn


def _widths(table: Table, width: int) -> list[int]:
    """The width of each column: the columns whose words can best move to further lines give room first."""
    cells = [[column.title, *_cells(table, place)] for place, column in enumerate(table.columns)]
    least = [_longest(" ".join(words).split()) for words in cells]
    widths = [_longest(words) for words in cells]
    spare = width - sum(widths) - 3 * len(widths) - 1  # with frame and padding
    while spare < 0 and widths != least:
        place = max(range(len(widths)), key=lambda one: widths[one] - least[one])
        widths[place] -= 1
        spare += 1
    return widths


def results_table(table: Table) -> rich.table.Table:
    """A table of results; no line of it is wrapped."""
    drawn = rich.table.Table(title=table.title, min_width=min(len(table.title), WIDE))
    for place, column in enumerate(table.columns):
        width = _longest([column.title, *_cells(table, place)])
        drawn.add_column(column.title, justify=_side(column), no_wrap=True, min_width=width)
    return _with_rows(drawn, table)


def comparison_table(table: Table) -> rich.table.Table:
    """A table of a comparison: many columns, whose headers may be wrapped."""
    drawn = rich.table.Table(
        title=table.title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )
    for place, column in enumerate(table.columns):
        width = _longest(_cells(table, place))
        drawn.add_column(column.title, justify=_side(column), min_width=width)
    return _with_rows(drawn, table)


def bare(table: Table) -> rich.table.Table:
    """A table without title and frame, for a view that has little room."""
    drawn = rich.table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in table.columns:
        drawn.add_column(column.title, justify=_side(column), no_wrap=True)
    return _with_rows(drawn, table)


def _side(column: Column) -> Any:
    return "right" if column.is_number else "left"


def _cells(table: Table, place: int) -> list[str]:
    return [row[place] for row in table.rows]


def _longest(cells: Sequence[str]) -> int:
    """Characters of the longest of these cells."""
    return max(len(cell) for cell in cells)


def _with_rows(drawn: rich.table.Table, table: Table) -> rich.table.Table:
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def show(console: Console, table: Table, styles: Styles = NO_STYLES) -> None:
    """Print a table with every word of it, within the width of the console.

    A table that is too wide loses its frame. If it is still too wide, each line of it becomes a block of lines.
    """
    drawn = framed(table, styles, console.width)
    if _width(console, drawn) > console.width:
        drawn.box = box.SIMPLE_HEAD
        drawn.pad_edge = False
        drawn.collapse_padding = True
    if _width(console, drawn) <= console.width:
        console.print(drawn, crop=False)
        return
    console.print(Text(table.title, "italic"), highlight=False)
    for row in table.rows:
        console.print(_block(table.headers, row, styles), highlight=False)


def show_words(console: Console, words: Table, build: Callable[[Table], rich.table.Table]) -> None:
    """Print a table of words. On a terminal that is too narrow for it, print its columns in several tables.

    Args:
        console: where to print
        words: the table; its first column names the lines, and is repeated
        build: makes the table to print, `results_table` or `comparison_table`
    """
    for part in divided(console, words, build, console.width):
        console.print(part, width=max(console.width, _width(console, part)), crop=False)


def divided(
    console: Console, words: Table, build: Callable[[Table], rich.table.Table], width: int
) -> Iterator[rich.table.Table]:
    """Tables of consecutive columns that fit into the width, if a column and its line's name do."""
    parts = []
    chosen = [0]
    for column in range(1, len(words.columns)):
        longer = build(words.only([*chosen, column]))
        if len(chosen) > 1 and _width(console, longer) > width:
            parts.append(chosen)
            chosen = [0]
        chosen.append(column)
    parts.append(chosen)
    if len(parts) > 1 and len(chosen) == 2 and len(parts[-2]) > 3:  # no column alone
        chosen.insert(1, parts[-2].pop())
    for place, columns in enumerate(parts):
        table = build(words.only(columns))
        if place > 0:
            table.title = None  # the first has it
        yield table


def _width(console: Console, table: rich.table.Table) -> int:
    """How wide a table is at least, with every word in it."""
    return Measurement.get(console, console.options.update(max_width=sys.maxsize), table).minimum


def _block(headers: Sequence[str], cells: Sequence[str], styles: Styles) -> Text:
    """One line of a table as a block of lines `header: cell`, without empty cells."""
    block = Text(f"{headers[0]}: {cells[0]}")
    for header, cell in zip(headers[1:], cells[1:], strict=True):
        if cell not in ("", NONE):
            block.append(f"\n  {header}: ")
            block.append(cell, styles.get(cell))
    return block


def json_line(row: Mapping[str, Any]) -> None:
    """Print one JSON object on a line of standard output, for programs."""
    print(json.dumps(row, allow_nan=False), flush=True)


def json_notice(notice: Notice) -> None:
    """Print a notice of a run as `json_line` does."""
    json_line(notice.to_json())
