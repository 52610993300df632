"""SVHN's cropped digits (Netzer et al. 2011): `train_32x32.mat` and `test_32x32.mat`, MATLAB 5 files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.limits import check_size, unpacked_limit
from covey.agent.data.matlab import MatlabError, read_arrays
from covey.shared.errors import DataError

TRAIN = "train_32x32.mat"
TEST = "test_32x32.mat"
IMAGE_SHAPE = (32, 32, 3)
DIGITS = np.arange(1, 11)  # 10 is the digit zero


def is_svhn(folder: Path) -> bool:
    """Whether the folder holds the training file."""
    return (folder / TRAIN).is_file()


def load_svhn(path: Path) -> Dataset:
    """The folder of the two files (`extra_32x32.mat` is not read), or one file without a test part.

    Returns:
        X (32, 32, 3, n) as (n, 3, 32, 32) uint8; y, which counts the digit zero as 10, as 0 to 9.

    Raises:
        DataError: a file is damaged or holds something else; it names the file.
    """
    train_path = path
    if path.is_dir():
        train_path = path / TRAIN
    images, digits = _digits(train_path)
    test = None
    test_path = path / TEST
    if test_path.is_file():
        test = _digits(test_path)
    return dataset(images, digits, test, source=str(path))


def _digits(path: Path) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and digits (n,) of one file."""
    arrays = _read(path)
    images = _images(path, arrays.get("X"))
    numbers = _numbers(path, arrays.get("y"), images.shape[3])
    channels_first = images.transpose(3, 2, 0, 1)
    wide = numbers.astype(np.int64)
    digits = wide % 10  # 10 is the digit zero
    return np.ascontiguousarray(channels_first), digits


def _images(path: Path, x: Array | None) -> Array:
    """X as the file has it, (32, 32, 3, n) uint8."""
    seen = "missing"
    if x is not None:
        holds_images = x.ndim == 4 and x.shape[:3] == IMAGE_SHAPE
        if holds_images and x.dtype == np.uint8:
            return x
        seen = f"{x.dtype} {x.shape}"
    fault = f"X is {seen}; expected bytes (32, 32, 3, n): the cropped digits, format 2"
    raise DataError(f"{path}: {fault}", public=fault)


def _numbers(path: Path, y: Array | None, count: int) -> Array:
    """y as a flat array (n,) of numbers from 1 to 10."""
    shapes = {(count, 1), (1, count), (count,)}
    if y is None or y.shape not in shapes:
        seen = "missing"
        if y is not None:
            seen = f"of shape {y.shape}"
        fault = f"y is {seen}; expected one digit for each of {count} images"
        raise DataError(f"{path}: {fault}", public=fault)
    numbers = y.reshape(-1)
    if not np.isin(numbers, DIGITS).all():
        expected = "expected 1 to 10, with 10 for zero"
        smallest = numbers.min()
        largest = numbers.max()
        raise DataError(
            f"{path}: y has values from {smallest} to {largest}; {expected}",
            public=f"a digit of y is out of range; {expected}",
        )
    return numbers


def _read(path: Path) -> dict[str, Any]:
    """The arrays X and y, as far as the file has them."""
    limit = unpacked_limit(path)
    check_size(path, path.stat().st_size, limit)
    content = path.read_bytes()
    try:
        return read_arrays(content, ("X", "y"), limit)
    except MatlabError as error:
        raise DataError(
            f"{path}: {error}; copy it again", public=f"a file of SVHN cannot be read: {error}"
        ) from None
