"""The task section for tables: columns by name, target, missing cells, categories, scaling and model. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from covey.extras.proposals.choices import Choice, Proposal, autoencoder, table_model, window_model
from covey.extras.proposals.description import DataDescription, SeriesFacts
from covey.extras.proposals.features import DATE_SHAPE, Features, find_features, is_number, is_year
from covey.extras.proposals.fleet_columns import FleetColumn, fleet_columns, spelled_alike
from covey.extras.proposals.targets import Target, find_labels, find_target, find_usual
from covey.shared.errors import UserError
from covey.shared.scenario.classes import name_parts, why_no_classes
from covey.shared.scenario.columns import (
    EVERYTHING_ELSE,
    MAX_SPELLINGS,
    Notation,
    table_columns,
    width_of,
)
from covey.shared.sentences import counted, some

PAYS = 0.2  # of the squares around the mean
SHOWN = 8  # words in a remark
CLOCKS = frozenset(
    ("time", "date", "datetime", "timestamp", "ts", "clock", "seconds", "sec", "ms", "millis", "epoch", "zeit", "datum", "uhrzeit")
)  # fmt: skip
QUANTILE = 0.99  # of errors, above which an alarm is raised


def table_task(
    devices: Sequence[DataDescription],
    wishes: Sequence[str],
    proposal: Proposal,
    *,
    anomalies: bool = False,
    horizon: int | None = None,
) -> None:
    """Add the task section of a proposal.

    Args:
        devices: descriptions of tables.
        wishes: the target that the user asks for, or several labels.
        proposal: gets the section, differences between the devices, and warnings.
        anomalies: unusual rows are sought.
        horizon: rows to forecast.

    Raises:
        UserError: the target is not clear, or no column can be a feature.
    """
    if not anomalies and all(len(device.columns) == 1 for device in devices):
        raise UserError(
            f"{devices[0].source}: one column only ({devices[0].columns[0].name!r:.60}); expected a target and at least one "
            "feature, with commas, semicolons, tabs or bars between the cells of each line; unusual rows of one column are "
            "found with --anomalies"
        )
    columns = fleet_columns(devices)
    wish = next(iter(wishes), None)
    if len(wishes) > 1:
        target = find_labels(columns, wishes)
    elif anomalies:
        target = find_usual(columns, wish)
    else:
        target = find_target(columns, [device.columns[-1].name for device in devices], wish)
    window, features = _window_and_features(devices, columns, target, horizon)
    used = {*features.columns, target.name}
    _name_differences(devices, columns, target, used, proposal)
    for device in devices:
        if device.faulty_rows:
            rows_text = counted(device.faulty_rows, "row")
            proposal.warnings.append(
                f"{device.source}: {rows_text} with another number of cells than the header"
            )
        if device.nameless:
            proposal.differences.append(
                f"{device.source}: {counted(device.nameless, 'column')} without a name, not read"
            )
    proposal.warnings += [*target.warnings, *features.warnings]
    proposal.differences += target.unlabelled
    seasons = seasons_of(devices, features.times)
    elapsed = elapsed_of(devices, features.times, target)
    inputs = width_of(
        table_columns(
            features.columns,
            features.categories,
            features.times,
            flags=features.flags,
            seasons=seasons,
            elapsed=elapsed,
        )
    )
    rows = sum(device.samples for device in devices)
    task: dict[str, Choice] = {}
    task["features"] = Choice((inputs,), _why_inputs(features, inputs))
    if window is not None:
        why = f"{_why_inputs(features, inputs)}; then the rows of a window"
        task["features"] = Choice((inputs, window.rows), why)
    task["columns"] = Choice(
        tuple(features.columns),
        "the features by name; their order in a device's file does not matter",
    )
    if target.name:
        task["target"] = Choice(target.labels or target.name, target.why_this)
    if read := _notation(devices, proposal):
        task["read"] = read
    if target.unlabelled:
        task["drop_unlabelled"] = Choice(value=True, why=f"{'; '.join(target.unlabelled)}")
    if features.ignored:
        task["ignore"] = ignored_columns(features)
    if anomalies:
        task["anomalies"] = Choice(
            {"quantile": QUANTILE},
            f"of usual rows about {100 * (1 - QUANTILE):.0f} % raise an alarm",
        )
    if not target.labels and not (anomalies and target.classes is None):
        task["classes"] = Choice(target.classes, target.why_classes)
    if target.classes is None and not target.labels and not anomalies:
        task["target_scale"] = Choice(
            "federated",
            "the model learns better on standardised values; figures keep the data's units",
        )
    if features.optional:
        lacking = "; ".join(f"{name} on {where}" for name, where in features.optional.items())
        task["optional"] = Choice(tuple(features.optional), f"missing: {lacking}")
    if features.flags:
        task["flags"] = Choice(
            tuple(features.flags),
            "a second input is 1 where the cell is missing, as on a device without the sensor",
        )
    if features.categories:
        task["categories"] = _categories(features)
    if features.times:
        task["times"] = Choice(
            tuple(features.times),
            "points in time: four inputs each, for the hour and the day of the week",
        )
    if seasons:
        task["seasons"] = Choice(seasons, "most of a year: two inputs more, for the season")
    if elapsed:
        task["elapsed"] = Choice(
            elapsed,
            "the target rises or falls: on the latest fifth of the rows a line is better than the mean",
        )
    if window is not None:
        task["window"] = window.choice
    elif features.times:
        task["test"] = Choice(
            "latest",
            f"the last fifth of a device's rows by {features.times[0]!r} tests; random rows lie between rows that the "
            "model knows",
        )
    elif order := next((one.name for one in columns if _orders_rows(one, features)), None):
        task["test"] = Choice(
            "latest",
            f"the last fifth of a device's rows tests: {order!r} shows that they are in the order of time",
        )
    elif following := _following(devices):
        where = some([one.source for one in following])
        if target.classes is None or _last([one.series for one in following if one.series], target):
            task["test"] = Choice(
                "latest",
                f"the last fifth of a device's rows tests: neighbouring rows are alike on {where}, as those of a sensor; random rows "
                "lie between rows that the model knows",
            )
        else:
            proposal.warnings.append(
                f"{where}: neighbouring rows are alike, and the last ones lack classes, so that random rows test, between rows that the "
                "model knows: their figures flatter; add a column of times, or one that names recordings, for task.window"
            )
    task["impute"] = _impute(features)
    task["standardise"] = Choice("federated", "from sums over the fleet; no rows leave a device")
    task["model"] = table_model(inputs, rows)
    if window is not None:
        task["model"] = window_model(window.rows)
    if anomalies:
        task["model"] = autoencoder(inputs)
    proposal.sections["task"] = task


def _following(devices: Sequence[DataDescription]) -> list[DataDescription]:
    """The devices whose rows follow one another without a column of times, if they are half of all."""
    found = [one for one in devices if one.series is not None and not one.series.time]
    return found if 2 * len(found) >= len(devices) else []


def _last(found: Sequence[SeriesFacts], target: Target) -> bool:
    """Whether the last rows have all classes, where rows follow one another without a column of times."""
    return all(target.name in facts.lasting for facts in found if not facts.time)


def _recordings(devices: Sequence[DataDescription], target: Target) -> dict[str, str]:
    """Columns that are no features, because they name the recordings in rows that follow one another."""
    groups = [{*one.series.groups} for one in _following(devices) if one.series is not None]
    names = set.intersection(*groups) - {target.name, *target.labels} if groups else set()
    return dict.fromkeys(sorted(names), "each value in one run of rows, as names of recordings are")


def _orders_rows(column: FleetColumn, features: Features) -> bool:
    """Whether a column that is not used is a clock that counts the rows, or a date with two readings."""
    if column.name not in features.ignored or CLOCKS.isdisjoint(name_parts(column.name)):
        return False
    shapes = [shape for facts in column.facts for shape in facts.strange]
    return column.is_row_number or any(map(DATE_SHAPE.match, shapes))


def _window_and_features(
    devices: Sequence[DataDescription],
    columns: Sequence[FleetColumn],
    target: Target,
    horizon: int | None,
) -> tuple[SeriesWindow | None, Features]:
    """The window of a series, and the features: of a forecast the target is among them.

    A forecast is proposed where the user asks for it, or where the target is the only number.
    """
    is_of_values = target.classes is None and bool(target.name) and not target.labels
    if is_of_values and (forecast := find_forecast(devices, target, horizon)) is not None:
        features = find_features(columns, "", forecast.roles)
        numbers = {*features.columns} - {*features.times} - {*features.categories}
        if horizon or numbers == {target.name}:
            return forecast, features
    if horizon:
        raise UserError(
            f"--horizon {horizon}: a forecast needs values as target, rows in the order of one column of times on every "
            "device, and series that are longer"
        )
    window = find_window(devices, target) if target.name else None
    roles = _recordings(devices, target) | ({} if window is None else window.roles)
    roles |= dict.fromkeys(target.labels, "")
    return window, find_features(columns, target.name, roles)


def _why_inputs(features: Features, inputs: int) -> str:
    count = len(features.columns)
    if inputs == count:
        return f"inputs of the model: {counted(count, 'column')} of numbers"
    return f"inputs of the model, from {counted(count, 'column')}: words, times and flags give several each"


def ignored_columns(features: Features) -> Choice:
    """The columns that are not used, each with its reason."""
    reasons = [f"{name} ({reason})" for name, reason in features.ignored.items()]
    why = "not used: " + "; ".join(reasons)
    if not features.names_are_plain:
        return Choice((EVERYTHING_ELSE,), f"all other columns are {why}")
    return Choice(tuple(features.ignored), why)


def _notation(devices: Sequence[DataDescription], proposal: Proposal) -> Choice | None:
    """How the files of all devices are spelled together; None if all of them are as usual. Spellings that do
    not go together are a warning."""
    kinds: list[str] = []
    decimal = "," if any(device.read.decimal == "," for device in devices) else "."
    has_commas = [one.source for one in devices if one.read.decimal == "," and "," in one.signs]
    if has_commas:
        kinds.append(f"decimal commas on {some(has_commas)}")
    thousands = next((one.read.thousands for one in devices if one.read.thousands), None)
    if thousands is not None:
        where = [one.source for one in devices if one.read.thousands is not None]
        others = [one.source for one in devices if thousands in one.signs]
        if others or thousands == decimal:
            proposal.warnings.append(
                f"{some(where)}: {thousands!r} stands between thousands, and on {some(others or has_commas)} before "
                "decimals: write numbers alike on all devices"
            )
            thousands = None
        else:
            kinds.append(f"{thousands!r} between thousands on {some(where)}")
    marks: dict[str, list[str]] = {}
    units: dict[str, list[str]] = {}
    remarks: dict[str, list[str]] = {}
    for device in devices:
        for mark in device.read.missing:
            marks.setdefault(mark, []).append(device.source)
        for unit in device.read.units:
            units.setdefault(unit, []).append(device.source)
        for remark in device.remarks:
            remarks.setdefault(remark, []).append(device.source)
    proposal.differences += [f"{some(where)}: {remark}" for remark, where in remarks.items()]
    for mark, where in marks.items():
        kinds.append(f"{mark!r} stands for a missing cell on {some(where)}")
        earlier = [one.source for one in devices if mark not in one.read.missing and one.is_mixed]
        if earlier:
            proposal.differences.append(
                f"{some(earlier)}: described without {mark!r}, which stands for a missing cell elsewhere; describe it again "
                "with agent check --propose --json --also DESCRIPTION, that of another device"
            )
    kinds += [f"numbers with {unit} on {some(where)}" for unit, where in units.items()]
    forms: dict[str, list[str]] = {}
    encodings: dict[str, list[str]] = {}
    for device in devices:
        for form in device.read.dates:
            forms.setdefault(form, []).append(device.source)
        if device.read.encoding is not None:
            encodings.setdefault(device.read.encoding, []).append(device.source)
    kinds += [f"dates as {form} on {some(sources)}" for form, sources in forms.items()]
    for name, sources in encodings.items():
        kinds.append(
            f"text that is not UTF-8 on {some(sources)}, probably {name}: compare letters with accents"
        )
    names = next((one.read.names for one in devices if one.read.names), ())
    if names:
        kinds.append("the first line of the files is a sample")
    join = next((one.read.join for one in devices if one.read.join), ())
    if join:
        kinds.append(f"{some(join)} are one time")
    pivot = next((one.read.pivot for one in devices if one.read.pivot), None)
    if pivot is not None:
        kinds.append(
            f"a row of the files is a reading of what {pivot.name!r} names; here it has all of {pivot.every or 'one time'}"
        )
    if any((one.read.pivot, one.read.join) != (pivot, join) for one in devices):
        proposal.warnings.append(
            "the files of the devices differ in layout (read.pivot, read.join): describe each with agent check --propose --json "
            "--also DESCRIPTION, that of another device"
        )
    zeros = tuple(dict.fromkeys(name for one in devices for name in one.read.zeros))
    if zeros:
        kinds.append(f"a key that is not there is 0 or false: {some(zeros)}")
    read = Notation(
        names=names,
        join=join,
        pivot=pivot,
        zeros=zeros,
        decimal="," if decimal == "," and (has_commas or thousands == ".") else ".",
        dates=tuple(forms),
        encoding=next(iter(encodings), None),
        missing=tuple(marks)[:MAX_SPELLINGS],
        thousands=thousands,
        units=tuple(units)[:MAX_SPELLINGS],
    )
    if read == Notation():
        return None
    return Choice(read.model_dump(mode="json", exclude_defaults=True), "; ".join(kinds))


def _categories(features: Features) -> Choice:
    why = "columns of words: one input per word, and one for all other words; these words become part of the scenario"
    return Choice(features.categories, why)


def _impute(features: Features) -> Choice:
    if not features.missing and not features.optional:
        return Choice(
            "none", "no cell is missing; write mean if cells may be missing on other devices"
        )
    missing = (
        f"{counted(features.missing, 'missing cell')} (in {some(features.incomplete)})"
        if features.missing
        else "columns that devices lack"
    )
    return Choice(
        "mean", f"{missing}: numbers get the fleet's mean, a missing word counts as another word"
    )


def _name_differences(
    devices: Sequence[DataDescription],
    columns: Sequence[FleetColumn],
    target: Target,
    used: Collection[str],
    proposal: Proposal,
) -> None:
    """Columns that some devices lack or hold otherwise, another order, and classes that some devices lack."""
    for column in columns:
        if column.absent:
            proposal.differences.append(_absence(column))
        elif len(column.kinds) > 1 and not is_number(column):
            proposal.differences.append(
                f"{column.name!r} is not used: {column.kind_by_device()}; to use it, {column.how_to_agree}"
            )
        elif column.names_devices and column.name != target.name:
            proposal.differences.append(
                f"{column.name!r} is not used: it has one value on each device, so a model would learn to recognise "
                "the device; to use it nevertheless, move it from task.ignore to task.columns"
            )
        elif (
            column.kinds == ("word",)
            and column.name != target.name
            and (reason := why_no_classes(column.name, column.words))
        ):
            proposal.differences.append(_words_that_stay(column, reason))
        is_input = column.name in used and column.name != target.name
        if is_input and is_number(column) and (seems := _seems_a_key(column)):
            proposal.differences.append(
                f"{column.name!r}: {seems}; if they name rows, people or things, move it to task.ignore"
            )
        are_dates = column.kinds == ("time",) and all(one.dates_only for one in column.facts)
        if are_dates and column.distinct > 1:
            proposal.differences.append(
                f"{column.name!r}: all times are at 0:00, so that their hour means nothing; task.elapsed counts their days"
            )
    proposal.differences += _spelled_differently(columns)
    _name_orders(devices, proposal)
    _name_missing_classes(columns, target, proposal)


def _seems_a_key(column: FleetColumn) -> str:
    """Why numbers may name something, as far as one sees without their name; empty if they do not seem to."""
    if is_year(column) or not column.whole:
        return ""
    if column.unique:
        return "a different whole number in every row"
    return (
        "whole numbers in the order of the file, each in one run of rows"
        if column.is_in_runs
        else ""
    )


def _words_that_stay(column: FleetColumn, reason: str) -> str:
    """Why words are no proposed category, or which ones are, because their owner has said that they are classes."""
    if column.is_asked_for:
        return (
            f"{column.name!r}: {reason}; used, as --words asks: {some(column.known_words, SHOWN)}"
        )
    return f"{column.name!r} is not used: {reason}; if they are classes of things, --words {column.name} lists them"


def _spelled_differently(columns: Sequence[FleetColumn]) -> Iterator[str]:
    """Columns that devices lack because they spell its name in another way."""
    groups: dict[str, list[FleetColumn]] = {}
    for column in columns:
        groups.setdefault("".join(filter(str.isalnum, column.name.casefold())), []).append(column)
    for same in groups.values():
        devices = [device for column in same for device in column.holders]
        if len(same) > 1 and len(devices) == len({*devices}):
            names = " and ".join(repr(column.name) for column in same)
            where = "; ".join(f"{column.name!r} on {some(column.holders)}" for column in same)
            yield f"{names} seem to be one column ({where}): give it one name on all devices"


def _absence(column: FleetColumn) -> str:
    """Which devices lack a column, or if they are most, which ones have it."""
    lack, have = column.absent, column.holders
    if column.is_rare:
        return (
            f"{some(have)}: a column {column.name!r}, which {counted(len(lack), 'other device')} lack; it is not used. To use it, "
            "move it from task.ignore to task.columns and task.optional, and set impute"
        )
    verb = "has" if len(have) == 1 else "have"
    return f"{some(lack)}: no column {column.name!r}, which {counted(len(have), 'other device')} {verb}"


def _name_orders(devices: Sequence[DataDescription], proposal: Proposal) -> None:
    first = devices[0]
    order = [column.name for column in first.columns]
    others: list[str] = []
    for device in devices[1:]:
        own = [column.name for column in device.columns]
        same_columns = set(own) == set(order)
        if same_columns and own != order:
            others.append(device.source)
    if others:
        proposal.differences.append(
            f"{some(others)}: columns in another order than {first.source}, which does not matter"
        )


def _name_missing_classes(
    columns: Sequence[FleetColumn], target: Target, proposal: Proposal
) -> None:
    if target.classes is None:
        return
    column = next(one for one in columns if one.name == target.name)
    every = column.values or ()
    proposal.warnings += spelled_alike(every)
    for device, facts in column.by_device:
        absent = [value for value in every if value not in (facts.values or ())]
        if absent:
            proposal.differences.append(f"{device}: no rows of class {some(absent)}")


# -- windows over the rows of tables that are series of measurements. Pure ---------------------------------------------


LEAST_ROWS = 8  # of a window; classes that change faster belong to single rows
MIN_ROWS = 2  # of a window before a forecast
MOST_ROWS = 128
WINDOWS_PER_SERIES = 10  # without overlap, of the shortest series
DAY_S = 86_400.0
SEASONS_S = 300 * DAY_S  # a season is seen once, or nearly


@dataclass(frozen=True)
class SeriesWindow:
    """The proposed window, and the columns that it uses."""

    rows: int
    choice: Choice
    roles: dict[
        str, str
    ]  # columns that are no features; the reason to ignore each, or nothing if the window uses it


def find_window(devices: Sequence[DataDescription], target: Target) -> SeriesWindow | None:
    """The window for devices whose rows are in the order of their times, and whose class stays for many rows.

    None for other devices, and for a regression: it may be about single rows.
    """
    if target.classes is None or (ordered := _ordered(devices, target)) is None:
        return None
    found, group = ordered
    if group is None and not _last(found, target):
        return None
    run = min([facts.runs.get(target.name, 0.0) for facts in found])
    rows = _power_of_two(min(run, min(facts.shortest for facts in found) / WINDOWS_PER_SERIES))
    if rows < LEAST_ROWS:
        return None
    why = f"and a class stays for {run:.0f} rows: a sample is a part of that"
    return _window({"rows": rows, "stride": rows // 2}, why, found, group)


def find_forecast(
    devices: Sequence[DataDescription], target: Target, horizon: int | None
) -> SeriesWindow | None:
    """The window for a forecast of values, of devices whose rows are in the order of their times; None for others.

    Args:
        devices: descriptions of tables.
        target: the values.
        horizon: rows to forecast; None: a quarter of a window.
    """
    if target.classes is not None or (ordered := _ordered(devices, target)) is None:
        return None
    found, group = ordered
    shortest = min(facts.shortest for facts in found)
    rows = _power_of_two(shortest / WINDOWS_PER_SERIES)
    steps = horizon or max(rows // 4, 1)
    if rows < MIN_ROWS or rows + steps > shortest / 2:
        return None
    window = {"rows": rows, "stride": max(steps // 2, 1), "horizon": steps}
    why = f"and the target is forecast: {counted(steps, 'row')} after each window; --horizon chooses another number"
    return _window(window, why, found, group)


def seasons_of(devices: Sequence[DataDescription], times: Sequence[str]) -> tuple[str, ...]:
    """The columns of times whose position in the year is worth inputs: the rows of a device cover most of a year."""
    spans = {one.series.time: one.series.span_s for one in devices if one.series is not None}
    return tuple(time for time in times if spans.get(time, 0) >= SEASONS_S)


def elapsed_of(
    devices: Sequence[DataDescription], times: Sequence[str], target: Target
) -> tuple[str, ...]:
    """The column of times with which the target of most devices rises or falls, as their latest rows show."""
    if target.classes is not None or not target.name or target.labels:
        return ()
    paying = [
        one.series.time
        for one in devices
        if one.series is not None and one.series.trends.get(target.name, 0.0) > PAYS
    ]
    return tuple(time for time in times if 2 * paying.count(time) > len(devices))


def _ordered(
    devices: Sequence[DataDescription], target: Target
) -> tuple[list[SeriesFacts], str | None] | None:
    """The series of devices whose rows are in the order of one column of times, and the column that names them."""
    found = [device.series for device in devices if device.series is not None]
    if len(found) < len(devices) or len({facts.time for facts in found}) > 1:
        return None
    group = _common_group(found, target)
    if group is None and any(facts.groups for facts in found if facts.time):
        return None
    return found, group


def _window(
    window: dict[str, Any], why: str, found: Sequence[SeriesFacts], group: str | None
) -> SeriesWindow:
    time = found[0].time
    roles: dict[str, str] = {}
    series = "each file is one series"
    if group is not None:
        window = {**window, "group": group}
        roles[group] = ""
        series = f"{group!r} names the series"
    if time and max(facts.span_s for facts in found) < 2 * DAY_S:
        roles[time] = "less than two days, so that its hours and weekdays mean little"
    order = f"in the order of {time!r}" if time else "alike where they are neighbours"
    why = f"rows are {order}, {series}, {why}"
    return SeriesWindow(window["rows"], Choice(window, why), roles)


def _common_group(found: Sequence[SeriesFacts], target: Target) -> str | None:
    """The first column that names the series on every device. A file that is one series in itself has any."""
    groups = [facts.groups for facts in found if facts.groups]
    if not groups:
        return None
    for name in groups[0]:
        is_common = all(name in others for others in groups)
        if is_common and name != target.name:
            return name
    return None


def _power_of_two(limit: float) -> int:
    """The largest power of two up to a limit and to MOST_ROWS; 0 for a limit below 1."""
    if limit < 1:
        return 0
    rows = 1
    while 2 * rows <= min(limit, MOST_ROWS):
        rows *= 2
    return rows
