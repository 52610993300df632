"""Which column is the target, and whether it holds classes or values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from covey.extras.proposals.features import is_part_of_time, is_year, key_reason
from covey.extras.proposals.fleet_columns import FleetColumn
from covey.shared.errors import UserError
from covey.shared.scenario.classes import MAX_CLASSES, ROWS_PER_CLASS
from covey.shared.scenario.columns import LABEL_NAMES
from covey.shared.sentences import counted, some

RARE = 0.05  # a class with a smaller share of the rows is worth a warning

Classes = int | tuple[str, ...] | None


@dataclass(frozen=True)
class Target:
    """The proposed target."""

    name: str  # empty: none, where unusual rows are sought without labels
    why_this: str
    classes: Classes  # as task.classes; None: a regression, or several labels
    why_classes: str
    warnings: tuple[str, ...] = ()
    unlabelled: tuple[str, ...] = ()  # devices with rows without the target
    labels: tuple[str, ...] = ()  # the columns, where each row has each of several labels or not


def find_target(columns: Sequence[FleetColumn], last: Sequence[str], wish: str | None) -> Target:
    """The target of a table.

    Args:
        columns: of all devices.
        last: the name of the last column of each device.
        wish: the column that the user asks for.

    Raises:
        UserError: it is not clear which column is the target, a device lacks it, or it cannot be one.
    """
    name, why = _chosen(columns, last, wish)
    column = next(one for one in columns if one.name == name)
    if column.absent:
        raise UserError(
            f"the target {name!r} is not a column of {some(column.absent)}; add it there, or choose "
            "another one with --target"
        )
    try:
        classes, why_classes = classes_of(column)
    except UserError as error:
        others = [one for one in candidates(columns) if one != name]
        if not others or len(column.kinds) > 1:
            raise
        raise UserError(f"{error}; it could be {some(others)}") from None
    unlabelled = _unlabelled(column)
    warnings: list[str] = []
    if column.is_constant_everywhere:
        warnings.append(
            f"the target {name!r} has one value on each device, so that no device learns to tell its values apart"
        )
    if classes is not None and column.counts:
        rows = [f"{value} {count}" for value, count in column.counts.items()]
        why_classes += f"; rows: {some(rows, MAX_CLASSES)}"
        warnings += _rare(column)
    return Target(name, why, classes, why_classes, tuple(warnings), tuple(unlabelled))


def find_labels(columns: Sequence[FleetColumn], wishes: Sequence[str]) -> Target:
    """Several columns as labels.

    Raises:
        UserError: one of them does not exist, a device lacks it, or it has other cells than 0 and 1, or false and true.
    """
    for name in wishes:
        wish, _ = _chosen(columns, (), name)
        column = next(one for one in columns if one.name == wish)
        values = {value.lower() for value in column.values or ("",)}
        if column.absent or not (values <= {"0", "1"} or values <= {"false", "true"}):
            raise UserError(
                f"--target {name}: expected 0 and 1, or false and true, on all devices, because there are several targets"
            )
    return Target(
        wishes[0], "several labels, each of which a row has or not", None, "", labels=tuple(wishes)
    )


def find_usual(columns: Sequence[FleetColumn], wish: str | None) -> Target:
    """The label of usual and unusual rows, by the wish or a usual name; without one all rows count as usual.

    Raises:
        UserError: the column does not exist, or does not hold classes.
    """
    usual = [one.name for one in columns if one.name.strip().lower() in LABEL_NAMES]
    if wish is None and len(usual) != 1:
        return Target("", "", None, "")
    found = find_target(columns, (), wish)
    if found.classes is None:
        raise UserError(
            f"the target {found.name!r} holds values; expected classes, one of them usual"
        )
    column = next(one for one in columns if one.name == found.name)
    names = sorted(column.values or (), key=lambda name: -column.counts.get(name, 0))
    why = "the most frequent one is usual; of the others no row trains"
    return replace(found, classes=tuple(names), why_classes=why, warnings=())


def _chosen(
    columns: Sequence[FleetColumn], last: Sequence[str], wish: str | None
) -> tuple[str, str]:
    """The name of the target, and why it is the one."""
    names = [column.name for column in columns]
    if wish is not None:
        if wish not in names:
            raise UserError(
                f"no column {wish!r} for --target; the columns are {some(names)}: choose one of them"
            )
        return wish, "as --target names it"
    usual = [
        one.name
        for one in columns
        if one.name.strip().lower() in LABEL_NAMES and not one.is_constant_everywhere
    ]
    if len(usual) > 1:
        raise UserError(
            f"several columns could be the target: {some(usual)}; choose one with --target"
        )
    if usual:
        return usual[0], "a usual name of a target; --target chooses another column"
    different = list(dict.fromkeys(last))
    if len(different) > 1:
        raise UserError(
            f"it is not clear which column is the target: the last ones are {some(different)}; "
            "choose one with --target"
        )
    column = next(one for one in columns if one.name == different[0])
    others = [one for one in candidates(columns) if one != column.name]
    if others and (fault := _why_no_target(column)):
        return others[0], (
            f"the last column that could be one, {column.name!r} {fault}; --target chooses another one: "
            f"{some(others[1:]) or 'there is none'}"
        )
    return column.name, "the last column; --target chooses another one"


def _why_no_target(column: FleetColumn) -> str:
    """Why nobody would predict a column, as what it does; empty if somebody might."""
    if column.kinds == ("time",):
        return "holds times"
    if column.kinds == ("bytes",):
        return "holds bytes"
    if column.is_constant_everywhere:
        return "has one value on each device"
    if column.distinct < 2:
        return "has fewer than two different values"
    if is_part_of_time(column.name):
        return "is a part of a time"
    if is_year(column):
        return "holds years"
    if reason := key_reason(column):
        return f"is a key ({reason})"
    return ""


def candidates(columns: Sequence[FleetColumn]) -> list[str]:
    """The columns that could be the target, the last one first."""
    found: list[str] = []
    for column in reversed(columns):
        try:
            classes_of(column)
        except UserError:
            continue
        if not column.absent and not _why_no_target(column):
            found.append(column.name)
    return found


def _rare(column: FleetColumn) -> list[str]:
    """What a user should know about a class that an accuracy hides."""
    total = sum(column.counts.values())
    rarest = min(column.counts, key=lambda value: column.counts[value])
    rows = column.counts[rarest]
    if rows >= RARE * total:
        return []
    return [
        f"class {rarest!r} has {rows} of {total} rows: a model that never names it has an accuracy of up to "
        f"{100 * (1 - rows / total):.1f} %. Set task.measure: recall, and try training.weights: balanced"
    ]


def _unlabelled(column: FleetColumn) -> list[str]:
    """The devices with rows without the target, and how many."""
    found: list[str] = []
    for device, facts in column.by_device:
        if facts.missing:
            found.append(
                f"{device}: {counted(facts.missing, 'row')} without target {column.name!r}, left out (task.drop_unlabelled)"
            )
    return found


def classes_of(column: FleetColumn) -> tuple[Classes, str]:
    """The classes of a target as the task names them, None for a regression, and the reason.

    Raises:
        UserError: it has too many words, one value only, or not the same kind on all devices.
    """
    advice = "choose another column with --target"
    if len(column.kinds) > 1:
        raise UserError(
            f"the target {column.name!r} is not the same everywhere: {column.kind_by_device()}; "
            f"{column.how_to_agree}, or {advice}"
        )
    values = column.values
    if not column.kinds or column.distinct < 2:
        raise UserError(f"the target {column.name!r} has fewer than two different values; {advice}")
    if column.kinds == ("number",):
        return _of_numbers(column)
    if column.kinds == ("time",):
        raise UserError(f"the target {column.name!r} holds times; {advice}")
    if column.kinds == ("boolean",) and values is not None:
        return values, "false and true"
    if values is None or _too_rare(column):
        raise UserError(
            f"the target {column.name!r} has {column.counted} different words in {column.cells} "
            f"rows, too many for classes; {advice}"
        )
    return values, "the words in the target column"


def _too_rare(column: FleetColumn) -> bool:
    return column.distinct * ROWS_PER_CLASS > column.cells


def _of_numbers(column: FleetColumn) -> tuple[Classes, str]:
    values = column.values
    if not column.whole:
        return None, "the target has fractions: a regression"
    if values is None or column.distinct > MAX_CLASSES:
        return None, (
            f"the target has {column.counted} different whole numbers, more than "
            f"{MAX_CLASSES}: a regression"
        )
    if _too_rare(column):
        return None, (
            f"the target has {column.distinct} different whole numbers in {column.cells} rows, so "
            "they hardly repeat: a regression"
        )
    numbers = sorted(int(value) for value in values)
    count = len(numbers)
    reason = (
        f"{count} different whole numbers: classes. If they are amounts, write `classes: null` and "
        "`target_scale: federated`"
    )
    if numbers == list(range(count)):
        return count, reason
    return tuple(str(number) for number in numbers), reason
