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

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.image_reader import resized
from covey.agent.data.images import SUFFIXES
from covey.shared import json_text
from covey.shared.errors import DataError

# of lists in the JSON: an image is three deep in a user's data, which is three deep itself
MAX_DEPTH = 16
# the keys of a file, and the types of their values
SECTIONS = {"users": list, "num_samples": list, "user_data": dict}
MAX_USER_NAME = 200  # characters
MAX_SHOWN = 40  # characters of a wrong value in a message
MAX_IMAGE_NAME = 255  # bytes, as file systems have it
SIDE = 84  # LEAF's models read CelebA in 84x84
FEMNIST_VALUES = 784  # numbers of a sample that is an image of 28x28
# where LEAF keeps the images, and where people do
IMAGE_FOLDERS = ("raw/img_align_celeba", "img_align_celeba", "raw", ".")


@dataclass(frozen=True)
class UserRows:
    """The samples of one user, or of several one after the other."""

    features: Array  # (n, *shape)
    targets: Array  # (n,)
    users: Array  # (n,) names

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.features.shape[1:])

    @property
    def user(self) -> str:
        """The first sample's user."""
        return str(self.users[0])


@dataclass(frozen=True)
class User:
    """One user of a file: by name for the terminal, by number elsewhere."""

    path: Path
    number: int  # from 1
    name: str

    def error(self, text: str, public: str) -> DataError:
        """The refusal of this user's samples."""
        return DataError(
            f"{self.path}: user {self.name!r}: {text}", public=f"user {self.number}: {public}"
        )


def is_leaf(folder: Path) -> bool:
    """Whether the folder `train` in it has JSON files."""
    return bool(_json_files(folder / "train"))


def load_leaf(path: Path) -> Dataset:
    """A folder with `train/*.json` and perhaps `test/*.json`, or one JSON file without a test part.

    Returns:
        Rows of 784 numbers as (1, 28, 28), other rows flat, both float32. If the rows are names of images, these as
        (3, 84, 84) uint8, from the folder's raw/img_align_celeba. `groups` are the users.

    Raises:
        DataError: it names file and user.
    """
    if path.is_dir():
        base = path
        train_files = _json_files(path / "train")
    else:
        base = path.parent
        train_files = [path]
    train = _read_part(train_files, base)
    test_files = _json_files(path / "test")
    if not test_files:
        return dataset(train.features, train.targets, source=str(path), groups=train.users)
    test = _read_part(test_files, base)
    return dataset(
        train.features,
        train.targets,
        (test.features, test.targets),
        source=str(path),
        groups=train.users,
        test_groups=test.users,
    )


def _json_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _read_part(files: Sequence[Path], base: Path) -> UserRows:
    """All users of all files, one after the other. DataError if their samples differ in shape."""
    blocks: list[UserRows] = []
    for file in files:
        blocks += _read_file(file, base)
    if not blocks:
        names = ", ".join(str(file) for file in files)
        raise DataError(f"{names}: no samples", public="no samples")
    first = blocks[0]
    for block in blocks:
        if block.shape != first.shape:
            folder = files[0].parent
            raise DataError(
                f"{folder}: samples of shapes {first.shape} of user {first.user!r} and "
                f"{block.shape} of user {block.user!r}; bring all to one shape",
                public=f"samples of shapes {first.shape} and {block.shape}; expected one shape",
            )
    features = [block.features for block in blocks]
    targets = [block.targets for block in blocks]
    users = [block.users for block in blocks]
    return UserRows(np.concatenate(features), np.concatenate(targets), np.concatenate(users))


def _read_file(path: Path, base: Path) -> list[UserRows]:
    """The samples of each user that has some."""
    content = _read_json(path)
    data_of = content["user_data"]
    names = content["users"]
    counts = content["num_samples"]
    blocks: list[UserRows] = []
    for number, (name, count) in enumerate(zip(names, counts, strict=True), start=1):
        if count:
            blocks.append(_user_rows(base, User(path, number, name), data_of.get(name), count))
    return blocks


def _read_json(path: Path) -> Mapping[str, Any]:
    """The content of a file, with the keys and the users that LEAF's files have."""
    try:
        content = json_text.loads(path.read_bytes(), depth=MAX_DEPTH)
    except (ValueError, OSError) as error:
        fault = "not JSON, or cut short"
        raise DataError(
            f"{path}: {fault} ({error}); copy it again", public=f"a LEAF file is {fault}"
        ) from None
    sections: dict[str, Any] = {}
    if isinstance(content, dict):
        sections = content
    for key, kind in SECTIONS.items():
        if not isinstance(sections.get(key), kind):
            fault = f"no {key!r}; expected LEAF's users, num_samples and user_data"
            raise DataError(f"{path}: {fault}", public=fault)
    _check_users(path, content["users"], content["num_samples"])
    return dict(content)


def _check_users(path: Path, users: list[Any], counts: list[Any]) -> None:
    """Check for names that differ and are short, because each of a user's samples repeats the name, and for a count each."""
    if len(users) != len(counts):
        fault = f"{len(users)} users, but num_samples has {len(counts)} entries; expected one each"
        raise DataError(f"{path}: {fault}", public=fault)
    for number, (user, count) in enumerate(zip(users, counts, strict=True), start=1):
        if not isinstance(user, str) or len(user) > MAX_USER_NAME:
            fault = f"user {number}: its name is not a text of at most {MAX_USER_NAME} characters"
            raise DataError(f"{path}: {fault}", public=fault)
        if not isinstance(count, int) or count < 0:
            fault = f"user {number}: its entry in num_samples is not a count"
            raise DataError(f"{path}: {fault}", public=fault)
    if len(set(users)) < len(users):
        fault = "a user is named twice"
        raise DataError(f"{path}: {fault}", public=fault)


def _user_rows(base: Path, user: User, data: Any, count: int) -> UserRows:
    """The samples of one user, `count` by the file's own account."""
    x = y = None
    if isinstance(data, dict):
        x = data.get("x")
        y = data.get("y")
    if not isinstance(x, list) or not isinstance(y, list):
        fault = "user_data has no lists x and y for this user"
        raise user.error(fault, fault)
    xs = len(x)
    ys = len(y)
    if xs != count or ys != count:
        fault = (
            f"{xs} x and {ys} y, num_samples has {count}: cut short or damaged; copy the file again"
        )
        raise user.error(fault, fault)
    targets = _numbers(user, "y", y, 1)
    users = np.full(ys, user.name)
    if _is_image_name(x[0]):
        return UserRows(_images(user, base, x), targets, users)
    features = _numbers(user, "x", x, 2)
    if features.shape[1:] == (FEMNIST_VALUES,):
        features = features.reshape(-1, 1, 28, 28)
    return UserRows(features, targets, users)


def _is_image_name(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return Path(value).suffix.lower() in SUFFIXES


def _numbers(user: User, key: str, values: list[Any], axes: int) -> Array:
    """Finite numbers: y (n,) for one axis, x (n, ...) float32 for more."""
    # one long text among the numbers would make numpy give each of them the same length
    if not _only_numbers(values):
        raise _not_numbers(user, key, values, axes)
    try:
        array = np.asarray(values)
    except ValueError:
        fault = f"the rows of {key} have different lengths"
        raise user.error(fault, fault) from None
    has_axes = array.ndim >= axes
    if axes == 1:
        has_axes = array.ndim == 1
    is_numeric = array.dtype.kind in "iufb"
    if not is_numeric or not has_axes:
        raise _not_numbers(user, key, values, axes)
    if not np.isfinite(array).all():
        fault = f"{key} holds NaN or infinite values; expected finite numbers"
        raise user.error(fault, fault)
    if axes == 1:
        return array
    return array.astype(np.float32)


def _not_numbers(user: User, key: str, values: list[Any], axes: int) -> DataError:
    """The refusal of x or y that is something else."""
    expected = "expected numbers" if axes == 1 else "expected rows of numbers"
    seen = repr(values[0])[:MAX_SHOWN]
    return user.error(f"{key} holds {seen}; {expected}", f"{key} holds no numbers; {expected}")


def _only_numbers(values: list[Any]) -> bool:
    """Whether all values, of the list and of the lists in it, are numbers. JSON was read with a bound on its depth."""
    for value in values:
        if isinstance(value, list):
            if not _only_numbers(value):
                return False
        elif not isinstance(value, int | float):
            return False
    return True


def _images(user: User, base: Path, names: list[Any]) -> Array:
    """The user's images (n, 3, 84, 84), from the first of the usual folders that has the first of them."""
    folder = _image_folder(user, base, names[0])
    images = np.empty((len(names), 3, SIDE, SIDE), np.uint8)
    for row, name in enumerate(names):
        images[row] = resized(_image_path(user, name, folder), SIDE)
    return images


def _image_folder(user: User, base: Path, name: Any) -> Path:
    """The folder that has an image of this name."""
    paths: dict[Path, Path] = {}  # by folder; all are checked before one is looked for
    for place in IMAGE_FOLDERS:
        folder = base / place
        paths[folder] = _image_path(user, name, folder)
    for folder, path in paths.items():
        if path.is_file():
            return folder
    names = ", ".join(str(folder) for folder in paths)
    raise user.error(
        f"image {name!r} is in none of {names}; copy the images to one of these folders",
        "an image is missing",
    )


def _is_file_name(name: Any) -> bool:
    """Whether a file system could hold a file of this name."""
    if not isinstance(name, str) or "\0" in name:
        return False
    return len(name.encode(errors="replace")) <= MAX_IMAGE_NAME


def _image_path(user: User, name: Any, folder: Path) -> Path:
    """The image `name` in `folder`. DataError if the name, or a link that it follows, leads out of the folder."""
    if not _is_file_name(name):
        fault = "x holds something that is not the name of an image"
        raise user.error(fault, fault)
    path = folder / str(name)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise user.error(
            f"image {name!r} leads out of {folder}; only files below it are read",
            "the name of an image leads out of the data folder",
        )
    return path
