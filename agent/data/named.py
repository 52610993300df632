"""The data sets that a simulated fleet names: by name, below the data root, or a folder with the data of one device per entry."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import cast

import numpy as np

from covey.agent.data.dataset import Dataset, dataset
from covey.agent.data.load import load
from covey.shared import extras
from covey.shared.errors import DataError, install
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import consent
from covey.shared.scenario.task import Task

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
        name: `digits`, a name in MADE_OF or of an extra, a path below the data root or the working directory, or the user's own code:
            `module:function[:PATH]` or a data source that an installed package adds. A path takes precedence over code of the same name.
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
    if read := extras.find("DATA_SETS", name, f"data set {name!r}"):
        return cast(Dataset, read(_place(name, f"{read.__name__}.npz", folder)))
    return _own(_place(name, f"{name}.npz" if name in MADE_OF else name, folder), task)


def _own(place: Path, task: Task | None) -> Dataset:
    """Data of the user's own: of one source, or of one device per entry of a folder."""

    if not place.is_dir() or not extras.has("formats"):
        return load(place, task=task)
    folders = extras.part("formats", "device_folders")
    return cast(Dataset, folders.load_devices(place, task) or load(place, task=task))


def _place(name: str, file: str, root: Path | None) -> Path:
    """The path of the file of a data set below the root, or a path of the user's own. DataError if it does not exist."""
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
