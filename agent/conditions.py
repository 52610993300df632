"""When a device may work: its owner's conditions, compared with readings of the device. Pure: nothing here reads anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CHARGING = "charging"
IDLE = "idle"
HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
IDLE_LOAD = 0.5  # load average of one minute per core, below which a device is idle
EXPECTED = "expected charging, idle or hours of the day such as 22:00-06:00"
POWERED = ("Charging", "Full", "Not charging")  # statuses of a battery whose charger is connected

Supply = Mapping[
    str, str
]  # one power supply of the kernel: the contents of its files, by file name


@dataclass(frozen=True)
class Readings:
    """The state of a device at one moment."""

    charging: bool  # it runs on external power
    load: float  # load average of one minute, per core
    minute: int  # local time, in minutes since midnight


def validated(condition: str) -> str:
    """The condition itself. Raises ValueError if it is none."""
    if condition in (CHARGING, IDLE):
        return condition
    start, end = _hours(condition)
    if start == end:
        raise ValueError(f"{condition!r} is not a time; {EXPECTED}")
    return condition


def unmet(conditions: Sequence[str], now: Readings) -> str:
    """Why the device may not work now, for people: the first condition that does not hold. Empty if all of them hold."""
    for condition in conditions:
        if condition == CHARGING:
            why = "" if now.charging else "the device is not charging"
        elif condition == IDLE:
            why = (
                "" if now.load < IDLE_LOAD else f"the device is busy (load {now.load:.1f} per core)"
            )
        else:
            why = "" if _is_within(condition, now.minute) else f"it is outside {condition}"
        if why:
            return f"not now: {why}"
    return ""


def is_charging(supplies: Sequence[Supply]) -> bool:
    """Whether a device runs on external power.

    A device without a battery always does. The batteries of a mouse or a keyboard (scope "Device") do not count.

    Args:
        supplies: those of /sys/class/power_supply, each with the contents of "type", "scope", "online" and "status".
    """
    batteries = []
    for supply in supplies:
        if supply.get("scope") == "Device":
            continue
        if supply.get("type") == "Battery":
            batteries.append(supply)
        elif supply.get("online", "0") != "0":
            return True
    return all(battery.get("status") in POWERED for battery in batteries)


def _hours(text: str) -> tuple[int, int]:
    """Start and end of HH:MM-HH:MM in minutes since midnight. Raises ValueError for another text."""
    found = HOURS.fullmatch(text)
    if found is None:
        raise ValueError(f"unknown condition {text!r}; {EXPECTED}")
    start_hour, start_minute, end_hour, end_minute = map(int, found.groups())
    return 60 * start_hour + start_minute, 60 * end_hour + end_minute


def _is_within(hours: str, minute: int) -> bool:
    """Whether a minute of the day lies in the hours, which may span midnight. The end is outside."""
    start, end = _hours(hours)
    if start < end:
        return start <= minute < end
    return minute >= start or minute < end
