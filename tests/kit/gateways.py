"""Files of a fleet of gateways for tests: weather and a load that follows from it, of two kinds of sites, and faults in one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = ("temp", "humidity", "wind", "load")
TARGET = "load"
COUNT, ROWS = 10, 80
FAULTY = "gw-3"
TASK: Mapping[str, Any] = {
    "features": [3],
    "columns": list(COLUMNS[:3]),
    "target": TARGET,
    "classes": None,
    "standardise": "federated",
    "target_scale": "federated",
    "model": {"name": "linear"},
}
Rows = np.ndarray[Any, np.dtype[np.float64]]
Fault = Callable[[Rows], Rows]


def rows(number: int, count: int = ROWS, kinds: int = 2) -> Rows:
    """The rows of one gateway: (count, 4). Sites of another kind are warmer, and their load rises with the temperature."""
    rng = np.random.default_rng(number)
    kind = number % kinds
    temp = rng.normal(12 + 4 * kind + rng.normal(0, 1), 4, count)
    humidity = np.clip(rng.normal(60 + rng.normal(0, 3), 9, count), 0, 100)
    wind = rng.gamma(4, 1.2, count)
    slope = 3 if kind else -3
    load = 150 + slope * (temp - 14) + 0.3 * humidity + rng.normal(0, 3, count)
    return np.column_stack([temp, humidity, wind, load])


def written(path: Path, values: Rows, columns: Sequence[str] = COLUMNS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(f"{value:.3f}" for value in row) for row in values]
    path.write_text("\n".join([",".join(columns), *lines, ""]))
    return path


def gateways(
    folder: Path, faults: Mapping[int, Fault] | None = None, count: int = COUNT
) -> dict[str, Path]:
    """A file for each gateway, by its name.

    Args:
        folder: for the files.
        faults: by the number of a gateway: what becomes of its rows.
        count: of gateways.
    """
    found: dict[str, Path] = {}
    for number in range(count):
        own = rows(number)
        if faults and number in faults:
            own = faults[number](own)
        found[f"gw-{number}"] = written(folder / f"gw-{number}.csv", own)
    return found


def scaled(place: int, factor: float, shift: float = 0.0) -> Fault:
    """One column in another unit."""

    def fault(values: Rows) -> Rows:
        changed = values.copy()
        changed[:, place] = factor * changed[:, place] + shift
        return changed

    return fault


def constant(place: int, value: float) -> Fault:
    return scaled(place, 0.0, value)


def sticking(place: int, value: float, every: int = 50) -> Fault:
    """One value in all rows but a few."""

    def fault(values: Rows) -> Rows:
        changed = values.copy()
        changed[np.arange(len(values)) % every != 5, place] = value
        return changed

    return fault


def swapped(one: int, other: int) -> Fault:
    def fault(values: Rows) -> Rows:
        changed = values.copy()
        changed[:, [one, other]] = changed[:, [other, one]]
        return changed

    return fault
