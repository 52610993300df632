"""LEAF's JSON files (Caldas et al. 2018): FEMNIST with its writers, CelebA with its people, and others of numbers.

A folder holds `train/*.json` and, if split, `test/*.json`; every file is
`{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`. The users are the groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.images import SUFFIXES, resized
from covey.shared import json_text
from covey.shared.errors import DataError

MAX_DEPTH = (
    16  # of lists in the JSON: an image is three deep in a user's data, which is three deep itself
)
MAX_USER_NAME = 200
MAX_IMAGE_NAME = 255  # bytes, as file systems have it
SIDE = 84  # LEAF's models read CelebA in 84x84
RAW = (
    "raw/img_align_celeba",
    "img_align_celeba",
    "raw",
    ".",
)  # where LEAF keeps the images, and where people do
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
    features, targets, users = _part(
        sorted((path / "train").glob("*.json")) if path.is_dir() else [path], base
    )
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
        raise DataError(f"{', '.join(map(str, files))}: no samples", public="no samples")
    shapes = {rows[0].shape[1:]: str(rows[2][0]) for rows in blocks}
    if len(shapes) > 1:
        first_two = list(shapes.items())[:2]
        said = " and ".join(f"{shape} of user {user!r}" for shape, user in first_two)
        public = " and ".join(str(shape) for shape, _ in first_two)
        raise DataError(
            f"{files[0].parent}: samples of shapes {said}; one shape is expected",
            public=f"samples of shapes {public}; one shape is expected",
        )
    features, targets, users = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return features, targets, users


def _file(path: Path, base: Path) -> list[Rows]:
    content = _content(path)
    everybody = content["user_data"]
    blocks: list[Rows] = []
    for number, (user, count) in enumerate(
        zip(content["users"], content["num_samples"], strict=True), start=1
    ):
        if count:
            blocks.append(_user(path, base, User(path, number, user), everybody.get(user), count))
    return blocks


@dataclass(frozen=True)
class User:
    """One user of a file: by name for the terminal, by number for everybody else."""

    path: Path
    number: int
    name: str

    def error(self, text: str, public: str) -> DataError:
        """The fault of this user's samples."""
        return DataError(
            f"{self.path}: user {self.name!r}: {text}", public=f"user {self.number}: {public}"
        )


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = json_text.loads(path.read_bytes(), depth=MAX_DEPTH)
    except (ValueError, OSError) as error:
        fault = "not JSON, or cut short"
        raise DataError(
            f"{path}: {fault} ({error}); copy it again", public=f"a LEAF file is {fault}"
        ) from None
    expected = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in expected.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            fault = f"no {key!r}; LEAF's users, num_samples and user_data are expected"
            raise DataError(f"{path}: {fault}", public=fault)
    _check_users(path, content["users"], content["num_samples"])
    return dict(content)


def _check_users(path: Path, users: list[Any], counts: list[Any]) -> None:
    """Names that differ and are short, because each of a user's samples repeats the name; a count for each."""
    if len(users) != len(counts):
        fault = f"{len(users)} users, but num_samples has {len(counts)} entries; one per user is expected"
        raise DataError(f"{path}: {fault}", public=fault)
    for number, (user, count) in enumerate(zip(users, counts, strict=True), start=1):
        if not isinstance(user, str) or len(user) > MAX_USER_NAME:
            fault = f"its name is no text of at most {MAX_USER_NAME} characters"
            raise DataError(f"{path}: user {number}: {fault}", public=f"user {number}: {fault}")
        if not isinstance(count, int) or count < 0:
            fault = "its entry in num_samples is no count"
            raise DataError(f"{path}: user {number}: {fault}", public=f"user {number}: {fault}")
    if len(set(users)) < len(users):
        raise DataError(f"{path}: a user is named twice", public="a user is named twice")


def _user(path: Path, base: Path, user: User, data: Any, count: int) -> Rows:
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("x"), list)
        or not isinstance(data.get("y"), list)
    ):
        fault = "user_data has no lists x and y for this user"
        raise user.error(fault, fault)
    x, y = data["x"], data["y"]
    if not len(x) == len(y) == count:
        fault = f"{len(x)} x and {len(y)} y, num_samples says {count}; cut short or damaged"
        raise user.error(fault, fault)
    targets = _numbers(user, "y", y, 1)
    named = isinstance(x[0], str) and Path(x[0]).suffix.lower() in SUFFIXES
    features = _images(user, base, x) if named else _numbers(user, "x", x, 2)
    if features.shape[1:] == (784,):
        features = features.reshape(-1, 1, 28, 28)
    return features, targets, np.full(len(y), user.name)


def _numbers(user: User, key: str, values: list[Any], axes: int) -> Array:
    """Finite float32 numbers with that many axes or more; y has one."""
    expected = f"{'numbers' if axes == 1 else 'rows of numbers'} are expected"
    # one long text among the numbers would make numpy give each of them the same length
    if not _only_numbers(values):
        raise user.error(
            f"{key} holds {repr(values[0])[:40]}; {expected}", f"{key} holds no numbers; {expected}"
        )
    try:
        array = np.asarray(values)
    except ValueError:
        fault = f"the rows of {key} have different lengths"
        raise user.error(fault, fault) from None
    if array.dtype.kind not in "iufb" or array.ndim < axes or (axes == 1 and array.ndim > 1):
        raise user.error(
            f"{key} holds {repr(values[0])[:40]}; {expected}", f"{key} holds no numbers; {expected}"
        )
    if not np.isfinite(array).all():
        fault = f"{key} holds NaN or infinite values; finite numbers are expected"
        raise user.error(fault, fault)
    return array.astype(np.float32) if axes > 1 else array


def _only_numbers(values: list[Any]) -> bool:
    """Are all values, of the list and of the lists in it, numbers? JSON was read with a bound on its depth."""
    return all(
        _only_numbers(value) if isinstance(value, list) else isinstance(value, int | float)
        for value in values
    )


def _images(user: User, base: Path, names: list[Any]) -> npt.NDArray[np.uint8]:
    places = [base / place for place in RAW]
    paths = [_below(user, names[0], place) for place in places]
    folder = next(
        (place for place, path in zip(places, paths, strict=True) if path.is_file()), None
    )
    if folder is None:
        expected = f"is in none of {', '.join(map(str, places))}; put the images there"
        raise user.error(f"image {names[0]!r} {expected}", "an image is missing")
    images = np.empty((len(names), 3, SIDE, SIDE), np.uint8)
    for row, name in enumerate(names):
        images[row] = resized(_below(user, name, folder), SIDE)
    return images


def _below(user: User, name: Any, folder: Path) -> Path:
    """The image `name` in `folder`. DataError where the name, or a link that it follows, leads out of the folder."""
    if (
        not isinstance(name, str)
        or "\0" in name
        or len(name.encode(errors="replace")) > MAX_IMAGE_NAME
    ):
        raise user.error(
            "x holds something that is no name of an image",
            "x holds something that is no name of an image",
        )
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        public = "the name of an image leads out of the data folder"
        raise user.error(
            f"image {name!r} leads out of {folder}; only files below it are read", public
        )
    return path
