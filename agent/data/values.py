"""One function decides which value a cell of a table has, as a text and as a typed value of a Parquet file alike. Pure.

Texts arrive here in the usual spelling (`notation.plain`). Times of day and durations are numbers: seconds. A point in time may be
spelled in many ways, as long as it has one reading.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Literal, NamedTuple
from unicodedata import combining, normalize

Kind = Literal["missing", "number", "boolean", "time", "word", "bytes"]

MISSING_WORDS = frozenset({"", "nan", "na", "n/a", "null"})  # a missing cell, in lower case
BOOLEANS = {"true": True, "false": False}
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ENDLESS = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
LEADING_ZERO = re.compile(r"[+-]?0\d")  # of a code: 007 is not the word 7
AS_FORMULA = re.compile(r'="([^"]*)"')  # how spreadsheets keep leading zeros
AS_DEBIT = re.compile(
    r"\(([^\w\s():]{0,3}\d[\d.,' ]*%?)\)|(\d[\d.,' ]*)-"
)  # how accountants write a minus
MINUS_SIGNS = str.maketrans({"\u2212": "-", "\u2012": "-", "\u2013": "-"})
DURATION = re.compile(
    r"(?:(?P<days>[+-]?\d{1,9})\s*days?,?\s*\+?)?"
    r"(?:(?P<sign>[+-])?(?P<hours>\d{1,3}):(?P<minutes>[0-5]\d)(?::(?P<seconds>[0-5]\d(?:\.\d+)?))?(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?)?"
)


class Value(NamedTuple):
    """The kind of a cell, and its content as that."""

    kind: Kind
    content: float | bool | datetime | str | None = None

    @property
    def number(self) -> float:
        """As a column of numbers has it: 0 or 1 for false and true; NaN if it is none."""
        if self.kind in ("number", "boolean"):
            assert isinstance(self.content, float | bool)  # noqa: S101 - these kinds have no other
            return float(self.content)
        return math.nan


MISSING = Value("missing")


def value_of(cell: object) -> Value:
    """The value of a cell, whatever holds it."""
    match cell:
        case None:
            return MISSING
        case str():
            return _of_text(cell.strip())
        case bool():
            return Value("boolean", cell)
        case int() | float() | Decimal():
            return _of_number(cell)
        case datetime() if str(cell) == "NaT":
            return MISSING
        case datetime() | date() if not _is_likely(cell):
            return Value("word", str(cell))
        case datetime():
            return Value("time", cell)
        case date():
            return Value("time", datetime(cell.year, cell.month, cell.day))
        case time():
            return _of_number(
                cell.hour * 3600 + cell.minute * 60 + cell.second + cell.microsecond / 1e6
            )
        case timedelta():
            return _of_number(cell.total_seconds())
        case bytes() | bytearray() | list() | dict():
            return Value("bytes")
    return Value("word", str(cell).strip())


def _of_number(cell: float | Decimal) -> Value:
    try:
        number = float(cell)
    except OverflowError:
        number = math.inf
    return MISSING if math.isnan(number) else Value("number", number)


def _of_text(text: str) -> Value:
    lower = text.lower()
    if lower in MISSING_WORDS:
        return MISSING
    if lower in BOOLEANS:
        return Value("boolean", BOOLEANS[lower])
    number = number_written(text)
    if number is not None:
        return Value("number", number)
    moment = moment_written(text)
    if moment is not None:
        return Value("time", moment)
    return Value("word", text)


def is_missing(cell: object) -> bool:
    """Whether a cell has no value."""
    return value_of(cell).kind == "missing"


def number_written(text: str) -> float | None:
    """The number that a text spells, also as a time of day or a duration; None if it spells none. 1_033 is a word."""
    text = without_disguise(text)
    if NUMBER.fullmatch(text) or ENDLESS.fullmatch(text):
        return float(text)
    if ":" not in text and "day" not in text:
        return None
    found = DURATION.fullmatch(text)
    if found is None or (found["days"] is None and found["hours"] is None):
        return None
    hours = int(found["hours"] or 0)
    if half := found["half"]:
        if not 1 <= hours <= 12:
            return None
        hours = hours % 12 + 12 * (half in "Pp")
    seconds = hours * 3600 + int(found["minutes"] or 0) * 60 + float(found["seconds"] or 0)
    return int(found["days"] or 0) * 86_400 + (-seconds if found["sign"] == "-" else seconds)


def without_disguise(text: str) -> str:
    """A text without what spreadsheets put around it, and with the minus of a keyboard."""
    if formula := AS_FORMULA.fullmatch(text):
        text = formula[1].strip()
    if debit := AS_DEBIT.fullmatch(text):
        text = f"-{(debit[1] or debit[2]).strip()}"
    return text.translate(MINUS_SIGNS)


def spelled(cell: object) -> str:
    """A cell as a word: one spelling for each boolean, and for each number but a code with leading zeros."""
    if cell is None:
        return "None"
    value = value_of(cell)
    match value.kind:
        case "boolean":
            return "true" if value.content else "false"
        case "number" if isinstance(cell, int):
            return str(cell)  # exact: a key may have more digits than a float
        case "number" if isinstance(cell, float | Decimal):
            return plain_number(value.number)
        case "number":
            text = without_disguise(str(cell).strip())
            is_plain = NUMBER.fullmatch(text) and not LEADING_ZERO.match(text)
            if is_plain and text.lstrip("+-").isdigit():
                return "0" if text == "-0" else text.removeprefix("+")
            return plain_number(value.number) if is_plain else text
    return str(cell).strip()


def plain_number(number: float) -> str:
    """A number without needless decimals."""
    return str(int(number)) if number.is_integer() else str(number)


# -- points in time ----------------------------------------------------------------------------------


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHEET_DAY = datetime(1899, 12, 30)  # from which spreadsheets count: 45931.25 is six o'clock
SHEET_DAYS = (32_874.0, 73_051.0)  # from 1990 to 2099
PLAUSIBLE = (631_152_000, 4_133_980_800)  # seconds from 1990 to 2100: 1700000000 is a time, 3 none
WRITTEN_YEARS = (1700, 2100)  # of dates in texts, as typed values, and as eight digits or more
FACTORS = (1, 1e3, 1e6, 1e9)  # numbers count seconds, milliseconds, microseconds or nanoseconds
FIRST_OF_SIX_DIGITS = 2021
COMPACT = {6: "%Y%m", 8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}  # digits -> form
LEAST_DIGITS = 4  # of a date
MAX_LENGTH = 48
# in English, German, Dutch, French, Spanish, Italian and Portuguese, without accents
MONTHS = (
    "january januari janvier enero gennaio janeiro",
    "february februari fevrier febrero febbraio fevereiro",
    "march marzo maerz mrz maart mrt mars marco",
    "aprile avril abril",
    "mayo maio mei maggio",
    "june junio juin giugno junho",
    "july julio juillet luglio julho",
    "augustus aout agosto",
    "september septembre septiembre setiembre settembre setembro",
    "october octobre oktober octubre ottobre outubro",
    "november novembre noviembre novembro",
    "december decembre dezember dezembro diciembre dicembre",
)
WEEKDAYS = re.compile(r"\b(mon|tue|wed|thu|fri|sat|sun)[a-z]*\b\.?,?|^[a-z]+\.?, (?=\d\d?\D)")
CLOCK = re.compile(
    r"(?P<gap>^|[Tt\s]|(?<=\d{4}):)(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<part>\d+))?)?"
    r"(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?"
    r"(?:\s*(?:(?P<offset>[+-]\d\d:?\d\d|[+-]\d\d(?!\d))|Uhr\b|[A-Z]{1,5}\b))?(?:\[[\w/+-]+\])?(?=\s|$)"
)
YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})(?:\2(\d{1,2}))?")
MONTH_FIRST = re.compile(r"(\d{1,2})[-/](\d{4})")
MONTHS_OF = {"q": 3, "h": 6, "m": 1}  # a quarter, a half and a month of a year, as 2024Q3
PARTS_OF_YEARS = (
    re.compile(r"(?P<y>\d{4})[\s/:-]?(?P<of>[qhm])(?P<part>\d{1,2})"),
    re.compile(r"(?P<of>[qhm])(?P<part>\d{1,2})[\s/-](?P<y>\d{4})"),
    re.compile(r"(?P<part>\d)(?P<of>[qh])[\s/-]?(?P<y>\d{4})"),
)
NAMED_MONTHS = (
    re.compile(r"(?P<m>[a-z]{3,10})\.?[\s-](?P<d>\d{1,2})(?:st|nd|rd|th)?,?[\s-]\s*(?P<y>\d{4}|\d\d)"),
    re.compile(r"(?P<d>\d{1,2})(?:st|nd|rd|th)?\.?(?: de )?[\s/-]*(?P<m>[a-z]{3,10})\.?,?(?: de )?[\s/-]*(?P<y>\d{4}|\d\d)"),
    re.compile(r"(?P<m>[a-z]{3,10})\.?[\s,-]+(?P<y>\d{4})"),
    re.compile(r"(?P<y>\d{4})[\s-](?P<m>[a-z]{3,10})(?:[\s-](?P<d>\d{1,2}))?"),
)  # fmt: skip


def moment_of(cell: object) -> datetime | None:
    """The point in time in a cell, also as a number; None if it has none."""
    value = value_of(cell)
    match value.content:
        case datetime() as moment:
            return moment
        case bool() | None | str():
            return None
        case number:
            return None if isinstance(cell, time | timedelta) else moment_counted(number)


def moment_counted(number: float) -> datetime | None:
    """A point in time as a number: 20251025, 20251025130000, since 1970, or days of a spreadsheet; None if its year is not a likely one."""
    if not math.isfinite(number):
        return None
    if number > 0 and number == int(number) and (form := COMPACT.get(len(str(int(number))))):
        if (moment := moment_in_form(str(int(number)), form)) is not None and _is_likely(moment):
            return moment
        # 251025: from 2021 on no year and month has the same digits
        if form == "%Y%m" and (moment := moment_in_form(str(int(number)), "%y%m%d")) is not None:
            return moment if FIRST_OF_SIX_DIGITS <= moment.year < WRITTEN_YEARS[1] else None
    if SHEET_DAYS[0] <= number < SHEET_DAYS[1]:
        return SHEET_DAY + timedelta(seconds=round(number * 86_400))
    for factor in FACTORS:
        if PLAUSIBLE[0] <= number / factor < PLAUSIBLE[1]:
            return EPOCH + timedelta(seconds=number / factor)
    return None


def _is_likely(moment: date) -> bool:
    """Whether a point in time has a likely year: the year 1 or 9999 stands for none in some databases."""
    return WRITTEN_YEARS[0] <= moment.year <= WRITTEN_YEARS[1]


def moment_in_form(text: str, form: str) -> datetime | None:
    """A point in time in a form that a task names, its clock in any of the usual spellings."""
    for candidate in (text, clock_in_24_hours(text)):
        try:
            return datetime.strptime(candidate, form)
        except ValueError:
            continue
    return None


def moment_written(text: str) -> datetime | None:
    """A point in time of a likely year with one reading: ISO 8601, a month or quarter of a year, or a month by its name;
    None for others.

    The clock counts as written: a zone at its end has no effect.
    """
    if len(text) > MAX_LENGTH or sum(map(str.isdigit, text)) < LEAST_DIGITS:
        return None
    moment = _moment_written(text)
    return moment if moment is not None and _is_likely(moment) else None


def _moment_written(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    clock = CLOCK.search(text)
    day = text if clock is None else f"{text[: clock.start()]} {text[clock.end() :]}"
    if (found := _day_written(" ".join(day.split()))) is None:
        return None
    return found if clock is None else _at(found, clock)


def clock_in_24_hours(text: str) -> str:
    """The text with its clock as in 13:05, and without a zone."""
    clock = CLOCK.search(text)
    moment = None if clock is None else _at(datetime(2000, 1, 1), clock)
    if clock is None or moment is None:
        return text
    form = "%H:%M" if clock["second"] is None else "%H:%M:%S"
    return f"{text[: clock.start()]}{clock['gap']}{moment.strftime(form)}{text[clock.end() :]}"


def _at(day: datetime, clock: re.Match[str]) -> datetime | None:
    """The day at the time of a clock, which may show a leap second, or 24:00; None if it shows no time."""
    hour, minute, second = (int(clock[name] or 0) for name in ("hour", "minute", "second"))
    if half := clock["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half in "Pp")
    is_end = (hour, minute, second) == (24, 0, 0)
    is_leap = second == 60
    part = float(f"0.{clock['part'] or 0}")
    try:
        moment = day.replace(
            hour=0 if is_end else hour, minute=minute, second=59 if is_leap else second
        )
    except ValueError:
        return None
    return moment + timedelta(days=is_end, seconds=is_leap + part)


def _day_written(text: str) -> datetime | None:
    if found := YEAR_FIRST.fullmatch(text):
        year, _, month, day = found.groups()
        return _day(int(year), int(month), int(day or 1))
    if found := MONTH_FIRST.fullmatch(text):
        return _day(int(found[2]), int(found[1]), 1)
    plain = "".join(sign for sign in normalize("NFKD", text.lower()) if not combining(sign))
    lower = " ".join(WEEKDAYS.sub("", plain).split())
    for form in PARTS_OF_YEARS:
        if (found := form.fullmatch(lower)) and int(found["y"]) in range(*WRITTEN_YEARS):
            return _day(int(found["y"]), MONTHS_OF[found["of"]] * (int(found["part"]) - 1) + 1, 1)
    for form in NAMED_MONTHS:
        if (found := form.fullmatch(lower)) is None:
            continue
        named = found.groupdict()
        if month := _month_named(named["m"]):
            year = int(named["y"])
            if len(named["y"]) == 2:
                year += 1900 if year >= 69 else 2000
            return _day(year, month, int(named.get("d") or 1))
    return None


@lru_cache(maxsize=256)
def _month_named(begin: str) -> int | None:
    """The month whose name begins so, in any of the languages; None if there is none, or more than one."""
    found = [place for place, names in enumerate(MONTHS, 1) if f" {begin}" in f" {names}"]
    return found[0] if len(found) == 1 else None


def _day(year: int, month: int, day: int) -> datetime | None:
    try:
        return datetime(year, month, day)
    except ValueError:
        return None
