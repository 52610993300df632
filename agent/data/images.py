"""An image folder: one folder per class.

All images have one size and one mode, unless the task resizes them (`task.resize`).
"""

from __future__ import annotations

from pathlib import Path

from covey.agent.data.class_folders import ClassFolders
from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.image_reader import Form, ImageReader
from covey.shared.scenario.task import Task

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
)


def image_folders(folder: Path) -> ClassFolders:
    """The images of a folder, by class."""
    return ClassFolders(folder, SUFFIXES)


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
    found = image_folders(folder)
    reader = ImageReader(folder, Form.of(task))
    features = reader.read([file.path for file in found.train])
    test: tuple[Array, Array] | None = None
    if found.test:
        test = (reader.read([file.path for file in found.test]), found.targets(found.test))
    reader.check()
    targets = found.targets(found.train)
    return dataset(features, targets, test, source=str(folder), labels=found.labels)
