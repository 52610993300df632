"""The columns of a table in a task: what each of them holds, and how many inputs of the model it gives. Pure."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from covey.shared.scenario.section import Section, repeated
from covey.shared.sentences import printable
from covey.shared.written import FIRST

MAX_COLUMNS = 10_000
MAX_NAME = 128  # characters of a column's name
MAX_WORD = 64  # characters of a value of a categorical column
MAX_ROOM = 1000  # values of one categorical column
MAX_ROWS = 1 << 16  # of a window
MAX_WIDTH = 1 << 16  # inputs of a model from one row
DAY_S = 86_400
WEEK_S = 7 * DAY_S
YEAR_S = 365.2425 * DAY_S
TIME_INPUTS = 4  # sine and cosine of the position in the day, then in the week
SEASON_INPUTS = 2  # the same of the position in the year
MAX_SPELLINGS = 16  # of missing cells, and units
EVERYTHING_ELSE = "*"  # in task.ignore
SEPARATORS = ",;\t|"  # between the cells of a text file
DIRECTIVES = frozenset(
    "dmYyHMSf"
)  # of a form of dates; names of months would depend on a device's language
# of a label column, in the order in which they are tried
LABEL_NAMES = ("label", "class", "target", "y")


def _visible(text: str) -> str:
    """Refuse text that a terminal would obey: names and words of a task are shown on other machines."""
    if printable(text) != text or text != text.strip():
        raise ValueError("expected text without control characters and without spaces at its ends")
    return text


ColumnName = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_visible)]
Word = Annotated[str, Field(min_length=1, max_length=MAX_WORD), AfterValidator(_visible)]
Words = Annotated[tuple[Word, ...], Field(max_length=MAX_ROOM)]
Room = Annotated[int, Field(ge=1, le=MAX_ROOM)]


def is_word(text: object) -> bool:
    """Whether a value of a categorical column can get an input of its own."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_WORD:
        return False
    return printable(text) == text == text.strip()


class Vocabulary(Section):
    """The values that a fleet has found in a categorical column, and the number of inputs that are reserved for them."""

    values: Words = Field(description="Values with an input of their own, in this order.")
    room: Room = Field(
        description="Inputs of the column, without the one for all other values. Those beyond the values stay 0."
    )


class Window(Section):
    """Consecutive rows of a table as one sample: a task's features are then [inputs per row, rows]."""

    rows: int = Field(ge=2, le=MAX_ROWS, description="Rows of one window.")
    stride: int | None = Field(
        None,
        ge=1,
        le=MAX_ROWS,
        description="Rows between the starts of two consecutive windows. null: as many as a window has, so that windows do "
        "not overlap.",
    )
    group: ColumnName | None = Field(
        None,
        description="Column that names the series of each row, such as a recording or a machine: a window never mixes two. "
        "Rows of a series count in the order of the file. null: the whole file is one series.",
    )
    label: Literal["last", "majority"] = Field(
        "last",
        description="The label of a window: that of its last row, or the most frequent one (of equally frequent ones, the "
        "latest).",
    )

    horizon: int | None = Field(
        None,
        ge=1,
        le=MAX_ROWS,
        json_schema_extra=FIRST,
        description="Forecasts: the targets of a window are the values of the target in this number of rows after it. The "
        "target may be among the columns too. null: a window has one label, of its own rows.",
    )

    @property
    def step(self) -> int:
        """Rows between the starts of two consecutive windows."""
        return self.stride or self.rows

    @property
    def targets(self) -> int:
        """Targets of a window."""
        return self.horizon or 1

    @property
    def span(self) -> int:
        """Rows of a window with those after it that hold its targets."""
        return self.rows + (self.horizon or 0)

    @property
    def overlap(self) -> int:
        """How many of the windows before a window share rows with it, or targets."""
        return (self.span - 1) // self.step


class Anomalies(Section):
    """How a device decides that a sample is unusual: the model fails to reconstruct it."""

    quantile: float = Field(
        0.99,
        gt=0,
        lt=1,
        json_schema_extra=FIRST,
        description="The threshold of an agent is this quantile of the errors of its training samples; that of a model is the "
        "mean over the agents that trained it. Of usual samples, about the rest raises an alarm.",
    )


def _date_form(form: str) -> str:
    """A form that names year, month and day, and cannot fit a plain number."""
    directives = re.findall("%(.)", form)
    if not DIRECTIVES.issuperset(directives):
        raise ValueError(f"{form!r}: expected %d, %m, %Y or %y, %H, %M, %S and %f only")
    if not {"d", "m"} <= {*directives} or not {"Y", "y"} & {*directives}:
        raise ValueError(f"{form!r}: expected a day, a month and a year, as in %d.%m.%Y %H:%M")
    if not re.search(r"%d[^%\d]|%m[^%\d]", form):
        raise ValueError(f"{form!r}: expected a sign between day, month and year")
    return form


def _encoding(name: str) -> str:
    try:
        "".encode(name)
        return codecs.lookup(name).name
    except (LookupError, UnicodeError):
        raise ValueError(f"unknown encoding {name!r}; expected a name such as cp1252") from None


UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class Pivot(Section):
    """A table with a reading in each row, as one with a column for each quantity."""

    name: ColumnName = Field(
        description="Column that names the quantity of a reading. Of names with slashes, such as topics, the folders that all of a file have in common are left out."
    )
    value: ColumnName | tuple[ColumnName, ...] = Field(
        description="Column of the readings; of several, such as one for each type, the one that is not empty."
    )
    time: ColumnName = Field(description="Column of their times, as written.")
    every: str | None = Field(
        None,
        pattern=rf"^[1-9]\d{{0,4}}({'|'.join(UNITS_S)})$",
        json_schema_extra=FIRST,
        description="The time that a row stands for, such as 10min: it has the mean of numbers, the last word, and nothing for a "
        "quantity without a reading. null: only readings of the same time are one row.",
    )
    by: ColumnName | None = Field(
        None, description="Column that names the thing that was read, whose rows are its own."
    )

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value,) if isinstance(self.value, str) else self.value

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.name, *self.values, self.time, *((self.by,) if self.by else ()))

    @property
    def step_s(self) -> float | None:
        """The time that a row stands for, in seconds."""
        if self.every is None:
            return None
        count = self.every.rstrip("sminhd")
        return int(count) * UNITS_S[self.every.removeprefix(count)]


class Notation(Section):
    """How the files of the devices spell numbers, times and missing cells. The usual spelling is read as well."""

    decimal: Literal[".", ","] = Field(
        ".", description='",": numbers may have a decimal comma, as in 38,0.'
    )
    dates: tuple[Annotated[str, Field(max_length=32), AfterValidator(_date_form)], ...] = Field(
        (),
        max_length=8,
        description='Forms of dates, such as ["%d.%m.%Y %H:%M"], that are tried in this order.',
    )
    encoding: Annotated[str, AfterValidator(_encoding)] | None = Field(
        None,
        description="Encoding of text files that are neither UTF-8 nor UTF-16 with its mark, such as cp1252.",
    )
    names: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Names of the columns of text files that begin with a sample: [time, temp, hum]. Empty: the first line has them.",
    )
    join: tuple[ColumnName, ...] = Field(
        (),
        max_length=6,
        description="Columns that are one time together: a day and a clock, or year, month, day and further. They are read as one, by the name of the first.",
    )
    pivot: Pivot | None = Field(
        None,
        description="For tables with a reading in each row: {name: entity_id, value: state, time: last_changed, every: 10min}. null: a row is a sample.",
    )
    zeros: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Columns of JSON in which a key that is not there is 0, because a protocol leaves out zeros.",
    )
    separator: Literal[",", ";", "\t", "|"] | None = Field(
        None,
        description="The sign between cells. null: the most frequent one of a file's first line.",
    )
    missing: tuple[Annotated[str, Field(min_length=1, max_length=MAX_WORD)], ...] = Field(
        (),
        max_length=MAX_SPELLINGS,
        description='Cells that count as missing besides empty ones, nan, na, n/a and null, in any case: ["?", offline].',
    )
    thousands: Literal[",", ".", "'", " "] | None = Field(
        None,
        description="The sign between thousands, as in 1,234.5; a space stands for those that do not break too. null: "
        "numbers have none.",
    )
    units: tuple[
        Annotated[str, Field(min_length=1, max_length=MAX_WORD), AfterValidator(_visible)], ...
    ] = Field(
        (),
        max_length=MAX_SPELLINGS,
        description="What may stand before or behind a number, as in $12, 12 % or 45 mm: it is left out.",
    )

    @model_validator(mode="after")
    def _check_signs(self) -> Self:
        if self.thousands == self.decimal:
            raise ValueError(
                f"thousands: {self.thousands!r} is the sign before decimals too; choose another one, or set decimal"
            )
        return self


class TargetScale(Section):
    """Mean and standard deviation of a regression target."""

    mean: float = Field(description="Mean of the target, in the units of the data.")
    std: float = Field(
        gt=0, description="Standard deviation of the target, in the units of the data."
    )


Category = Room | Words | Vocabulary


@dataclass(frozen=True)
class TableColumn:
    """One feature column of a task."""

    name: str
    kind: Literal["number", "category", "time"] = "number"
    words: tuple[str, ...] = ()  # of a category: the values that have an input
    room: int = 0  # of a category: inputs without the one for all other values
    flagged: bool = False  # of a number: a second input is 1 where the cell is missing
    seasonal: bool = False  # of a time: two more inputs have its position in the year
    elapsed: bool = False  # a number: the days until the times of a column

    @property
    def width(self) -> int:
        """Inputs of the model: one for a number, two with a flag; for a category one per value and one for all others; four for
        a time, six with its season."""
        match self.kind:
            case "category":
                return self.room + 1
            case "time":
                return TIME_INPUTS + SEASON_INPUTS * self.seasonal
        return 1 + self.flagged


def table_columns(
    names: Sequence[str],
    categories: Mapping[str, Category],
    times: Sequence[str],
    *,
    flags: Sequence[str] = (),
    seasons: Sequence[str] = (),
    elapsed: Sequence[str] = (),
) -> tuple[TableColumn, ...]:
    """The feature columns of a task, in its order, and behind them the days of those that are `elapsed`."""
    found: list[TableColumn] = []
    for name in names:
        if name in times:
            found.append(TableColumn(name, "time", seasonal=name in seasons))
            continue
        if name in flags:
            found.append(TableColumn(name, flagged=True))
            continue
        found.append(_column(name, categories.get(name)))
    return (*found, *[TableColumn(name, elapsed=True) for name in elapsed])


def _column(name: str, category: Category | None) -> TableColumn:
    match category:
        case None:
            return TableColumn(name)
        case int(room):
            return TableColumn(name, "category", (), room)
        case Vocabulary(values=words, room=room):
            return TableColumn(name, "category", words, room)
        case words:
            return TableColumn(name, "category", words, len(words))


def width_of(columns: Sequence[TableColumn]) -> int:
    """Inputs of the model for one row."""
    return sum([column.width for column in columns])


def wrong_names(columns: Sequence[str], roles: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Why the names of a task's keys do not go together, one sentence per fault.

    Args:
        columns: `task.columns`.
        roles: names of columns by key. Those of `categories`, `elapsed`, `flags`, `impute`, `optional`, `seasons` and `times` must be among the columns, those of
            all other keys must not.
    """
    if twice := repeated(columns):
        yield f"columns: {twice} occur more than once; list each column once"
    for key, names in roles.items():
        inside = set(names) & set(columns)
        outside = set(names) - set(columns)
        if key in ("categories", "elapsed", "flags", "impute", "optional", "seasons", "times"):
            if outside:
                yield f"{key}: {sorted(outside)} are not in columns; add them or correct the names"
        elif inside:
            yield f"{key}: {sorted(inside)} are in columns too; a column has one role: remove one"


def wrong_vocabulary(name: str, category: Category) -> str:
    """Why a category cannot be used; empty if it can."""
    words: tuple[str, ...] = ()
    room = MAX_ROOM
    match category:
        case int():
            return ""
        case Vocabulary():
            words = category.values
            room = category.room
        case _:
            words = category
            if not words:
                return f"categories.{name}: no values; list them, or give a number: the most values that the fleet may find"
    if twice := repeated(words):
        return f"categories.{name}: {twice} occur more than once; list each value once"
    if len(words) > room:
        return f"categories.{name}: {len(words)} values, but room for {room}; raise room"
    return ""
