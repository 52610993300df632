"""The named data sets of simulated fleets, and where the larger ones lie."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

from covey.agent.data.arrays import read_npz
from covey.agent.data.cifar import load_cifar
from covey.agent.data.dataset import Array, Dataset, Indices, dataset
from covey.agent.data.idx import load_idx
from covey.agent.data.load import load
from covey.shared import plugins
from covey.shared.consent import consent
from covey.shared.errors import DataError

ROOT_VARIABLE = "COVEY_DATA_ROOT"
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
    if chosen := option or os.environ.get(ROOT_VARIABLE):
        return Path(chosen)
    default = Path("../shared/data")
    return default if default.is_dir() else None


def load_named(name: str, root: str | Path | None = None) -> Dataset:
    """`digits`, a name in FILES, a path below the data root, or code of the user's own that was allowed.

    Such code is `module:function[:PATH]`, or a data source that an installed package adds. Raises ConsentError for code
    that was not allowed, and DataError that says where the data was looked for.
    """
    if name == "digits":
        return _digits()
    folder = find_root(root)
    is_code = ":" in name or name in plugins.installed(plugins.DATA)
    if is_code and not ((folder or Path()) / name).exists():
        return load(name, allowed=consent())
    place = _place(name, folder)
    match name:
        case "fashion-mnist":
            return load_idx(place)
        case "cifar10":
            return load_cifar(place)
        case "har":
            return _har(place)
        case "mnist-writer":
            return _mnist_writer(place)
        case _:
            return load(place)


def _place(name: str, root: Path | None) -> Path:
    place = (root or Path()) / FILES.get(name, name)
    if place.exists():
        return place
    seen = f"{place} does not exist" if root else f"no data root is set and {place} does not exist"
    raise DataError(
        f"data set {name!r}: {seen}; give --data-root or {ROOT_VARIABLE}, or use 'digits' (embedded)",
        public=f"data set {name!r} is not on this machine",
    )


def _digits() -> Dataset:
    """1 797 handwritten digits, (1, 8, 8), values 0 to 16: real data that comes with scikit-learn.

    The rows of its file are 64 values and the digit. The file is read without importing scikit-learn, which takes longer than
    all the training of a small run.
    """
    try:
        file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
        rows = np.loadtxt(str(file), dtype=np.uint8, delimiter=",")
    except (PackageNotFoundError, FileNotFoundError):
        fault = "data set 'digits' comes with scikit-learn: pip install 'covey[coordinator]'"
        raise DataError(fault, public=fault) from None
    return dataset(rows[:, :64].reshape(-1, 1, 8, 8), rows[:, 64].astype(np.int64), source="digits")


def _har(path: Path) -> Dataset:
    """Windows of 128 readings of 9 channels; groups are the 30 people, rows are in time order within each recording."""
    arrays = read_npz(path)
    order = in_time_order(arrays["x"])
    x = arrays["x"][order].transpose(0, 2, 1)
    labels = tuple(map(str, arrays["label_names"]))
    return dataset(
        x,
        arrays["y"][order],
        source=str(path),
        labels=labels,
        ordered=True,
        groups=arrays["subject"][order],
    )


def in_time_order(windows: Array) -> Indices:
    """Indices that put windows (n, length, channels) which overlap by half one after the other.

    The file's rows are shuffled; a window's second half is its successor's first half, bit for bit, so
    the recordings can be put together again. Recordings follow one another by their first row.
    """
    half = windows.shape[1] // 2
    by_first = {window[:half].tobytes(): i for i, window in enumerate(windows)}
    after = {i: by_first.get(window[half:].tobytes()) for i, window in enumerate(windows)}
    heads = sorted(set(after) - {j for i, j in after.items() if j is not None and j != i})
    order: dict[int, None] = {}  # an ordered set
    for start in [*heads, *range(len(windows))]:  # the second part catches closed loops
        at: int | None = start
        while at is not None and at not in order:
            order[at] = None
            at = after[at]
    return np.fromiter(order, np.int64, len(windows))


def _mnist_writer(path: Path) -> Dataset:
    """MNIST with its writers as groups; populations are hsf0 (census staff) and hsf4 (students)."""
    arrays = read_npz(path)
    populations = np.array([f"hsf{hsf}" for hsf in range(10)])[arrays["hsf_train"]]
    return dataset(
        arrays["x_train"][:, None],
        arrays["y_train"],
        (arrays["x_test"][:, None], arrays["y_test"]),
        source=str(path),
        groups=arrays["writer_train"],
        test_groups=arrays["writer_test"],
        populations=populations,
    )
