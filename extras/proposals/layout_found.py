"""The layout of a table, as its names and rows show it: a time in several columns, keys that are left out, a reading in each row."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from covey.agent.data.cells import BadCells
from covey.agent.data.table_columns import instants
from covey.agent.data.table_files import open_table
from covey.agent.data.values import spelled, value_of
from covey.agent.data_place import is_json
from covey.extras.formats.growing import GrowingFolder
from covey.extras.formats.layouts import HOURS
from covey.extras.proposals.describe import ColumnDescription, TableDescription, describe_table
from covey.shared.scenario.classes import name_parts
from covey.shared.scenario.columns import Notation, Pivot
from covey.shared.sentences import counted

CALENDAR = (
    ("year", "yr", "jahr"), ("month", "mon", "mnth", "mo", "monat"), ("day", "dy", "dom", "tag"),
    ("hour", "hr", "hours", "stunde"), ("minute", "min", "minutes"), ("second", "sec", "seconds"),
)  # fmt: skip
DAY = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\.?|(19|20)?\d{6}")
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(\s*[AaPp]\.?[Mm]\.?)?")
DIGITS = re.compile(r"([01]?\d|2[0-3])?[0-5]?\d([0-5]\d)?")
CLOCK_NAMES = frozenset({"time", "clock", "hhmm", "uhrzeit", "zeit", "heure", "hora", "utc"})
# columns whose words name quantities, and those that hold the readings of any
NAMING = frozenset(
    ("entity_id", "topic", "field", "key", "metric", "variable", "parameter", "attribute", "property", "quantity", "measure",
     "measurement", "tag", "point", "signal", "channel", "observation")
)  # fmt: skip
READING = frozenset({"value", "state", "reading", "payload", "val", "wert", "data", "message", "v"})
HOURS_OF_DAY = 24
LEAST_CLOCK = 100  # 1:00 without a sign: smaller ones alone may be hours
MOST_NAMES = 200  # of quantities
LEAST_READINGS = 8
APART = 6.0  # deviations between the levels of two quantities
MOSTLY = 0.9
STEPS = (
    *((f"{n}s", n) for n in (1, 2, 5, 10, 15, 30)),
    *((f"{n}min", 60 * n) for n in (1, 2, 5, 10, 15, 30)),
    *((f"{n}h", 3600 * n) for n in (1, 2, 3, 6, 12)),
    *((f"{n}d", 86_400 * n) for n in (1, 2, 7, 30)),
)


def described(
    tables: Sequence[Path], words: Collection[str], known: Notation
) -> tuple[TableDescription, list[str]]:
    """Tables in the layout that they show, unless it is known already, and what a person should know about it."""
    found = describe_table(*tables, words=words, known=known)
    remarks: list[str] = []
    if not known.join:
        for parts in _times(found):
            other = known.model_copy(update={"join": parts})
            joined = describe_table(*tables, words=words, known=other)
            if joined.column(parts[0]).kind == "time":
                found, known = joined, other
                break
    if not known.zeros and is_json(_first(tables[0])):
        if zeros := tuple(one.name for one in found.columns if _leaves_out_zeros(one)):
            known = known.model_copy(update={"zeros": zeros})
            found = describe_table(*tables, words=words, known=known)
        remarks += [_may_leave_out(one, found.rows) for one in found.columns if _is_count(one)]
    if known.pivot is None:
        readings = _readings(tables[0], found)
        if readings is not None and (pivot := readings.pivot) is not None:
            known = known.model_copy(update={"pivot": pivot})
            found = describe_table(*tables, words=words, known=known)
        elif readings is not None and readings.are_apart:
            remarks.append(
                f"column {readings.values[0]!r}: its level differs by {readings.name!r} far more than within, so that R2 is high for "
                "that alone: compare with the last value (mae, rmse)"
            )
    return found, remarks


def _first(place: Path) -> Path:
    return place.parts[0] if isinstance(place, GrowingFolder) else place


# -- a time in several columns -------------------------------------------------------------------------------


def _times(table: TableDescription) -> Iterator[tuple[str, ...]]:
    """The columns that may be one time together: a day next to a clock, or year, month, day and what follows."""
    columns = table.columns
    for day, clock in (
        *pairwise(columns),
        *((after, before) for before, after in pairwise(columns)),
    ):
        if _is_day(day) and _is_clock(clock):
            yield day.name, clock.name
    by_name = {one.name.strip().lower(): one for one in columns if one.kind == "whole"}
    parts: list[str] = []
    for names in CALENDAR:
        part = next((by_name[name] for name in names if name in by_name), None)
        if part is None:
            break
        parts.append(part.name)
    if len(parts) >= len(("year", "month", "day")):
        yield tuple(parts)


def _is_day(column: ColumnDescription) -> bool:
    if column.missing or not column.values:
        return False
    return (column.kind == "time" and column.dates_only) or all(map(DAY.fullmatch, column.values))


def _is_clock(column: ColumnDescription) -> bool:
    if column.missing or not column.values or column.distinct < 2:
        return False
    if all(map(CLOCK.fullmatch, column.values)):
        return True
    names = {*name_parts(column.name)}
    if column.kind != "whole" or column.largest is None or not names & (CLOCK_NAMES | HOURS):
        return False
    if names & HOURS:
        return (column.smallest or 0) >= 0 and column.largest <= HOURS_OF_DAY
    return column.largest >= LEAST_CLOCK and all(map(DIGITS.fullmatch, column.values))


# -- keys that are left out ----------------------------------------------------------------------------------


def _leaves_out_zeros(column: ColumnDescription) -> bool:
    """Whether a key is not there where it would be false, or 0 in a message of The Things Network."""
    if column.kind == "boolean":
        return bool(column.missing) and column.values == ("true",)
    return "decoded_payload." in column.name and _has_no_zero(column)


def _has_no_zero(column: ColumnDescription) -> bool:
    is_number = column.kind in ("whole", "number") and column.smallest is not None
    return is_number and bool(column.missing) and "0" not in column.values and column.smallest != 0


def _is_count(column: ColumnDescription) -> bool:
    return column.kind == "whole" and column.smallest == 1 and _has_no_zero(column)


def _may_leave_out(column: ColumnDescription, rows: int) -> str:
    return (
        f"column {column.name!r}: the key is not there in {column.missing} of {counted(rows, 'row')}, and never 0; if zeros are left "
        "out, name it in task.read.zeros"
    )


# -- a reading in each row -----------------------------------------------------------------------------------


@dataclass
class _Readings:
    """A table that seems to have a reading in each row."""

    name: str  # the column that names what was read
    values: tuple[str, ...]
    time: str
    by: str | None
    numbers: dict[str, list[float]] = field(default_factory=dict)  # by quantity
    words: dict[str, int] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)

    @property
    def are_apart(self) -> bool:
        """Whether the levels of two quantities differ by far more than each of them varies."""
        levels = {
            name: np.array(own) for name, own in self.numbers.items() if len(own) >= LEAST_READINGS
        }
        if len(levels) < 2:
            return False
        within = max(float(own.std()) for own in levels.values())
        means = [float(own.mean()) for own in levels.values()]
        return max(means) - min(means) > APART * max(within, 1e-9)

    @property
    def are_of_two_kinds(self) -> bool:
        """Whether some quantities are numbers, and others words."""
        shares = [
            len(self.numbers.get(name, ()))
            / (len(self.numbers.get(name, ())) + self.words.get(name, 0) or 1)
            for name in self.times
        ]
        return any(share > MOSTLY for share in shares) and any(
            share < 1 - MOSTLY for share in shares
        )

    @property
    def pivot(self) -> Pivot | None:
        """How it becomes a table with a column for each quantity; None if its rows may be of one."""
        is_named = not NAMING.isdisjoint({self.name.strip().lower(), *name_parts(self.name)[-1:]})
        is_reading = self.values[0].strip("_ ").lower() in READING or len(self.values) > 1
        if not (
            self.are_of_two_kinds or (is_named and is_reading) or (self.are_apart and is_reading)
        ):
            return None
        value = self.values if len(self.values) > 1 else self.values[0]
        return Pivot(name=self.name, value=value, time=self.time, every=self._every, by=self.by)

    @property
    def _every(self) -> str | None:
        """The usual time between two readings of a quantity; None if all are read at the same times."""
        distinct = {at for own in self.times.values() for at in own}
        if len(distinct) <= 1.2 * max(len({*own}) for own in self.times.values()):
            return None
        gaps = [
            float(np.median(np.diff(sorted({*own}))))
            for own in self.times.values()
            if len({*own}) > 2
        ]
        usual = median(gaps) if gaps else 1.0
        return next((text for text, seconds in STEPS if seconds >= MOSTLY * usual), STEPS[-1][0])


def _readings(path: Path, table: TableDescription) -> _Readings | None:
    """The columns of a table with a reading in each row; None if several columns of it are measured."""
    columns = [one for one in table.columns if one.kind != "empty" and one.distinct > 1]
    times = [one for one in columns if one.kind == "time" and not one.missing]
    names = [
        one
        for one in columns
        if (one.kind == "word" or one.names_things) and not one.missing and not one.is_key
        and one.distinct <= min(MOST_NAMES, table.rows / LEAST_READINGS)
    ]  # fmt: skip
    if not times or not names or table.rows < 2 * LEAST_READINGS:
        return None
    time = max(times, key=lambda one: one.distinct).name
    cells = _cells(path, table, [one.name for one in columns])
    names.sort(key=lambda one: NAMING.isdisjoint({one.name.lower(), *name_parts(one.name)[-1:]}))
    for name in names:
        others = [
            one
            for one in columns
            if one is not name and one.name != time and one not in times
            and not one.is_unique and one.steps not in ("ones", "rising")
            and not _depends(cells[one.name], cells[name.name])
        ]  # fmt: skip
        words = [
            one for one in others if one.kind == "word" and not one.numbers and not one.missing
        ]
        values = [one for one in others if one not in words]
        if not values and len(words) == 1:
            values, words = words, []
        things = [
            one for one in words if min(one.counts) >= table.rows / (one.distinct * LEAST_READINGS)
        ]
        if values and len(things) < 2 and _exclude_one_another([cells[one.name] for one in values]):
            by = things[0].name if things else None
            found = _Readings(name.name, tuple(one.name for one in values), time, by)
            return _filled(found, cells)
    return None


def _cells(path: Path, table: TableDescription, names: Sequence[str]) -> dict[str, list[Any]]:
    cells: dict[str, list[Any]] = {name: [] for name in names}
    with open_table(path, least=1, notation=table.notation) as file:
        for block in file.blocks(names, BadCells(path)):
            for name in names:
                cells[name] += block.cells[name]
    return cells


def _depends(cells: Sequence[Any], names: Sequence[Any]) -> bool:
    """Whether each name has one value of a column, such as its unit."""
    values: dict[str, str] = {}
    return all(
        values.setdefault(spelled(name), spelled(cell)) == spelled(cell)
        for cell, name in zip(cells, names, strict=True)
    )


def _exclude_one_another(columns: Sequence[Sequence[Any]]) -> bool:
    """Whether at most one of some columns has a value in each row."""
    if len(columns) == 1:
        return True
    return all(
        sum(value_of(cell).kind != "missing" for cell in row) <= 1
        for row in zip(*columns, strict=True)
    )


def _filled(found: _Readings, cells: Mapping[str, Sequence[Any]]) -> _Readings:
    at = instants(cells[found.time])
    rows = zip(cells[found.name], at, *(cells[value] for value in found.values), strict=True)
    for name, moment, *values in rows:
        quantity = spelled(name)
        found.times.setdefault(quantity, []).append(moment)
        for value in map(value_of, values):
            if value.kind == "number":
                found.numbers.setdefault(quantity, []).append(value.number)
            elif value.kind != "missing":
                found.words[quantity] = found.words.get(quantity, 0) + 1
    return found
