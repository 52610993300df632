"""New samples without targets, read and prepared exactly as training samples are.

The samples pass the loaders and `fit` of training with a stand-in for their targets. A target column that a table has is
not read: predictions must not depend on it, and new data may hold values that no class has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covey.agent.data.arrays import ALIASES, read_npz
from covey.agent.data.dataset import Array, Dataset, RawColumns, dataset
from covey.agent.data.fit import fit
from covey.agent.data.image_reader import Form, ImageReader
from covey.agent.data.images import is_image_name, new_images
from covey.agent.data.load import TABLES, load, only_file
from covey.agent.data.parquet_images import image_column, pixels_of, read_rows
from covey.agent.data.tables import read_table
from covey.shared import plugins
from covey.shared.consent import AllowedCode
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task

ACCEPTED = "a table (.csv, .tsv, .parquet), an .npz with x, an image, a folder of images, or module:function"


@dataclass(frozen=True)
class Samples:
    """New samples in the form of a task."""

    data: Dataset  # its targets mean nothing; a single sample is in it twice, because a data set has two or more
    rows: Sequence[int]  # the number of each sample in its file, from 1
    files: Sequence[
        str
    ] = ()  # of images: their names below the folder, one per sample; empty for other data


def load_unlabelled(path: Path, task: Task, label: str | None = None) -> Samples:
    """Read the samples of a file, or the images of a folder.

    Args:
        path: a table, an .npz file, an image, or a folder: with one table or .npz file, or with images in it and in its
            folders. With or without targets. Or the code that `agent start --data` takes, whose training part counts.
        task: what the model was trained for.
        label: the column to leave out; None: if the table has more columns than the task has features, the task's
            target, or the one that is called like a target, or else the last one.

    Raises:
        DataError: the file cannot be read, or its samples do not fit the task.
    """
    if not path.exists() and plugins.data_code(str(path)) is not None:
        loaded = load(path, allowed=AllowedCode.for_data(str(path)))
        return _samples(loaded.features, range(1, len(loaded.targets) + 1), task, str(path))
    if not path.exists():
        raise DataError(f"{path}: no such file; expected {ACCEPTED}", public="no such file")
    place = path
    if path.is_dir():
        place = only_file(path) or path
    if not task.has_own_columns and image_column(place) is not None:
        features = pixels_of(place, read_rows(place, label, label_needed=False), task)
        rows = range(1, len(features) + 1)
        return _samples(features, rows, task, str(place))
    if place.suffix.lower() in TABLES:
        table = read_table(place, label, task, label_needed=False)
        columns = table.raw_columns if task.has_own_columns else None
        return _samples(table.features, table.rows, task, str(place), columns)
    if place.suffix.lower() == ".npz":
        x = _features_of(place)
        rows = range(1, len(x) + 1)
        return _samples(x, rows, task, str(place))
    if place.is_dir() or is_image_name(place):
        return _images(place, task)
    raise DataError(
        f"{path}: unknown kind of file {path.suffix!r}; expected {ACCEPTED}",
        public="a file of an unknown kind",
    )


def _images(place: Path, task: Task) -> Samples:
    """One image, or all images in a folder and in its folders. The names of folders do not count."""
    paths = new_images(place)
    if not paths:
        raise DataError(
            f"{place}: no images and no single table or .npz file; expected {ACCEPTED}",
            public="a folder without data",
        )
    reader = ImageReader(place, Form.of(task))
    features = reader.read(paths)
    reader.check()
    folder = place if place.is_dir() else place.parent
    files = [path.relative_to(folder).as_posix() for path in paths]
    rows = range(1, len(paths) + 1)
    return replace(_samples(features, rows, task, str(place)), files=files)


def _features_of(path: Path) -> Array:
    """The samples in an .npz file."""
    arrays = read_npz(path)
    for name in ALIASES["x"]:
        if name in arrays:
            return arrays[name]
    raise DataError(f"{path}: no array x; expected the samples under this name", public="no x")


def _samples(
    features: Array, rows: Sequence[int], task: Task, source: str, columns: RawColumns | None = None
) -> Samples:
    """Samples with stand-ins for their targets: the first class, or 0."""
    repeated = features
    if len(rows) == 1:
        repeated = np.concatenate([features, features])
    targets = np.zeros(len(repeated), np.int64)
    names: tuple[str, ...] = ()
    if isinstance(task.classes, tuple):
        names = task.classes
    data = dataset(repeated, targets, source=source, labels=names, columns=columns)
    return Samples(fit(data, task), rows)
