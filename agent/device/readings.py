"""The readings of this machine that the conditions of its owner are compared with: power, load and time."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path

from covey.agent.conditions import Readings, Supply, is_charging

POWER = Path("/sys/class/power_supply")
FILES = ("type", "scope", "online", "status")


def read(power: Path = POWER) -> Readings:
    """The readings now. A machine without power supplies in `power` counts as one on external power."""
    local = time.localtime()
    cores = os.cpu_count() or 1
    minute = 60 * local.tm_hour + local.tm_min
    return Readings(is_charging(_supplies(power)), _load() / cores, minute)


def _load() -> float:
    """The load average of one minute; infinite if the system hides it, because the device cannot be called idle then."""
    try:
        load, _, _ = os.getloadavg()
    except OSError:
        return math.inf
    return load


def _supplies(power: Path) -> list[Supply]:
    if not power.is_dir():
        return []
    return [_supply(folder) for folder in sorted(power.iterdir())]


def _supply(folder: Path) -> Supply:
    """The files of one power supply; those that it does not have, or that cannot be read now, are left out."""
    found = {}
    for name in FILES:
        with suppress(OSError, UnicodeDecodeError):
            found[name] = (folder / name).read_text().strip()
    return found
