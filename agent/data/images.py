"""An image folder: one folder per class.

All images have one size and one mode, unless the task resizes them (`task.resize`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.image_reader import Form, ImageReader
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
)


@dataclass(frozen=True)
class ImageFile:
    """One image of a folder, and the name of the folder that it is in."""

    path: Path
    class_name: str


def is_image_folder(folder: Path) -> bool:
    """Whether the folder, or its folder `train`, has folders of images."""
    train = folder / "train"
    classes = _class_folders(folder) or _class_folders(train)
    return bool(classes)


def image_files(folder: Path) -> list[ImageFile]:
    """The images of all classes, those of a test part included."""
    train = folder / "train"
    if not _class_folders(train):
        return _image_files(folder)
    return _image_files(train) + _image_files(folder / "test")


def load_image_folder(folder: Path, task: Task | None = None) -> Dataset:
    """`folder/CLASS/*.png`, or `folder/train/CLASS/...` with `folder/test/CLASS/...`.

    Args:
        folder: holds a folder of images per class.
        task: brings the images to the form of its features, if it has `resize`.

    Returns:
        Features (n, 1 or 3, height, width) uint8. The labels are the names of the class folders, sorted.

    Raises:
        DataError: images of another size or mode than the first, unreadable ones, a test class unknown in train. One
            message names all refused images, or the first ones and their number.
    """
    train = folder
    test_files: list[ImageFile] = []
    if _class_folders(folder / "train"):
        train = folder / "train"
        test_files = _image_files(folder / "test")
    labels = tuple(sub.name for sub in _class_folders(train))
    files = _image_files(train)
    reader = ImageReader(folder, Form.of(task))
    features = reader.read(_paths(files))
    targets = _class_indices(files, labels)
    test: tuple[Array, Array] | None = None
    if test_files:
        test = (reader.read(_paths(test_files)), _class_indices(test_files, labels))
    reader.check()
    return dataset(features, targets, test, source=str(folder), labels=labels)


def new_images(place: Path) -> list[Path]:
    """The image at a path, or all images in a folder and in its folders, sorted by name. Hidden ones are left out."""
    if place.is_file():
        return [place]
    found: list[Path] = []
    for path in sorted(place.rglob("*")):
        hidden = any(name.startswith(".") for name in path.relative_to(place).parts)
        if (is_image_name(path) and path.is_file()) and not hidden:
            found.append(path)
    return found


def is_image_name(path: Path) -> bool:
    """Whether a file has the suffix of an image."""
    return path.suffix.lower() in SUFFIXES


def _paths(files: Sequence[ImageFile]) -> list[Path]:
    return [file.path for file in files]


def _class_folders(folder: Path) -> list[Path]:
    """Sub-folders with at least one image, sorted by name; none if the folder does not exist."""
    if not folder.is_dir():
        return []
    found: list[Path] = []
    for sub in sorted(folder.iterdir()):
        hidden = sub.name.startswith(".")
        if sub.is_dir() and not hidden and _images_in(sub):
            found.append(sub)
    return found


def _images_in(folder: Path) -> list[Path]:
    """Files with the suffix of an image, sorted by name."""
    return [path for path in sorted(folder.iterdir()) if is_image_name(path)]


def _image_files(folder: Path) -> list[ImageFile]:
    """The images of all class folders."""
    files: list[ImageFile] = []
    for sub in _class_folders(folder):
        for path in _images_in(sub):
            files.append(ImageFile(path, sub.name))
    return files


def _class_indices(files: Sequence[ImageFile], labels: tuple[str, ...]) -> Array:
    """The class of each image (n,) int64. DataError for a class that train does not have."""
    indices: list[int] = []
    for file in files:
        name = file.class_name
        if name not in labels:
            raise DataError(
                f"{file.path}: class {name!r} occurs in test only; train has "
                f"{', '.join(labels)}. Move its images, or add a folder of this class to train",
                public="a class occurs in the test part only",
            )
        indices.append(labels.index(name))
    return np.array(indices, np.int64)
