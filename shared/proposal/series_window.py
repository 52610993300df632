"""Windows over the rows of tables that are series of measurements. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.shared.proposal.choices import Choice
from covey.shared.proposal.description import DataDescription, SeriesFacts
from covey.shared.proposal.targets import Target

LEAST_ROWS = 8  # of a window; classes that change faster belong to single rows
MOST_ROWS = 128
WINDOWS_PER_SERIES = 10  # without overlap, of the shortest series
DAY_S = 86_400.0


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
    found = [device.series for device in devices if device.series is not None]
    if len(found) < len(devices) or target.classes is None:
        return None
    if len({facts.time for facts in found}) > 1:
        return None
    group = _common_group(found, target)
    has_groups = any(facts.groups for facts in found)
    if has_groups and group is None:
        return None
    run = min([facts.runs.get(target.name, 0.0) for facts in found])
    rows = _power_of_two(min(run, min(facts.shortest for facts in found) / WINDOWS_PER_SERIES))
    if rows < LEAST_ROWS:
        return None
    time = found[0].time
    window: dict[str, Any] = {"rows": rows, "stride": rows // 2}
    roles: dict[str, str] = {}
    series = "each file is one series"
    if group is not None:
        window["group"] = group
        roles[group] = ""
        series = f"{group!r} names the series"
    if max(facts.span_s for facts in found) < 2 * DAY_S:
        roles[time] = "less than two days, so that its hours and weekdays mean little"
    why = f"rows are in the order of {time!r}, {series}, and a class stays for {run:.0f} rows: a sample is a part of that"
    return SeriesWindow(rows, Choice(window, why), roles)


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
