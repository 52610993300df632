"""Tables in another layout than a sample in each row: a reading in each row, and a time in several columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from covey.agent.data.cells import LEAVES_OUT, BadCell, BadCells, Cells
from covey.agent.data.notation import plain
from covey.agent.data.table_columns import instants
from covey.agent.data.table_rows import BLOCK_ROWS, Block, TableFile, check_columns, listed
from covey.agent.data.values import moment_of, plain_number, spelled, value_of
from covey.shared.errors import DataError
from covey.shared.scenario.classes import name_parts
from covey.shared.scenario.columns import Notation, Pivot

HOURS = frozenset(
    {"hour", "hours", "hh", "hr", "h", "stunde"}
)  # in the name of a column of hours alone


def laid_out(
    table: TableFile, path: Path, notation: Notation, asked: Sequence[str] = ()
) -> TableFile:
    """A table as `read.join` and `read.pivot` of a task have it. DataError if it lacks a column that they name.

    Where the owner of a device hides what rows hold, the quantities are those that are `asked` for, whether they occur or not: else
    a refusal would tell which words the rows have.
    """
    pivot = notation.pivot
    for key, names in (("join", notation.join), ("pivot", pivot.names if pivot else ())):
        lacking = [name for name in names if name not in table.columns]
        if lacking:
            fault = f"no column {listed(lacking)}, which task.read.{key} names"
            raise DataError(
                f"{path}: {fault}; the table has {listed(table.columns)}",
                public=f"the table lacks columns that task.read.{key} names",
            )
        if key == "join" and names:
            table = _Joined(table, names, notation)
    return table if pivot is None else _Pivoted(table, path, pivot, asked)


class _Joined(TableFile):
    """A table whose time is in several columns, as one with a column for it."""

    def __init__(self, table: TableFile, parts: Sequence[str], notation: Notation) -> None:
        self._table, self._parts, self._notation = table, parts, notation
        self.columns = tuple(name for name in table.columns if name not in parts[1:])
        self.positions, self.left_out = table.positions, table.left_out
        self.nameless, self.separator = table.nameless, table.separator

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        first = self._parts[0]
        others = [name for name in names if name != first]
        is_read = first in names
        for block in self._table.blocks([*others, *(self._parts if is_read else ())], faults):
            cells = {name: block.cells[name] for name in others}
            if is_read:
                parts = zip(*(block.cells[part] for part in self._parts), strict=True)
                are_hours = not HOURS.isdisjoint(name_parts(self._parts[1]))
                texts = [_joined(*one, are_hours=are_hours) for one in parts]
                cells[first] = plain(texts, self._notation)
            yield replace(block, cells=cells)


def _joined(first: object, *others: object, are_hours: bool) -> str:
    """A day and a clock, or year, month, day and what follows, as one text; empty if one of them is missing."""
    texts = [spelled(cell).removesuffix(".0") for cell in (first, *others)]
    if any(value_of(cell).kind == "missing" for cell in (first, *others)):
        return ""
    if len(others) == 1:
        day = moment_of(first)
        clock = str(others[0]).strip()
        if clock.isdigit() and are_hours:
            clock = f"{clock}:00"
        elif clock.isdigit():  # 5 is 0:05, and 130500 is 13:05:00
            clock = clock.zfill(4 if len(clock) < 5 else 6)
        return f"{texts[0] if day is None else day.date().isoformat()} {clock}"
    filled = [text.zfill(2) for text in texts]
    filled[0] = f"20{filled[0]}" if len(filled[0]) == 2 else filled[0]
    clocks = [*filled[3:], "00"][: max(len(filled) - 3, 2)] if filled[3:] else []
    return f"{'-'.join(filled[:3])} {':'.join(clocks)}".strip()


@dataclass
class _Cell:
    """The readings of a quantity in the time of one row."""

    total: float = 0.0
    count: int = 0
    newest: float = -math.inf  # when the last word was read
    word: object = None

    def add(self, cell: object, at: float) -> None:
        value = value_of(cell)
        if value.kind == "number":
            self.total, self.count = self.total + value.number, self.count + 1
        elif value.kind != "missing" and at >= self.newest:
            self.newest, self.word = at, cell

    @property
    def content(self) -> object:
        return plain_number(self.total / self.count) if self.count else self.word


class _Faults(BadCells):
    """Keeps all of them, because they are found before anybody asks."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.all: list[BadCell] = []

    def add(self, cell: BadCell) -> None:
        self.all.append(cell)


class _Pivoted(TableFile):
    """A table with a reading in each row, as one with a column for each quantity: in the order of time, one thing after the other."""

    def __init__(self, table: TableFile, path: Path, pivot: Pivot, asked: Sequence[str]) -> None:
        self._pivot = pivot
        self._faults = _Faults(path)
        self._rows: dict[tuple[str, float], dict[str, _Cell]] = {}
        for block in table.blocks(list(dict.fromkeys(pivot.names)), self._faults):
            self._add(block)
        names = sorted({name for cells in self._rows.values() for name in cells})
        begin = _common_folder(names)
        self._names = {name[begin:]: name for name in names}
        quantities = asked if LEAVES_OUT.get() else self._names
        keys = (pivot.time, *((pivot.by,) if pivot.by else ()))
        self.columns = (*keys, *(name for name in quantities if name not in keys))
        check_columns(path, self.columns, 2)
        self.left_out, self.separator = table.left_out, table.separator
        things: dict[str, int] = {}
        for thing, _ in self._rows:
            things.setdefault(thing, len(things))
        self._order = sorted(self._rows, key=lambda row: (things[row[0]], row[1]))

    def _add(self, block: Block) -> None:
        pivot, cells = self._pivot, block.cells
        things = cells[pivot.by] if pivot.by else [""] * len(block.rows)
        at = instants(cells[pivot.time])
        for place, (thing, moment, name) in enumerate(
            zip(things, at, cells[pivot.name], strict=True)
        ):
            values = [cells[value][place] for value in pivot.values]
            cell = next((one for one in values if value_of(one).kind != "missing"), None)
            if not math.isfinite(moment) or value_of(name).kind == "missing":
                self._refuse(block, place, is_time=math.isfinite(moment))
            elif cell is not None:
                step = pivot.step_s
                start = moment if step is None else math.floor(moment / step) * step
                row = self._rows.setdefault((spelled(thing), start), {})
                row.setdefault(spelled(name), _Cell()).add(cell, moment)

    def _refuse(self, block: Block, place: int, *, is_time: bool) -> None:
        column = self._pivot.name if is_time else self._pivot.time
        fault = "is empty" if is_time else "is not a time"
        row, line = block.rows[place], block.lines[place]
        advice = "correct the reading, or leave it out"
        self._faults.add(BadCell(row, 0, line, column, f"the cell {fault}", fault, advice))

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        for cell in () if LEAVES_OUT.get() else self._faults.all:  # readings are left out, no rows
            faults.add(cell)
        for start in range(0, len(self._order), BLOCK_ROWS):
            rows = self._order[start : start + BLOCK_ROWS]
            numbers = range(start + 1, start + len(rows) + 1)
            yield Block(numbers, [0] * len(rows), {name: self._cells(name, rows) for name in names})

    def _cells(self, name: str, rows: Sequence[tuple[str, float]]) -> Cells:
        if name == self._pivot.time:
            return [str(datetime.fromtimestamp(at, UTC).replace(tzinfo=None)) for _, at in rows]
        if name == self._pivot.by:
            return [thing for thing, _ in rows]
        of_rows: Iterator[Mapping[str, _Cell]] = (self._rows[row] for row in rows)
        whole = self._names.get(name, "")
        return [cells[whole].content if whole in cells else None for cells in of_rows]


def _common_folder(names: Sequence[str]) -> int:
    """How many characters of names with slashes are folders that all of them have in common."""
    length = 0
    for folders in zip(*(name.split("/")[:-1] for name in names), strict=False):
        if len({*folders}) > 1:
            break
        length += len(folders[0]) + 1
    return length
