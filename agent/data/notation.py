"""How a text table spells numbers, times, missing cells and letters: as a task declares it, or as its own rows show.

Whatever a file's notation, the rest of the program meets numbers with a decimal point and times in ISO 8601. A spelling that has
two readings stays as it is, and a remark names its column.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Literal

from covey.agent.data.cells import Cells
from covey.agent.data.values import NUMBER, moment_in_form, spelled, value_of, without_disguise
from covey.shared.scenario.columns import MAX_SPELLINGS, SEPARATORS, Notation, is_word

MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # the first bytes of a file
FALLBACK = "cp1252"  # proposed for text that is not UTF-8: Western European, as Windows writes it
COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
SPACES = "\u00a0\u2007\u2009\u202f"  # narrow ones and those that do not break, between thousands
APOSTROPHES = "\u2019"
SIGNS: tuple[Literal[",", ".", "'", " "], ...] = (",", ".", "'", " ")  # between thousands
ONE_GROUP = re.compile(r"[+-]?\d{1,3}([,. '])\d{3}")
GROUPED = re.compile(
    r"(?P<whole>[+-]?\d{1,3}(?:(?P<sign>[,. '])\d{3})(?:(?P=sign)\d{3})*)(?P<rest>[,.]\d*)?"
)
UNIT_NUMBER = re.compile(
    r"(?P<before>[^\d\s.,+-]{0,4})\s*(?P<number>[+-]?[\d.,' ]*\d)\s*(?P<after>[^\d\s.,:;+][^\d\s.,:;]{0,7})?"
)
DAYS = (
    "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%d/%m/%y", "%m/%d/%Y", "%m/%d/%y", "%d-%m-%Y", "%d-%m-%y",
    "%m-%d-%Y", "%m-%d-%y", "%Y/%m/%d", "%y/%m/%d", "%y-%m-%d",
)  # fmt: skip
CLOCKS = ("", " %H:%M", " %H:%M:%S")
NUMBER_SIGNS = frozenset("0123456789+-.,' ")
MOSTLY = 0.8  # of a column's cells have a form: the others may be faults
FAULT_IN = 5  # cells, at most
HALF = 0.5  # of a column's cells are numbers: the others may be marks
MAX_MARKS = 3  # of one column
MANY_NUMBERS = 20  # different ones among which one word is no class
# of a missing cell in a column of numbers or times, besides texts without letters and digits
MARK_WORDS = frozenset({"none", "nil", "nat", "missing", "unknown", "undefined", "n.a.", "n.d."})
EVERYWHERE = re.compile(
    r"\?+|#n/?a!?|#(value|ref|div/0|name|num)[!?]|<(na|null|none|nan|missing)>|nat", re.IGNORECASE
)


# -- as a task declares it ------------------------------------------------------------------------------------


def encoding_of(path: Path, notation: Notation) -> str:
    """The encoding of a text file: by its first bytes, else UTF-8, else the one that the task declares."""
    with path.open("rb") as file:
        if marked := MARKS.get(file.read(2)):
            return marked
    if notation.encoding is None or is_utf8(path):
        return "utf-8-sig"
    return notation.encoding


def separator_of(header: str, notation: Notation) -> str:
    """The character between the cells of a text file: the declared one, else the most frequent one of its first line outside of
    quotes. The line may name it as spreadsheets do (`sep=;`)."""
    if named := named_separator(header):
        return named
    return notation.separator or max(SEPARATORS, key=re.sub('"[^"]*"', "", header).count)


def named_separator(line: str) -> str | None:
    """The separator that a first line such as `sep=;` names; None for any other line."""
    text = line.strip('\r\n\ufeff "').lower()
    if text.startswith("sep=") and len(text) <= len("sep=") + 1:
        return text.removeprefix("sep=") or "\t"  # a tab is stripped in some exports
    return None


def plain(cells: Cells, notation: Notation) -> Cells:
    """The cells of a column in the usual spelling: numbers with a point, times in ISO 8601, missing cells empty."""
    usual = notation.decimal == "." and not notation.dates and not notation.thousands
    if usual and not notation.units and not notation.missing:
        return cells
    # a number is one mark however it is written: -999 and -999.0
    marks = frozenset(spelled(mark).casefold() for mark in notation.missing)
    found: list[object] = []
    for cell in cells:
        if marks and spelled(cell).casefold() in marks:
            found.append("" if isinstance(cell, str) else None)
        else:
            found.append(_plain(cell, notation) if isinstance(cell, str) else cell)
    return found


def _plain(cell: str, notation: Notation) -> str:
    text = _one_sign(without_disguise(cell.strip()))
    text = _without_unit(text, notation.units)
    if notation.thousands and (grouped := GROUPED.fullmatch(text)):
        is_declared = grouped["sign"] == notation.thousands
        if is_declared and (grouped["rest"] or notation.decimal)[0] == notation.decimal:
            text = grouped["whole"].replace(grouped["sign"], "") + (grouped["rest"] or "")
    if notation.decimal == "," and COMMA_NUMBER.fullmatch(text):
        return text.replace(",", ".")
    if NUMBER.fullmatch(text):
        return text
    for form in notation.dates:
        if (moment := moment_in_form(text, form)) is not None:
            return moment.isoformat(" ")
    return cell


def _one_sign(text: str) -> str:
    """Thousands with one kind of space and of apostrophe."""
    return re.sub(f"(?<=\\d)[{SPACES}](?=\\d)", " ", text).replace(APOSTROPHES, "'")


def _without_unit(text: str, units: Sequence[str]) -> str:
    """A number without the unit around it; any other text as it is."""
    for unit in units:
        for rest in (text.removeprefix(unit), text.removesuffix(unit)):
            number = rest.strip()
            if rest != text and number and set(number) <= NUMBER_SIGNS:
                return number
        if len(text) > 1 and text[0] in "+-" and text[1:].startswith(unit):  # -$12
            return text[0] + text[1:].removeprefix(unit).strip()
    return text


def is_utf8(path: Path) -> bool:
    """Whether a file is UTF-8 text."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            while file.read(1 << 20):
                pass
    except UnicodeDecodeError:
        return False
    return True


# -- as the rows show it --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundNotation:
    """The notation of a file, and what in it has two readings."""

    notation: Notation = field(default_factory=Notation)
    remarks: tuple[str, ...] = ()
    has_points: bool = (
        False  # of decimals; a comma or a point between thousands would change these numbers
    )
    has_commas: bool = False


@dataclass(frozen=True)
class _Texts:
    """The texts of a column in the first rows, in the shape in which numbers are looked for."""

    name: str
    cells: tuple[str, ...]  # those that are there
    numbers: tuple[str, ...]  # their numbers without a unit
    unit: str  # around all of them; empty: none

    @property
    def are_numbers(self) -> bool:
        """Whether most of the cells are numbers of some spelling."""
        return bool(self.cells) and len(self.numbers) >= MOSTLY * len(self.cells)


def notation_of(
    texts: dict[str, list[str]],
    separator: str = "",
    encoding: str | None = None,
    known_marks: Collection[str] = (),
) -> FoundNotation:
    """The notation of columns of texts, by name; a decimal comma is unlikely in a file with commas between its cells.

    `known_marks` stand for missing cells too: another device of the fleet shows them.
    """
    remarks: list[str] = []
    missing: dict[str, None] = dict.fromkeys(known_marks)
    known = {mark.casefold() for mark in known_marks}
    columns: list[_Texts] = []
    for name, cells in texts.items():
        present = [cell for cell in cells if value_of(cell).kind != "missing"]
        marks = known | _marks([cell for cell in present if cell.casefold() not in known])
        missing |= {cell: None for cell in present if cell.casefold() in marks and is_word(cell)}
        columns.append(_column(name, [cell for cell in present if cell.casefold() not in marks]))
    numeric = [column for column in columns if column.are_numbers]
    has_decimal_commas = any(_has_decimal_commas(one.numbers) for one in numeric)
    decimal: Literal[".", ","] = "," if has_decimal_commas else "."
    thousands = _thousands(numeric, decimal, separator)
    points = any(_has_decimals(one.numbers, ".") for one in numeric)
    commas = any(_has_decimals(one.numbers, ",") for one in numeric)
    units = {one.unit: None for one in numeric if is_word(one.unit)}
    dates = {form: None for column in columns if (form := _date_form(column.cells))}
    notation = Notation(
        decimal="," if "." in (thousands or "") else decimal,
        dates=tuple(dates),
        encoding=encoding,
        missing=tuple(missing)[:MAX_SPELLINGS],
        thousands=thousands,
        units=tuple(units)[:MAX_SPELLINGS],
    )
    for column in numeric:
        remarks += _two_readings(column, notation)
    return FoundNotation(notation, tuple(remarks), points, commas)


def _column(name: str, cells: Sequence[str]) -> _Texts:
    """The numbers in a column, with the one unit that is around them, if there is one."""
    plain_ones: list[str] = []
    with_units: list[tuple[str, str]] = []
    for cell in cells:
        text = _one_sign(without_disguise(cell))
        if _is_number(text):
            plain_ones.append(text)
        elif (found := _with_unit(text)) is not None:
            with_units.append(found)
    units = {unit for _, unit in with_units}
    if len(units) != 1 or len(with_units) < len(plain_ones):
        return _Texts(name, tuple(cells), tuple(plain_ones), "")
    numbers = [*plain_ones, *(number for number, _ in with_units)]
    return _Texts(name, tuple(cells), tuple(numbers), units.pop())


def _with_unit(text: str) -> tuple[str, str] | None:
    """The number and the unit of a text such as $1,200, 12 % or 45 mm; None if it has no unit, or is a code such as A12."""
    if NUMBER.fullmatch(text) or (found := UNIT_NUMBER.fullmatch(text.lstrip("+-"))) is None:
        return None
    sign = "-" if text.startswith("-") else ""
    before, after = found["before"], found["after"] or ""
    if bool(before) == bool(after):
        return None
    is_money = any(unicodedata.category(letter) == "Sc" for letter in before)
    is_code = (
        before and not is_money and not (before.isupper() and len(before) == 3 and " " in text)
    )
    if is_code or not _is_number(number := found["number"]):
        return None
    return sign + number, before or after


def _is_number(text: str) -> bool:
    """Whether a text without a unit is a number in any of the spellings."""
    return any(form.fullmatch(text) for form in (NUMBER, COMMA_NUMBER, GROUPED))


def _marks(cells: Sequence[str]) -> set[str]:
    """The texts in a column that stand for missing cells, in lower case."""
    others = Counter(cell.casefold() for cell in cells if value_of(cell).kind == "word")
    marks = {cell for cell in others if EVERYWHERE.fullmatch(cell)}
    left = {cell for cell in others if cell not in marks and not _is_spelled(cell)}
    words = sum(others[cell] for cell in left)
    values = len(cells) - others.total() + sum(others[cell] for cell in others if _is_spelled(cell))
    if words == len(cells) and len(left) == 1:  # a column of nothing but marks
        return marks | {cell for cell in left if _is_sign(cell)}
    if values < HALF * (values + words):
        return marks
    signs = {cell for cell in left if _is_sign(cell) or cell in MARK_WORDS}
    left -= signs
    are_many = values >= MOSTLY * len(cells) or len({*cells}) > MANY_NUMBERS
    if len(left) == 1 and are_many:  # again and again, such as offline; <0.006 is a value
        are_times = any(
            value_of(cell).kind == "time" for cell in cells
        )  # among which 0000-00-00 is none
        signs |= {
            cell
            for cell in left
            if others[cell] > 1 and (are_times or not any(map(str.isdigit, cell)))
        }
    return marks | signs if len(signs) <= MAX_MARKS else marks


def _is_spelled(text: str) -> bool:
    """Whether a text is a number in a spelling of its own."""
    is_number = GROUPED.fullmatch(text) or COMMA_NUMBER.fullmatch(text)
    return bool(is_number) or _with_unit(text) is not None


def _is_sign(text: str) -> bool:
    """Whether a text has neither a letter nor a digit."""
    return bool(text) and not any(map(str.isalnum, text))


def _has_decimal_commas(numbers: Sequence[str]) -> bool:
    """Whether numbers have a comma that cannot stand between thousands, and no other sign speaks against it."""
    if any(
        GROUPED.fullmatch(one) and "," in one and "." in one and one.rindex(",") > one.index(".")
        for one in numbers
    ):
        return True
    with_comma = [one for one in numbers if COMMA_NUMBER.fullmatch(one)]
    others = [one for one in numbers if not COMMA_NUMBER.fullmatch(one)]
    are_whole = all("," not in one and ("." not in one or GROUPED.fullmatch(one)) for one in others)
    return are_whole and any(not _may_be_thousands(one) for one in with_comma)


def _may_be_thousands(number: str) -> bool:
    return ONE_GROUP.fullmatch(number) is not None and not number.lstrip("+-").startswith("0")


def _has_decimals(numbers: Sequence[str], sign: str) -> bool:
    """Whether one of the numbers has a sign that can only begin decimals."""
    return any(sign in one and not (_grouped_by(one, sign)) for one in numbers)


def _grouped_by(number: str, sign: str) -> bool:
    found = GROUPED.fullmatch(number)
    return found is not None and found["sign"] == sign and not number.lstrip("+-").startswith("0")


def _thousands(
    columns: Sequence[_Texts], decimal: str, separator: str
) -> Literal[",", ".", "'", " "] | None:
    """The sign between the thousands of a file; None if it has none, or one that may begin decimals."""
    for sign in SIGNS:
        grouped = [one for column in columns for one in column.numbers if _grouped_by(one, sign)]
        may_be_decimals = any(_has_decimals(column.numbers, sign) for column in columns)
        if not grouped or may_be_decimals or sign == decimal == ",":
            continue
        is_clear = True
        if sign == ".":
            is_clear = decimal == "," or _are_german(columns, separator)
        elif sign == ",":
            is_clear = separator == "," or any(one.count(",") > 1 or "." in one for one in grouped)
        if is_clear:
            return sign
    return None


def _are_german(columns: Sequence[_Texts], separator: str) -> bool:
    """Whether points stand between thousands: each has exactly three digits behind it, and all other numbers of its column are
    whole and below a thousand, in a file with semicolons; or a number has two of them."""
    for column in columns:
        grouped = [one for one in column.numbers if _grouped_by(one, ".")]
        if any(one.count(".") > 1 for one in grouped):
            return True
        others = [one for one in column.numbers if not _grouped_by(one, ".")]
        are_small = bool(others) and all(len(one.lstrip("+-")) <= 3 for one in others)
        if separator == ";" and grouped and are_small:
            return True
    return False


def _two_readings(column: _Texts, notation: Notation) -> Iterator[str]:
    """A remark on numbers that may be thousands or have three decimals."""
    for sign in ",.":
        grouped = [one for one in column.numbers if _grouped_by(one, sign)]
        others = [one for one in column.numbers if not _grouped_by(one, sign)]
        all_whole = bool(others) and all(one.lstrip("+-").isdigit() for one in others)
        is_open = sign not in (notation.thousands, notation.decimal)
        if grouped and (is_open or (sign == "." == notation.decimal and all_whole)):
            key = f"task.read.thousands: '{sign}'"
            if is_open and sign == ",":
                key += " or task.read.decimal: ','"
            yield (
                f"column {column.name!r}: {grouped[0]!r} may be a thousand or have three decimals; "
                f"if it is a thousand, set {key}"
            )


@lru_cache(maxsize=1)
def _forms() -> tuple[str, ...]:
    return tuple(day + clock for day, clock in product(DAYS, CLOCKS))


def _date_form(cells: Sequence[str]) -> str | None:
    """The only form of dates that fits all cells of a column, or most of them; None if there is none, or 03/04/2025 could be two
    days."""
    if not cells or any(value_of(cell).kind in ("number", "time") for cell in cells):
        return None
    first = cells[: len(cells) // FAULT_IN + 1]  # one of them fits the form, if most cells do
    counts: Counter[str] = Counter()
    for form in _forms():
        if any(moment_in_form(cell, form) for cell in first):
            counts[form] = sum(moment_in_form(cell, form) is not None for cell in cells)
    fitting = [form for form, count in counts.items() if count == len(cells)]
    fitting = fitting or [form for form, count in counts.items() if count > MOSTLY * len(cells)]
    return fitting[0] if len(fitting) == 1 else None
