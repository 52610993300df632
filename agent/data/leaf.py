"""LEAF's JSON files (Caldas et al. 2018): FEMNIST with its writers, CelebA with its people, and others of numbers.

A folder holds `train/*.json` and, if split, `test/*.json`; every file is
`{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`. The users are the groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.data.dataset import Array, Dataset, dataset
from agent.data.images import SUFFIXES, resized
from shared.errors import DataError

SIDE = 84  # LEAF's models read CelebA in 84x84
RAW = ("raw/img_align_celeba", "img_align_celeba", "raw", ".")  # where LEAF keeps the images, and where people do
Rows = tuple[Array, Array, Array]  # features, targets, users


def is_leaf(folder: Path) -> bool:
    """Whether there are JSON files in its folder `train`."""
    return any((folder / "train").glob("*.json"))


def load_leaf(path: Path) -> Dataset:
    """A folder with `train/*.json` and perhaps `test/*.json`, or one JSON file without a test part.

    Rows of 784 numbers become (1, 28, 28), other rows stay flat, both float32. Names of images are read from the
    folder's raw/img_align_celeba as (3, 84, 84) uint8. `groups` are the users. DataError names file and user.
    """
    base = path if path.is_dir() else path.parent
    features, targets, users = _part(sorted((path / "train").glob("*.json")) if path.is_dir() else [path], base)
    test_files = sorted((path / "test").glob("*.json"))
    test = _part(test_files, base) if test_files else None
    return dataset(
        features,
        targets,
        test and test[:2],
        source=str(path),
        groups=users,
        test_groups=test and test[2],
    )


def _part(files: Sequence[Path], base: Path) -> Rows:
    """All users of all files, one after the other."""
    blocks = [rows for file in files for rows in _file(file, base)]
    if not blocks:
        raise DataError(f"{', '.join(map(str, files))}: no samples")
    shapes = {rows[0].shape[1:]: str(rows[2][0]) for rows in blocks}
    if len(shapes) > 1:
        said = " and ".join(f"{shape} of user {user!r}" for shape, user in list(shapes.items())[:2])
        raise DataError(f"{files[0].parent}: samples of shapes {said}; one shape is wanted")
    features, targets, users = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return features, targets, users


def _file(path: Path, base: Path) -> list[Rows]:
    content = _content(path)
    counts = dict(zip(content["users"], content["num_samples"], strict=True))
    return [_user(path, base, str(user), content["user_data"], count) for user, count in counts.items() if count]


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise DataError(f"{path}: not JSON, or cut short ({error}); copy it again") from None
    wanted = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in wanted.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise DataError(f"{path}: no {key!r}; LEAF's users, num_samples and user_data are wanted")
    users, numbers = len(content["users"]), len(content["num_samples"])
    if users != numbers:
        raise DataError(f"{path}: {users} users, but num_samples has {numbers} entries; one per user is wanted")
    return dict(content)


def _user(path: Path, base: Path, user: str, everybody: Mapping[str, Any], count: int) -> Rows:
    where, data = f"{path}: user {user!r}", everybody.get(user)
    if not isinstance(data, dict) or not isinstance(data.get("x"), list) or not isinstance(data.get("y"), list):
        raise DataError(f"{where}: user_data has no lists x and y for this user")
    x, y = data["x"], data["y"]
    if not len(x) == len(y) == count:
        raise DataError(f"{where}: {len(x)} x and {len(y)} y, num_samples says {count}; cut short or damaged")
    targets = _numbers(where, "y", y, 1)
    named = isinstance(x[0], str) and Path(x[0]).suffix.lower() in SUFFIXES
    features = _images(where, base, x) if named else _numbers(where, "x", x, 2)
    if features.shape[1:] == (784,):
        features = features.reshape(-1, 1, 28, 28)
    return features, targets, np.full(len(y), user)


def _numbers(where: str, key: str, values: list[Any], axes: int) -> Array:
    """Finite float32 numbers with so many axes or more; y has one."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{where}: the rows of {key} have different lengths") from None
    if array.dtype.kind not in "iufb" or array.ndim < axes or (axes == 1 and array.ndim > 1):
        seen = repr(values[0])
        raise DataError(f"{where}: {key} holds {seen[:40]}; {'numbers' if axes == 1 else 'rows of numbers'} are wanted")
    if not np.isfinite(array).all():
        raise DataError(f"{where}: {key} holds NaN or infinite values; finite numbers are wanted")
    return array.astype(np.float32) if axes > 1 else array


def _images(where: str, base: Path, names: list[Any]) -> npt.NDArray[np.uint8]:
    places = [base / place for place in RAW]
    folder = next((place for place in places if (place / str(names[0])).is_file()), None)
    if folder is None:
        raise DataError(
            f"{where}: image {names[0]!r} is in none of {', '.join(map(str, places))}; put the images there"
        )
    images = np.empty((len(names), 3, SIDE, SIDE), np.uint8)
    for row, name in enumerate(names):
        images[row] = resized(folder / str(name), SIDE)
    return images
