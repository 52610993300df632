"""Files in folders: one folder per class, or the same below `train` and `test`. Hidden files and folders are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covey.agent.data.dataset import Array
from covey.agent.data.table_rows import listed
from covey.shared.errors import DataError

# folders of segmentation, in lower case
PICTURES = frozenset(
    {
        "images",
        "image",
        "imgs",
        "img",
        "frames",
        "photos",
        "input",
        "inputs",
        "originals",
        "jpegimages",
    }
)
MASKS = frozenset(
    ("masks", "mask", "labels", "label", "annotations", "gt", "ground_truth", "groundtruth", "segmentation", "segmentations",
     "targets", "target", "output", "outputs", "segmentationclass")
)  # fmt: skip


@dataclass(frozen=True)
class ClassFile:
    """One file, and the name of the folder that it is in."""

    path: Path
    class_name: str


class ClassFolders:
    """The files of a folder, each sorted by class and name; none if it has no folders of such files.

    Args:
        folder: holds a folder of files per class, or `train` and perhaps `test` with such folders.
        suffixes: of the files that count, in lower case.
    """

    def __init__(self, folder: Path, suffixes: frozenset[str]) -> None:
        self._suffixes = suffixes
        train = folder / "train"
        self.train = self._files(train)
        self.test = self._files(folder / "test") if self.train else []
        if not self.train:
            self.train = self._files(folder)
        self.labels = tuple(sorted({file.class_name for file in self.train}))
        names = {name.lower() for name in self.labels}
        if names & PICTURES and names & MASKS and names <= PICTURES | MASKS:
            fault = "pictures and their masks, which are no classes"
            expected = "expected a folder for each class; segmentation is not built"
            raise DataError(
                f"{folder}: {listed(self.labels)}: {fault}; {expected}",
                public=f"{fault}; {expected}",
            )

    def _files(self, folder: Path) -> list[ClassFile]:
        if not folder.is_dir():
            return []
        found: list[ClassFile] = []
        for sub in sorted(folder.iterdir()):
            if sub.is_dir() and not sub.name.startswith("."):
                found += [ClassFile(path, sub.name) for path in self._inside(sub)]
        return found

    def _inside(self, folder: Path) -> list[Path]:
        return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in self._suffixes]

    def targets(self, files: Sequence[ClassFile]) -> Array:
        """The class of each file (n,) int64. DataError for a class that train does not have."""
        indices: list[int] = []
        for file in files:
            name = file.class_name
            if name not in self.labels:
                raise DataError(
                    f"{file.path}: class {name!r} occurs in test only; train has "
                    f"{', '.join(self.labels)}. Move its files, or add a folder of this class to train",
                    public="a class occurs in the test part only",
                )
            indices.append(self.labels.index(name))
        return np.array(indices, np.int64)


def files_at(place: Path, suffixes: frozenset[str]) -> list[Path]:
    """The file at a path, or all files in a folder and in its folders, sorted by name. Hidden ones are left out."""
    if place.is_file():
        return [place]
    found: list[Path] = []
    for path in sorted(place.rglob("*")):
        hidden = any(name.startswith(".") for name in path.relative_to(place).parts)
        if path.suffix.lower() in suffixes and path.is_file() and not hidden:
            found.append(path)
    return found
