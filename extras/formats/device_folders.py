"""The data of several devices in one folder, one entry each: a simulated fleet has an agent for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data.dataset import Array, Dataset, with_test
from covey.agent.data.fit import fit
from covey.agent.data.load import is_loadable, load
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task

# the fields of a Dataset that have an entry per sample
ROWS = (
    "features",
    "targets",
    "test_features",
    "test_targets",
    "groups",
    "test_groups",
    "populations",
)


@dataclass(frozen=True)
class DeviceEntry:
    """The data of one device."""

    path: Path
    name: str  # below the folder
    population: str | None  # the folder around it, if devices lie in folders of populations


def device_entries(folder: Path) -> tuple[DeviceEntry, ...]:
    """The devices of a folder, sorted by name; empty if the folder is the data of a single device, or none.

    A device is a table, an .npz file or a folder that `agent start --data` accepts. Two or more of them make a folder of
    devices. Folders of devices in a folder are populations: their names are the true clusters.
    """
    devices = _devices_in(folder)
    if devices:
        return _entries(devices, None)
    found: list[DeviceEntry] = []
    for population in _visible(folder):
        if not population.is_dir():
            continue
        found += _entries(_devices_in(population), population.name)
    return tuple(found)


def _entries(paths: Sequence[Path], population: str | None) -> tuple[DeviceEntry, ...]:
    """Paths as entries; in a population, its name comes first."""
    entries: list[DeviceEntry] = []
    for path in paths:
        name = path.name
        if population is not None:
            name = f"{population}/{name}"
        # messages name the data where a link leads, for there it can be corrected
        own = path.parent / path.readlink() if path.is_symlink() else path
        entries.append(DeviceEntry(own, name, population))
    return tuple(entries)


def _devices_in(folder: Path) -> list[Path]:
    """Two or more entries with data of their own."""
    if is_loadable(folder):
        return []
    devices = [path for path in _visible(folder) if is_loadable(path)]
    if len(devices) < 2:
        return []
    return devices


def _visible(folder: Path) -> list[Path]:
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".")
        if not hidden:
            found.append(path)
    return found


def load_devices(folder: Path, task: Task | None) -> Dataset | None:
    """The data of all devices of a folder in one data set, whose groups are the devices; None for the data of a single one.

    Each device's data is read, compared with the task and given a test part as `agent start` does it.

    Args:
        folder: see `device_entries`.
        task: of the scenario.

    Raises:
        DataError: the data of a device cannot be read, or does not fit the task, or there is none.
    """
    entries = device_entries(folder)
    if not entries:
        return None
    if task is None:
        fault = "the data of several devices; expected a task that they have in common"
        raise DataError(f"{folder}: {fault}", public=fault)
    parts = [with_test(fit(load(entry.path, task=task), task)) for entry in entries]
    _check_shapes(entries, parts)
    parts = _with_common_words(parts, task)
    named = [_named(part, entry) for entry, part in zip(entries, parts, strict=True)]
    return _joined(named, str(folder))


def _check_shapes(entries: Sequence[DeviceEntry], parts: Sequence[Dataset]) -> None:
    """DataError if two devices have samples of different shapes."""
    shape = parts[0].shape
    for entry, part in zip(entries, parts, strict=True):
        if part.shape != shape:
            fault = f"samples have shape {part.shape}, those of the first device {shape}"
            raise DataError(f"{entry.path}: {fault}", public=fault)


def _named(part: Dataset, entry: DeviceEntry) -> Dataset:
    """The data of a device, with the device as the group of each sample."""
    count = len(part.targets)
    tests = len(part.test_targets)
    populations: Array | None = None
    if entry.population is not None:
        populations = np.repeat(entry.population, count)
    return replace(
        part,
        groups=np.repeat(entry.name, count),
        test_groups=np.repeat(entry.name, tests),
        populations=populations,
    )


def _joined(parts: Sequence[Dataset], source: str) -> Dataset:
    """The samples of all devices, one device after the other."""
    arrays: dict[str, Any] = {}
    for name in ROWS:
        rows = [getattr(part, name) for part in parts]
        if rows[0] is not None:
            arrays[name] = np.concatenate(rows)
    columns = parts[0].columns
    if columns is not None and columns.moments is not None:
        known = [part.columns for part in parts if part.columns is not None]
        times = [one.moments for one in known if one.moments is not None]
        arrays["columns"] = replace(columns, moments=np.concatenate(times))
    return replace(parts[0], source=source, **arrays)


def _with_common_words(parts: Sequence[Dataset], task: Task) -> list[Dataset]:
    """The same data, with cells of categories as indices into words that all devices share."""
    common: dict[str, dict[str, int]] = {}
    for part in parts:
        for column, words in _words(part).items():
            known = common.setdefault(column, {})
            for word in words:
                known.setdefault(word, len(known))
    if not common:
        return list(parts)
    recoded: list[Dataset] = []
    for part in parts:
        recoded.append(_recoded(part, common, task))
    return recoded


def _words(part: Dataset) -> dict[str, tuple[str, ...]]:
    if part.columns is None:
        return {}
    return dict(part.columns.words)


def _recoded(part: Dataset, common: dict[str, dict[str, int]], task: Task) -> Dataset:
    """One device's data with the common words."""
    columns = part.columns
    assert columns is not None  # noqa: S101 - words belong to columns
    features = part.features.copy()
    test_features = part.test_features.copy()
    for column, words in columns.words.items():
        place = task.columns.index(column)
        known = common[column]
        code_of = np.array([known[word] for word in words], np.float32)
        for rows in (features, test_features):
            rows[:, place] = _coded(rows[:, place], code_of)
    merged: dict[str, tuple[str, ...]] = {}
    for column, known in common.items():
        merged[column] = tuple(known)
    return replace(
        part, features=features, test_features=test_features, columns=replace(columns, words=merged)
    )


def _coded(codes: Array, code_of: Array) -> Array:
    """Codes (n, ...) in the common words; NaN, a missing cell, stays."""
    coded = codes.copy()
    present = np.isfinite(codes)
    coded[present] = code_of[codes[present].astype(np.int64)]
    return coded
