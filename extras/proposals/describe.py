"""The contents of a table in figures, for a person who writes a task: types, missing cells, values, likely targets."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from covey.agent.data.cells import BadCells, Cells
from covey.agent.data.notation import FALLBACK, FoundNotation, encoding_of, is_utf8, notation_of
from covey.agent.data.table_files import USUAL, open_table
from covey.agent.data.values import SHEET_DAYS, Value, moment_counted, spelled, value_of
from covey.agent.data_place import text_of
from covey.shared.errors import DataError
from covey.shared.scenario.classes import WordFacts, facts_of, name_parts, why_no_classes
from covey.shared.scenario.columns import LABEL_NAMES, Notation
from covey.shared.sentences import counted

MAX_DISTINCT = 1000  # different values that are counted in one column
MAX_SHOWN = 50  # values of one column in the description
MAX_STRANGE = 3  # words in a column of numbers in the description
FEW_VALUES = 20  # a column with at most this number of different values may name classes
LAYOUT = ("names", "join", "pivot", "zeros")  # of `Notation`, which no cell shows
EXAMINED_ROWS = 1000  # in which the notation of a file is looked for
DATE_WORDS = (
    "date",
    "datum",
    "stamp",
    "yyyy",
)  # in the name of a column that holds dates as numbers
TIME_WORDS = (*DATE_WORDS, "time", "zeit")
# the last word in the name of a column whose whole numbers name things
THINGS = frozenset(
    ("id", "sensor", "device", "node", "gateway", "station", "machine", "meter", "probe", "logger", "mote", "host", "tag", "channel",
     "geraet", "gerat", "maschine", "anlage", "zahler", "knoten")
)  # fmt: skip
LEAST_COMPACT = 5  # different dates of eight digits or more, which are no accident
LARGE = 1e7  # of numbers that may be times
LEAST_DATE = 1e5  # of those with the name of a time: 251025
SOME_NUMBERS = 0.2  # of the cells of a column of words: worth a remark
MOSTLY = 0.8  # of the words of a column are numbers with something around them
STAND_APART = 10.0  # deviations between the outermost number and all others, from where it may stand for a missing cell
LEAST_APART = 3  # cells that have it, and different numbers among the others
NINES = re.compile(r"9{2,}(\.9*)?")  # a mark of missing cells by its look
# numbers with something around them, and texts with a year or a clock
AROUND = re.compile(
    r"[^\w\s]{0,3}\s*\d[\d.,'\s]*\s*\D{0,8}|.{0,24}((?<!\d)(1[7-9]|20)\d\d(?!\d)|\d:\d\d).{0,24}"
)

Kind = Literal["whole", "number", "boolean", "time", "word", "bytes", "empty"]
Steps = Literal["", "ones", "rising", "falling", "runs"]


@dataclass(frozen=True)
class ColumnDescription:
    """One column of a table."""

    name: str
    kind: Kind  # of all cells that are there; empty: there is none
    missing: int  # cells
    distinct: int  # different values; MAX_DISTINCT + 1 stands for more than MAX_DISTINCT
    values: tuple[str, ...]  # as words, the most frequent first, at most MAX_SHOWN
    counts: tuple[int, ...]  # cells of each of these
    smallest: float | None  # of numbers
    largest: float | None
    mean: float | None
    std: float | None
    numbers: int  # cells with a finite number
    times: int  # texts and dates that are points in time
    # the first cells that are neither numbers nor times, at most MAX_STRANGE
    strange: tuple[str, ...]
    is_unique: bool  # no value of many occurs twice
    is_key: bool  # words of which none occurs twice, as names: a model can learn nothing from them
    words: WordFacts  # figures of its values as words
    steps: Steps = ""  # of whole numbers from row to row
    dates_only: bool = False  # of times: all of them are at 0:00

    @property
    def names_things(self) -> bool:
        """Whether whole numbers are names: node 3 is not three times node 1."""
        are_few = self.kind == "whole" and not self.is_unique and self.distinct <= FEW_VALUES
        return are_few and is_thing(self.name) and (self.smallest or 0) >= 0

    @property
    def has_no_letters(self) -> bool:
        """Whether its words are numbers or times in another notation, such as 38,0 or 31.12.2025."""
        return bool(self.strange) and all(word.upper() == word.lower() for word in self.strange)

    @property
    def remarks(self) -> Iterator[str]:
        """What a person should know who takes its cells for words, or all of its numbers for measured ones."""
        if (mark := self._mark_among_numbers()) is not None:
            value, count = mark
            yield (
                f"column {self.name!r}: {count} of {self.numbers} cells are {value}, far from all others; if that stands for "
                "missing cells, name it in task.read.missing"
            )
        if self.kind != "word":
            return
        present = self.words.cells
        share = self.numbers / present
        repeated = [
            value
            for value, count in zip(self.values, self.counts, strict=True)
            if count > 1 and value_of(value).kind == "word"
        ]
        seen = f"{repeated[0]!r:.40}" if repeated else "words"
        if SOME_NUMBERS <= share < 1 - SOME_NUMBERS:
            yield (
                f"column {self.name!r}: {100 * share:.0f} % numbers, else {seen}; if that stands for missing cells, "
                "name it in task.read.missing"
            )
        elif not self.numbers and self.values:
            words = [value for value in self.values if value_of(value).kind == "word"]
            alike = [value for value in words if AROUND.fullmatch(value)]
            if len(alike) >= MOSTLY * len(self.values) and len(alike) > LEAST_COMPACT:
                yield (
                    f"column {self.name!r}: numbers or times with something around them, such as {shape_of(alike[0])!r:.40}; "
                    "they count as words unless task.read names their spelling (units, thousands, dates)"
                )

    def _mark_among_numbers(self) -> tuple[str, int] | None:
        """The smallest or largest number, such as -999, and its cells, if it is repeated and all others are far from it.

        If most cells have one number, such as a pixel at the edge, any other one is far, and must look like a mark.
        """
        if self.mean is None or self.std is None or self.distinct <= LEAST_APART:
            return None
        is_still = 2 * self.counts[0] > self.numbers
        for value, count in zip(self.values, self.counts, strict=True):
            number, others = value_of(value).number, self.numbers - count
            if number not in (self.smallest, self.largest) or not LEAST_APART <= count <= others:
                continue
            if is_still and number >= 0 and not NINES.fullmatch(value):
                continue
            mean = (self.numbers * self.mean - count * number) / others
            # the spread between the mark and the others is taken out of that of all
            between = (
                self.numbers * self.std**2 - count * others / self.numbers * (number - mean) ** 2
            )
            if abs(number - mean) > STAND_APART * math.sqrt(max(between, 0) / others):
                return value, count
        return None


@dataclass(frozen=True)
class TableDescription:
    """A table."""

    rows: int
    faulty_rows: int  # with another number of cells than the header; they are not in `rows`
    columns: tuple[ColumnDescription, ...]  # in the order of the file
    targets: tuple[str, ...]  # columns that may be the target, the most likely first
    found: FoundNotation  # of the first file
    nameless: int = 0  # columns without a name, which are not read
    left_out: Mapping[str, int] = field(
        default_factory=dict
    )  # lines without a row, by what they hold

    @property
    def notation(self) -> Notation:
        """How numbers, times and missing cells are spelled."""
        return self.found.notation

    @property
    def remarks(self) -> tuple[str, ...]:
        """Spellings with two readings, and columns that are not as they seem."""
        own = [remark for column in self.columns for remark in column.remarks]
        lines = [
            f"{counted(count, 'line')} of {what} left out" for what, count in self.left_out.items()
        ]
        return (*lines, *self.found.remarks, *own)

    def to_json(self) -> dict[str, Any]:
        """For other programs."""
        content = asdict(self)
        del content["found"]
        return content | {"notation": self.notation.model_dump(), "remarks": self.remarks}

    def column(self, name: str) -> ColumnDescription:
        """The column of a name. KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def describe_table(
    path: Path, *more: Path, words: Collection[str] = (), known: Notation = USUAL
) -> TableDescription:
    """Describe a `.csv`, `.tsv` or `.parquet` file. Nothing is refused except a file that is no table.

    Args:
        path: the file.
        more: other parts of the same data, such as a test part.
        words: columns whose values are all listed, up to MAX_DISTINCT.
        known: what its owner or another device states of its spelling, besides what the file shows.

    Raises:
        DataError: the file cannot be read, has no header, or a second one.
    """
    rows = 0
    faulty_rows = 0
    nameless = 0
    columns: dict[str, _Column] = {}
    left_out: Counter[str] = Counter()
    found = found_notation(path, known)
    for part in (path, *more):
        faults = BadCells(part)
        with open_table(part, least=1, notation=found.notation) as file:
            nameless = max(nameless, file.nameless)
            for name in file.columns:
                columns.setdefault(name, _Column(name, lists_all=name in words))
            own_rows = 0
            for block in file.blocks(file.columns, faults):
                own_rows += len(block.rows)
                for name, cells in block.cells.items():
                    columns[name].add(cells)
                faults.close_block()
            left_out += file.left_out
        rows += own_rows
        faulty_rows += faults.count
        _check_lines(part, own_rows, faults)
    described = tuple(column.described() for column in columns.values())
    _check_first_row(path, described, columns)
    targets = _targets(described, rows)
    return TableDescription(rows, faulty_rows, described, targets, found, nameless, left_out)


def found_notation(path: Path, known: Notation = USUAL) -> FoundNotation:
    """The notation of a table, by its bytes and its first rows, and what is known of it."""
    encoding: str | None = None
    if (place := text_of(path)) is not None:
        encoding = (
            None if encoding_of(place, Notation()) == "utf-16" or is_utf8(place) else FALLBACK
        )
    read = Notation(encoding=encoding, **{key: getattr(known, key) for key in LAYOUT})
    if read.pivot is not None:  # the rows of readings show how their cells are spelled
        of_readings = found_notation(path, known.model_copy(update={"pivot": None}))
        read = of_readings.notation.model_copy(
            update={"pivot": known.pivot, "missing": known.missing}
        )
    texts: dict[str, list[str]] = {}
    with open_table(path, least=1, notation=read) as file:
        for block in islice(file.blocks(file.columns, BadCells(path)), 1):
            for name, cells in block.cells.items():
                first = cells[:EXAMINED_ROWS]
                spellings = [
                    cell.strip() if isinstance(cell, str) else spelled(cell)
                    for cell in first
                    if isinstance(cell, str | date)
                ]
                texts[name] = [text for text in spellings if text]
        found = notation_of(texts, file.separator, encoding, known.missing)
    if read.pivot is not None:
        marks = {"missing": found.notation.missing}
        return replace(of_readings, notation=read.model_copy(update=marks))
    layout = {key: getattr(known, key) for key in LAYOUT}
    return replace(found, notation=found.notation.model_copy(update=layout))


def _check_lines(path: Path, rows: int, faults: BadCells) -> None:
    """DataError for a file whose header has another number of columns than most of its rows, with the first of these."""
    if rows > faults.count or not faults.count:
        return
    first = faults.first
    raise DataError(
        f"{path}: {faults.count} of {rows + faults.count} rows do not fit the first line, such as {first.described()}; if that line is a "
        "title, remove the lines above the column names",
        public=f"{faults.count} rows do not fit the first line",
    )


def _check_first_row(
    path: Path, described: tuple[ColumnDescription, ...], columns: dict[str, _Column]
) -> None:
    """DataError for a second header line, such as one of units: words above columns of numbers."""
    firsts = [column.first for column in columns.values()]
    if not all(first.kind in ("word", "missing") for first in firsts):
        return
    above = [
        one for one in described if one.kind == "word" and one.numbers + 1 == one.words.cells > 2
    ]
    # a sign such as % counts as a mark of missing cells by now
    signs = [one for one in described if one.kind in ("whole", "number") and one.missing == 1]
    if above and 2 * (len(above) + len(signs)) >= len(described):
        words = ", ".join(repr(one.strange[0]) for one in above[:3])
        raise DataError(
            f"{path}: the line below the column names seems to be a second header ({words}); remove it",
            public="the table seems to have two header lines; remove the second one",
        )


def is_thing(name: str) -> bool:
    """Whether a column has the name of a number that names things."""
    return not THINGS.isdisjoint(name_parts(name)[-1:])


def shape_of(word: str) -> str:
    """A word without what it holds: a description leaves its device."""
    return re.sub(
        "[^\\W\\d_]", lambda found: "A" if found[0].isupper() else "a", re.sub("\\d", "9", word)
    )


class _Column:
    """Collects the figures of one column."""

    def __init__(self, name: str, *, lists_all: bool) -> None:
        self._name = name
        self._lists_all = lists_all
        self.first = Value("missing")  # of the first row
        self._rows = 0
        self._present = 0
        self._numbers = 0
        self._booleans = 0
        self._whole = 0
        self._bytes = 0
        self._times = 0  # texts and dates, not numbers
        self._counted_times = 0  # numbers that may be times
        self._compact = 0  # of these, as 20251025
        self._sheet_days = 0  # and as a spreadsheet has them
        self._clock_times = 0  # of these, a time of the day with whole minutes or seconds
        self._midnights = 0
        self._strange: dict[str, None] = {}  # the first cells that are none of these
        self._smallest = math.inf
        self._largest = -math.inf
        self._last = math.nan
        self._mean = 0.0  # of the numbers so far
        self._squares = 0.0  # sum of squared distances to it (Welford)
        self._ones = 0  # numbers that are 1 more than the one in the row before
        self._rising = 0
        self._falling = 0
        self._counts: Counter[str] = Counter()  # of at most MAX_DISTINCT + 1 values

    def add(self, cells: Cells) -> None:
        """Count the cells of a block."""
        for cell in cells:
            value = value_of(cell)
            if not self._rows:
                self.first = value
            self._rows += 1
            if value.kind != "missing":
                self._present += 1
                self._count(cell, value)

    def _count(self, cell: Any, value: Value) -> None:
        if value.kind == "bytes":
            self._bytes += 1
            return
        word = spelled(cell)
        if word in self._counts or len(self._counts) <= MAX_DISTINCT:
            self._counts[word] += 1
        if value.kind == "time":
            self._times += 1
            self._midnights += str(value.content)[11:19] == "00:00:00"
        elif math.isfinite(value.number):
            self._booleans += value.kind == "boolean"
            self._count_number(value.number)
        elif len(self._strange) < MAX_STRANGE:
            self._strange[word] = None

    def _count_number(self, number: float) -> None:
        self._numbers += 1
        self._whole += number.is_integer()
        self._smallest = min(self._smallest, number)
        self._largest = max(self._largest, number)
        distance = number - self._mean
        self._mean += distance / self._numbers
        self._squares += distance * (number - self._mean)
        self._ones += number == self._last + 1
        self._rising += number > self._last
        self._falling += number < self._last
        self._last = number
        if self._is_named_time and SHEET_DAYS[0] <= number < SHEET_DAYS[1]:
            self._sheet_days += 1
            self._clock_times += round(number, 3) != number and _is_on_the_clock(number)
            self._midnights += number.is_integer()
            return
        is_large = abs(number) >= (LEAST_DATE if self._is_named_time else LARGE)
        if is_large and (moment := moment_counted(number)) is not None:
            self._counted_times += 1
            self._compact += number.is_integer() and moment.tzinfo is None
            self._midnights += str(moment)[11:19] == "00:00:00"

    def described(self) -> ColumnDescription:
        frequent = self._counts.most_common(None if self._lists_all else MAX_SHOWN)
        has_numbers = bool(self._numbers)
        kind = self._kind()
        return ColumnDescription(
            name=self._name,
            kind=kind,
            missing=self._rows - self._present,
            distinct=len(self._counts),
            values=tuple(word for word, _ in frequent),
            counts=tuple(count for _, count in frequent),
            smallest=self._smallest if has_numbers else None,
            largest=self._largest if has_numbers else None,
            mean=self._mean if has_numbers else None,
            std=math.sqrt(self._squares / self._numbers) if has_numbers else None,
            numbers=self._numbers,
            times=self._times,
            strange=tuple(self._strange),
            is_unique=self._is_unique(),
            is_key=kind == "word" and self._is_unique(),
            words=facts_of(self._counts.items()),
            steps=self._steps(),
            dates_only=kind == "time" and self._midnights == self._present,
        )

    def _is_unique(self) -> bool:
        """Whether no value occurs twice, as far as they are counted."""
        return self._counts.total() == len(self._counts) > FEW_VALUES

    def _steps(self) -> Steps:
        """How whole numbers without gaps go from row to row."""
        steps = self._rows - 1
        if self._whole < self._rows or self._booleans or steps < 1:
            return ""
        if self._ones == steps:
            return "ones"
        if self._rising == steps:
            return "rising"
        if self._falling == steps:
            return "falling"
        return "runs" if not self._falling and self._rising > FEW_VALUES else ""

    def _kind(self) -> Kind:
        if not self._present:
            return "empty"
        if self._bytes:
            return "bytes"
        if self._booleans == self._present:
            return "boolean"
        if self._times == self._present:
            return "time"
        if self._numbers < self._present:
            return "word"
        if self._are_times():
            return "time"
        return "whole" if self._whole == self._present else "number"

    def _are_times(self) -> bool:
        """Numbers that are all points in time of a likely year: by the column's name, or as 20251025 and 20251025130000."""
        if self._sheet_days == self._present:
            is_date = any(word in self._name.lower() for word in DATE_WORDS)
            return is_date or 2 * self._clock_times > self._present  # else seconds of a day
        if self._counted_times < self._present:
            return False
        if self._compact == self._present and len(self._counts) >= LEAST_COMPACT:
            return True
        return self._is_named_time

    @property
    def _is_named_time(self) -> bool:
        name = self._name.lower()
        return any(word in name for word in TIME_WORDS) or "ts" in name_parts(name)[-1:]


def _is_on_the_clock(days: float) -> bool:
    """Whether days with at least five decimals have whole minutes, or with six whole seconds."""
    minutes, seconds = days * 1440, days * 86_400
    return abs(minutes - round(minutes)) < 0.01 or abs(seconds - round(seconds)) < 0.05


def _targets(columns: tuple[ColumnDescription, ...], rows: int) -> tuple[str, ...]:
    """Columns with a target's usual name, then the last column, then those with few different values."""
    usable = [one for one in columns if one.kind not in ("empty", "bytes") and one.distinct > 1]
    ranked: dict[str, None] = {}
    for name in LABEL_NAMES:
        for column in usable:
            if column.name.strip().lower() == name:
                ranked[column.name] = None
    for column in usable[-1:]:
        if column.kind != "time":
            ranked[column.name] = None
    for column in usable:
        repeats = column.distinct < rows
        may_name = column.kind in ("word", "whole", "boolean")
        if may_name and column.distinct <= FEW_VALUES and repeats:
            ranked[column.name] = None
    return tuple(ranked)


def lists_words(column: ColumnDescription) -> bool:
    """Whether the words of a column are classes of things, as far as this device sees, so that a description may have them."""
    return not why_no_classes(column.name, column.words)
