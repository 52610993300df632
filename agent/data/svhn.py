"""SVHN's cropped digits (Netzer et al. 2011): `train_32x32.mat` and `test_32x32.mat`, MATLAB 5 files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.limits import check_size, unpacked_limit
from covey.agent.data.matlab import MatlabError, read_arrays
from covey.shared.errors import DataError

TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


def is_svhn(folder: Path) -> bool:
    return (folder / TRAIN).is_file()


def load_svhn(path: Path) -> Dataset:
    """The folder of the two files (`extra_32x32.mat` is not read), or one file without a test part.

    X (32, 32, 3, n) becomes (n, 3, 32, 32) uint8; y counts the digit zero as 10 and becomes 0 to 9.
    DataError names the file.
    """
    train = path / TRAIN if path.is_dir() else path
    test = path / TEST
    return dataset(*_digits(train), _digits(test) if test.is_file() else None, source=str(path))


def _digits(path: Path) -> tuple[Array, Array]:
    content = _read(path)
    x, y = content.get("X"), content.get("y")
    if (
        not isinstance(x, np.ndarray)
        or x.ndim != 4
        or x.shape[:3] != (32, 32, 3)
        or x.dtype != np.uint8
    ):
        seen = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else "missing"
        fault = f"X is {seen}; bytes (32, 32, 3, n) are expected: the cropped digits, format 2"
        raise DataError(f"{path}: {fault}", public=fault)
    if not isinstance(y, np.ndarray) or y.shape not in {
        (x.shape[3], 1),
        (1, x.shape[3]),
        (x.shape[3],),
    }:
        seen = f"of shape {y.shape}" if isinstance(y, np.ndarray) else "missing"
        fault = f"y is {seen}; one digit for each of {x.shape[3]} images is expected"
        raise DataError(f"{path}: {fault}", public=fault)
    targets = y.reshape(-1)
    if not np.isin(targets, np.arange(1, 11)).all():
        expected = "1 to 10 are expected, 10 for zero"
        raise DataError(
            f"{path}: y reaches from {targets.min()} to {targets.max()}; {expected}",
            public=f"a digit of y is out of range; {expected}",
        )
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), targets.astype(np.int64) % 10


def _read(path: Path) -> dict[str, Any]:
    limit = unpacked_limit(path)
    check_size(path, path.stat().st_size, limit)
    try:
        return dict(read_arrays(path.read_bytes(), ("X", "y"), limit))
    except MatlabError as error:
        raise DataError(
            f"{path}: {error}; copy it again", public=f"a file of SVHN cannot be read: {error}"
        ) from None
