"""Windows over the rows of tables that are series of measurements. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.shared.proposal.choices import Choice
from covey.shared.proposal.description import DataDescription, SeriesFacts
from covey.shared.proposal.targets import Target
from covey.shared.sentences import counted

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


def _ordered(
    devices: Sequence[DataDescription], target: Target
) -> tuple[list[SeriesFacts], str | None] | None:
    """The series of devices whose rows are in the order of one column of times, and the column that names them."""
    found = [device.series for device in devices if device.series is not None]
    if len(found) < len(devices) or len({facts.time for facts in found}) > 1:
        return None
    group = _common_group(found, target)
    if group is None and any(facts.groups for facts in found):
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
    if max(facts.span_s for facts in found) < 2 * DAY_S:
        roles[time] = "less than two days, so that its hours and weekdays mean little"
    why = f"rows are in the order of {time!r}, {series}, {why}"
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
