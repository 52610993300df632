"""Which columns of a table are features, and of which kind; every other column has a reason to be left out. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from covey.extras.proposals.fleet_columns import FleetColumn, spelled_alike
from covey.shared.errors import UserError
from covey.shared.scenario.classes import name_parts, why_no_classes
from covey.shared.scenario.columns import MAX_COLUMNS, ColumnName, is_word
from covey.shared.sentences import counted, some

# words of a category that a scenario lists: of more, the most frequent ones
MAX_LISTED = 64
EXACT_BITS = 53  # of whole numbers that a float64 holds
FIRST_YEAR, LAST_YEAR = 1500, 2200
SECONDS = (631_152_000, 4_102_444_800)  # since 1970: from the year 1990 to 2100
THING_NAMES = frozenset({"id", "key", "uuid"})
KEY_NAMES = THING_NAMES | {"index", "row", "nr", "no", "number"}
MANY_THINGS = 20  # of fewer things, such as shops, their numbers may be an input
CALENDAR = frozenset(
    ("second", "minute", "hour", "day", "week", "weekday", "wday", "month", "quarter", "of", "in", "the", "year")
)  # fmt: skip
DATE_SHAPE = re.compile(
    r"9{1,4}([./-])9{1,2}\1(9{4}|99)\b"
)  # as descriptions have it, without digits
VALID_NAME: TypeAdapter[str] = TypeAdapter(ColumnName)

Category = tuple[str, ...]


@dataclass
class Features:
    """The roles of all columns but the target."""

    columns: list[str] = field(default_factory=list)
    categories: dict[str, Category] = field(default_factory=dict)
    times: list[str] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)  # name -> why
    warnings: list[str] = field(default_factory=list)
    missing: int = 0  # cells of the features
    incomplete: list[str] = field(default_factory=list)  # features with missing cells
    optional: dict[str, str] = field(
        default_factory=dict
    )  # name -> which devices have no value in it
    flags: list[str] = field(default_factory=list)  # numbers among these

    @property
    def names_are_plain(self) -> bool:
        """Whether a scenario can list the ignored columns by name."""
        return all(_is_plain(name) for name in self.ignored)


def find_features(
    columns: Sequence[FleetColumn], target: str, roles: Mapping[str, str] | None = None
) -> Features:
    """The features of a table.

    Args:
        columns: of all devices.
        target: the column to predict.
        roles: columns that are no features, each with the reason to ignore it; an empty reason: the task uses the column
            in another way.

    Raises:
        UserError: no column can be one.
    """
    found = Features()
    for column in columns:
        if column.name == target:
            continue
        reason = _unsuited(column)
        if spelled_alike([column.name, target]):
            reason = "the target's name in another spelling"
        if roles is not None and column.name in roles:
            reason = roles[column.name]
            if not reason:
                continue
        if reason:
            found.ignored[column.name] = reason
            continue
        _add(column, found)
    if not found.columns:
        reasons = [f"{name}: {reason}" for name, reason in found.ignored.items()]
        raise UserError(
            f"no column can be a feature ({some(reasons) or 'the target is the only one'}); add "
            "columns that all devices have"
        )
    if len(found.columns) > MAX_COLUMNS:
        raise UserError(
            f"{len(found.columns)} feature columns, at most {MAX_COLUMNS} are possible; remove some, "
            "or save the table as an .npz with x and y"
        )
    return found


def _add(column: FleetColumn, found: Features) -> None:
    """Enter a feature, its category, and what is missing or wrong in it."""
    found.columns.append(column.name)
    found.missing += column.missing
    if column.missing:
        found.incomplete.append(column.name)
    if column.without_values:
        found.optional[column.name] = some(column.without_values)
        if is_number(column):
            found.flags.append(column.name)
    if column.kinds == ("word",):
        found.categories[column.name] = _category(column)
        for warning in spelled_alike(found.categories[column.name]):
            found.warnings.append(f"column {column.name!r}: {warning}")
        if (otherwise := column.otherwise_worded) is not None:
            devices, words = otherwise
            found.warnings.append(
                f"column {column.name!r}: no other device has the words of {some(devices)} ({some(words)}): write the same "
                "words on all devices, or move the column to task.ignore"
            )
    if column.kinds == ("time",):
        found.times.append(column.name)
    for device, facts in column.by_device:
        if facts.faults:
            seen = ", ".join(repr(word) for word in facts.strange)
            found.warnings.append(
                f"{device}: {counted(facts.faults, 'cell')} of {column.name!r} without a {facts.kind} ({seen}): "
                "correct each, or leave it empty"
            )


def _category(column: FleetColumn) -> Category:
    """The words that get an input of their own."""
    return tuple(sorted([word for word in column.known_words if is_word(word)][:MAX_LISTED]))


def _unsuited(column: FleetColumn) -> str:
    """Why a column is no feature; empty if it can be one."""
    if column.is_rare:
        return f"missing on {some(column.without_values)}"
    if not _is_plain(column.name):
        return "its name has no characters, too many, or unusual ones"
    if not column.kinds:
        return "empty"
    if column.kinds == ("bytes",):
        return "bytes, or lists of more than 64 values or of unlike lengths"
    if len(column.kinds) > 1 and not is_number(column):
        return f"not the same everywhere: {column.kind_by_device()}"
    if any(map(DATE_SHAPE.match, (shape for facts in column.facts for shape in facts.strange))):
        return "dates whose day and month could be exchanged, or of no known form: name it in task.read.dates"
    if column.names_devices:
        return "one value per device, which names the device"
    if column.distinct < 2 and not column.missing:
        return "has one value only"
    return key_reason(column)


def key_reason(column: FleetColumn) -> str:
    """Why a column names rows and does not describe them; empty if it is no key."""
    if column.kinds == ("word",):
        reason = "" if column.is_asked_for else why_no_classes(column.name, column.words)
        return reason or ("" if column.known_words else "no words that may leave their device")
    if column.is_row_number and not is_year(column):
        return "counts the rows: whole numbers in the order of the file, or without a gap" + (
            ", or seconds since 1970: then list it in task.times" if _may_be_seconds(column) else ""
        )
    if (
        column.unique
        and column.whole
        and max([facts.bits or 0 for facts in column.facts]) > EXACT_BITS
    ):
        return f"whole numbers of more than {EXACT_BITS} bits: keys"
    last_part = name_parts(column.name)[-1:]
    if column.kinds != ("number",) or not column.whole or not KEY_NAMES.issuperset(last_part):
        return ""
    if column.unique:
        return "a different whole number in every row, and the name of a key"
    if column.distinct > MANY_THINGS and THING_NAMES.issuperset(last_part):
        return "whole numbers with the name of a key: they name things"
    return ""


def _may_be_seconds(column: FleetColumn) -> bool:
    """Whether all numbers of a column could be seconds since 1970 of a likely year."""
    first, last = SECONDS
    return all(
        first <= one <= last
        for facts in column.facts
        for one in (facts.smallest, facts.largest)
        if one is not None
    )


def is_number(column: FleetColumn) -> bool:
    """Whether all devices have numbers in a column, some perhaps as false and true."""
    return bool(column.kinds) and {*column.kinds} <= {"number", "boolean"}


def is_year(column: FleetColumn) -> bool:
    """Whether whole numbers are years, which rise too: by their size and the column's name."""
    is_named = not {"year", "yr", "jahr"}.isdisjoint(name_parts(column.name))
    numbers = [
        one for facts in column.facts for one in (facts.smallest, facts.largest) if one is not None
    ]
    return (
        is_named
        and column.whole
        and bool(numbers)
        and all(FIRST_YEAR <= one <= LAST_YEAR for one in numbers)
    )


def is_part_of_time(name: str) -> bool:
    """Whether a column has the name of a part of a time, such as minute or day_of_week."""
    parts = name_parts(name)
    return bool(parts) and CALENDAR.issuperset(parts)


def _is_plain(name: str) -> bool:
    try:
        VALID_NAME.validate_python(name)
    except ValidationError:
        return False
    return True
