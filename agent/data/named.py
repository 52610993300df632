"""The data sets that a simulated fleet names, and the folder that holds the larger ones."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

from covey.agent.data.arrays import from_arrays, read_npz
from covey.agent.data.dataset import Array, Dataset, Indices, dataset
from covey.agent.data.load import load, load_benchmark
from covey.shared import plugins
from covey.shared.consent import consent
from covey.shared.errors import DataError
from covey.shared.extras import install
from covey.shared.scenario.task import Task

ROOT_VARIABLE = "COVEY_DATA_ROOT"
DEFAULT_ROOT = Path("../shared/data")
# name of a data set -> its path below the data root
FILES = {
    "fashion-mnist": "fashion-mnist",
    "cifar10": "cifar-10-binary.tar.gz",
    "cifar100": "cifar-100-binary.tar.gz",
    "svhn": "svhn",
    "emnist-byclass": "emnist/emnist-byclass-train-images-idx3-ubyte.gz",
    "emnist-letters": "emnist/emnist-letters-train-images-idx3-ubyte.gz",
    "emnist-balanced": "emnist/emnist-balanced-train-images-idx3-ubyte.gz",
    "femnist": "femnist",
    "celeba": "celeba",
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
        case "fashion-mnist":
            return load_benchmark("idx", place)
        case "cifar10":
            return load_benchmark("cifar", place)
        case "har":
            return _har(place)
        case "mnist-writer":
            return _mnist_writer(place)
        case _:
            return _own(place, task)


def _own(place: Path, task: Task | None) -> Dataset:
    """Data of the user's own: of one source, or of one device per entry of a folder."""
    from covey.agent.data.device_folder import device_entries, load_devices

    entries = device_entries(place) if place.is_dir() else ()
    if not entries:
        return load(place, task=task)
    if task is None:
        fault = "the data of several devices; expected a task that they have in common"
        raise DataError(f"{place}: {fault}", public=fault)
    return load_devices(entries, task, str(place))


def _place(name: str, root: Path | None) -> Path:
    """The path of a data set below the root, or a path of the user's own. DataError if it does not exist."""
    place = (root or Path()) / FILES.get(name, name)
    if place.exists():
        return place
    here = Path(name)
    if name not in FILES and here.exists():
        return here
    seen = f"{place} does not exist"
    if not root:
        seen = f"no data root is set and {seen}"
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
