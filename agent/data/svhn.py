"""SVHN's cropped digits (Netzer et al. 2011): `train_32x32.mat` and `test_32x32.mat`, MATLAB 5 files."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from agent.data.dataset import Array, Dataset, dataset
from shared.errors import DataError

TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


def is_svhn(folder: Path) -> bool:
    return (folder / TRAIN).is_file()


def load_svhn(path: Path) -> Dataset:
    """The folder of the two files (`extra_32x32.mat` is not read), or one file without a test part.

    X (32, 32, 3, n) becomes (n, 3, 32, 32) uint8; y counts the digit zero as 10 and becomes 0 to 9.
    Needs scipy. DataError names the file.
    """
    train = path / TRAIN if path.is_dir() else path
    test = path / TEST
    return dataset(*_digits(train), _digits(test) if test.is_file() else None, source=str(path))


def _digits(path: Path) -> tuple[Array, Array]:
    content = _read(path)
    x, y = content.get("X"), content.get("y")
    if not isinstance(x, np.ndarray) or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        seen = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else "missing"
        raise DataError(f"{path}: X is {seen}; bytes (32, 32, 3, n) are wanted: the cropped digits, format 2")
    if not isinstance(y, np.ndarray) or y.shape not in {(x.shape[3], 1), (1, x.shape[3]), (x.shape[3],)}:
        seen = f"of shape {y.shape}" if isinstance(y, np.ndarray) else "missing"
        raise DataError(f"{path}: y is {seen}; one digit for each of {x.shape[3]} images is wanted")
    targets = y.reshape(-1)
    if not np.isin(targets, np.arange(1, 11)).all():
        raise DataError(f"{path}: y reaches from {targets.min()} to {targets.max()}; 1 to 10 are wanted, 10 for zero")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), targets.astype(np.int64) % 10


def _read(path: Path) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError:
        raise DataError(f"{path}: reading .mat files needs scipy: pip install 'covey[coordinator]'") from None
    try:
        return dict(loadmat(path, variable_names=["X", "y"]))
    except (MatReadError, ValueError, TypeError, KeyError, IndexError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cut short or not a MATLAB 5 file ({error}); copy it again") from None
    except NotImplementedError:
        raise DataError(f"{path}: a MATLAB 7.3 file; SVHN ships as MATLAB 5: save it with -v7") from None
