"""The data sets that a simulated fleet names: by name, below the data root, or a folder with the data of one device per entry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data.arrays import from_arrays, read_npz
from covey.agent.data.dataset import Array, Dataset, Indices, dataset, with_test
from covey.agent.data.fit import fit
from covey.agent.data.load import is_loadable, load
from covey.shared.errors import DataError, install
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import consent
from covey.shared.scenario.task import Task

# -- a folder with the data of one device per entry ------------------------------------------------


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


def load_devices(entries: Sequence[DeviceEntry], task: Task, source: str) -> Dataset:
    """The data of all devices in one data set, whose groups are the devices.

    Each device's data is read, compared with the task and given a test part as `agent start` does it.

    Args:
        entries: at least two.
        task: of the scenario.
        source: the folder, for messages.

    Raises:
        DataError: the data of a device cannot be read, or does not fit the task.
    """
    parts: list[Dataset] = []
    for entry in entries:
        parts.append(with_test(fit(load(entry.path, task=task), task)))
    _check_shapes(entries, parts)
    parts = _with_common_words(parts, task)
    named: list[Dataset] = []
    for entry, part in zip(entries, parts, strict=True):
        named.append(_named(part, entry))
    return _joined(named, source)


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


# -- categories ----------------------------------------------------------------------------------------------


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


# -- data sets by name ------------------------------------------------------------------------------


ROOT_VARIABLE = "COVEY_DATA_ROOT"
DEFAULT_ROOT = Path("../shared/data")
# Names of data sets whose file is NAME.npz -> what scripts/to_npz.py makes it of, below the data root.
MADE_OF = {
    "fashion-mnist": "idx fashion-mnist",
    "cifar10": "cifar10 cifar-10-binary.tar.gz",
    "cifar100": "cifar100 cifar-100-binary.tar.gz",
    "svhn": "svhn svhn",
    "emnist-byclass": "idx emnist/emnist-byclass-train-images-idx3-ubyte.gz",
    "emnist-letters": "idx emnist/emnist-letters-train-images-idx3-ubyte.gz",
    "emnist-balanced": "idx emnist/emnist-balanced-train-images-idx3-ubyte.gz",
    "femnist": "leaf femnist",
    "celeba": "leaf celeba",
}
# name of a data set -> its file below the data root
FILES = {name: f"{name}.npz" for name in MADE_OF} | {
    "har": "har.npz",
    "mnist-writer": "mnist_writer.npz",
}


def find_root(option: str | Path | None = None) -> Path | None:
    """The folder of the larger data sets: the option, else COVEY_DATA_ROOT, else ../shared/data if it exists."""
    chosen = option or os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen)
    if DEFAULT_ROOT.is_dir():
        return DEFAULT_ROOT
    return None


def load_named(name: str, root: str | Path | None = None, task: Task | None = None) -> Dataset:
    """The data set that a scenario names.

    Args:
        name: `digits`, a name in FILES, a path below the data root or the working directory, or the user's own code: `module:function[:PATH]`
            or a data source that an installed package adds. A path takes precedence over code of the same name.
        root: the data root; None: as `find_root` finds it.
        task: if it names the columns of a table, these are read.

    Raises:
        DataError: the data is missing or damaged; it names the path.
        ConsentError: the code was not allowed.
    """
    if name == "digits":
        return _digits()
    folder = find_root(root)
    is_code = ":" in name or name in plugins.installed(plugins.DATA)
    if is_code:
        path_of_this_name = (folder or Path()) / name
        if not path_of_this_name.exists():
            return load(name, allowed=consent(), task=task)
    place = _place(name, folder)
    match name:
        case "har":
            return _har(place)
        case "mnist-writer":
            return _mnist_writer(place)
        case _:
            return _own(place, task)


def _own(place: Path, task: Task | None) -> Dataset:
    """Data of the user's own: of one source, or of one device per entry of a folder."""

    entries = device_entries(place) if place.is_dir() else ()
    if not entries:
        return load(place, task=task)
    if task is None:
        fault = "the data of several devices; expected a task that they have in common"
        raise DataError(f"{place}: {fault}", public=fault)
    return load_devices(entries, task, str(place))


def _place(name: str, root: Path | None) -> Path:
    """The path of a data set below the root, or a path of the user's own. DataError if it does not exist."""
    file = FILES.get(name, name)
    place = (root or Path()) / file
    for candidate in (place, Path(file)):
        if candidate.exists():
            return candidate
    seen = f"{place} does not exist"
    if not root:
        seen = f"no data root is set and {seen}"
    elif name in MADE_OF:
        kind, _, source = MADE_OF[name].partition(" ")
        seen += f" (python scripts/to_npz.py {kind} {root / source} {place} makes it of the published files)"
    raise DataError(
        f"data set {name!r}: {seen}; set the data root with --data-root or {ROOT_VARIABLE}, or use "
        "'digits', which needs none",
        public=f"data set {name!r} is not on this machine",
    )


def _digits() -> Dataset:
    """1 797 handwritten digits, (1, 8, 8) uint8 from 0 to 16: real data that comes with scikit-learn.

    Each row of the file holds 64 values and the digit. The file is read without scikit-learn, because importing it takes
    longer than all the training of a small run.
    """
    try:
        file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
        rows = np.loadtxt(str(file), dtype=np.uint8, delimiter=",")
    except (PackageNotFoundError, FileNotFoundError):
        fault = f"data set 'digits' comes with scikit-learn: {install('coordinator')}"
        raise DataError(fault, public=fault) from None
    return dataset(rows[:, :64].reshape(-1, 1, 8, 8), rows[:, 64].astype(np.int64), source="digits")


def _har(path: Path) -> Dataset:
    """UCI HAR: windows of 9 channels and 128 readings, (9, 128).

    The groups are the 30 people. Within each recording the windows are in time order.
    """
    arrays = read_npz(path)
    order = in_time_order(arrays["x"])
    in_order: dict[str, Array] = dict(arrays)
    for name in ("x", "y", "subject"):
        in_order[name] = arrays[name][order]
    in_order["x"] = in_order["x"].transpose(0, 2, 1)  # channels first
    return replace(from_arrays(in_order, str(path)), overlap=1)


def in_time_order(windows: Array) -> Indices:
    """The order (n,) that restores recordings from shuffled windows.

    Consecutive windows of a recording overlap by half: the second half of a window equals the first half of the next,
    bit for bit. Recordings are ordered by the row of their first window.

    Args:
        windows: (n, length, channels), in any order.
    """
    half = windows.shape[1] // 2
    row_of_first_half: dict[bytes, int] = {}
    for row, window in enumerate(windows):
        row_of_first_half[window[:half].tobytes()] = row
    successors: list[int | None] = []
    for window in windows:
        successors.append(row_of_first_half.get(window[half:].tobytes()))
    rows = range(len(windows))
    has_predecessor: set[int] = set()
    for row, successor in enumerate(successors):
        if successor is not None and successor != row:
            has_predecessor.add(successor)
    heads = [row for row in rows if row not in has_predecessor]
    order: dict[int, None] = {}  # an ordered set
    for start in [*heads, *rows]:  # all rows: windows of a closed loop have no head
        row_or_end: int | None = start
        while row_or_end is not None and row_or_end not in order:
            order[row_or_end] = None
            row_or_end = successors[row_or_end]
    return np.fromiter(order, np.int64, len(windows))


def _mnist_writer(path: Path) -> Dataset:
    """MNIST (1, 28, 28) with its writers as groups. The populations are hsf0 (census staff) and hsf4 (students)."""
    arrays = read_npz(path)
    images = dict(arrays)
    for name in ("x_train", "x_test"):
        images[name] = arrays[name][:, None]  # one channel
    population_names = np.array([f"hsf{hsf}" for hsf in range(10)])
    images["populations"] = population_names[arrays["hsf_train"]]
    return from_arrays(images, str(path))
