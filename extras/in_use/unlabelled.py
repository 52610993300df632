"""New samples without targets, read and prepared exactly as training samples are.

The samples pass the loaders and `fit` of training with a stand-in for their targets. A target column that a table has is
not read, unless predictions are to be compared with it: they must not depend on it, and new data may hold values that no
class has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covey.agent.data.arrays import ALIASES, read_npz
from covey.agent.data.cells import BadCells
from covey.agent.data.dataset import Array, Dataset, RawColumns, dataset
from covey.agent.data.fit import fit
from covey.agent.data.load import is_table, load, only_file
from covey.agent.data.table_files import open_table
from covey.agent.data.table_rows import listed
from covey.agent.data.tables import read_table
from covey.agent.data.values import spelled
from covey.agent.data_place import Source, place_of
from covey.extras.formats import images, sounds
from covey.extras.formats.class_folders import files_at
from covey.extras.formats.images import Form, ImageReader
from covey.extras.formats.parquet_images import image_column, pixels_of, read_rows
from covey.shared.errors import DataError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.task import Task

ACCEPTED = "a table (.csv, .tsv, .parquet), an .npz with x, an image or a .wav sound, a folder of them, or module:function"


@dataclass(frozen=True)
class UnlabelledSamples:
    """New samples in the form of a task."""

    data: Dataset  # its targets mean nothing; a single sample is in it twice, because a data set has two or more
    rows: Sequence[int]  # the number of each sample in its file, from 1
    # of images: their names below the folder, one per sample; empty for other data
    files: Sequence[str] = ()
    targets: Sequence[str] = ()  # as the file spells them, one per sample, if they were asked for


def load_unlabelled(
    path: Path, task: Task, label: str | None = None, *, with_targets: bool = False
) -> UnlabelledSamples:
    """Read the samples of a file, or the images of a folder.

    Args:
        path: a table, an .npz file, an image, or a folder: with one table or .npz file, or with images in it and in its
            folders. With or without targets. Or the code that `agent start --data` takes, whose training part counts.
        task: what the model was trained for.
        label: the column to leave out; None: if the table has more columns than the task has features, the task's
            target, or the one that is called like a target, or else the last one.
        with_targets: also read the targets of a table, or of an .npz file with `y`.

    Raises:
        DataError: the file cannot be read, its samples do not fit the task, or it has no targets and they are needed.
    """
    path = place_of(path)
    if not path.exists() and plugins.data_code(str(path)) is not None:
        loaded = load(path, allowed=AllowedCode.for_data(str(path)))
        return _samples(loaded.features, range(1, len(loaded.targets) + 1), task, str(path))
    if not path.exists():
        raise DataError(f"{path}: no such file; expected {ACCEPTED}", public="no such file")
    place = path
    if path.is_dir() and not isinstance(path, Source):
        place = only_file(path) or path
    if not task.has_own_columns and image_column(place) is not None:
        features = pixels_of(place, read_rows(place, label, label_needed=False), task)
        rows = range(1, len(features) + 1)
        return _samples(features, rows, task, str(place))
    if is_table(place):
        table = read_table(place, label, task, label_needed=with_targets)
        columns = table.raw_columns if task.has_own_columns else None
        samples = _samples(table.features, table.rows, task, str(place), columns)
        return replace(samples, targets=table.spelled)
    if place.suffix.lower() == ".npz":
        x = _array_of(place, "x")
        rows = range(1, len(x) + 1)
        samples = _samples(x, rows, task, str(place))
        if not with_targets:
            return samples
        return replace(samples, targets=[spelled(one) for one in _array_of(place, "y").tolist()])
    if with_targets:
        raise DataError(
            f"{path}: targets are read from a table or an .npz file with y only; predict without them",
            public="data without targets",
        )
    if place.is_dir() or place.suffix.lower() in images.SUFFIXES | sounds.SUFFIXES:
        return _files(place, task)
    raise DataError(
        f"{path}: unknown kind of file {path.suffix!r}; expected {ACCEPTED}",
        public="a file of an unknown kind",
    )


def _files(place: Path, task: Task) -> UnlabelledSamples:
    """One image or sound, or all in a folder and in its folders. The names of folders do not count."""
    paths = files_at(place, images.SUFFIXES) or files_at(place, sounds.SUFFIXES)
    if not paths:
        raise DataError(
            f"{place}: no images or sounds and no single table or .npz file; expected {ACCEPTED}",
            public="a folder without data",
        )
    if paths[0].suffix.lower() in sounds.SUFFIXES:
        features: Array = sounds.spectrograms(paths, task)
    else:
        reader = ImageReader(place, Form.of(task))
        features = reader.read(paths)
        reader.check()
    folder = place if place.is_dir() else place.parent
    files = [path.relative_to(folder).as_posix() for path in paths]
    rows = range(1, len(paths) + 1)
    return replace(_samples(features, rows, task, str(place)), files=files)


def cells_of(path: Path, task: Task, rows: Sequence[int], names: Sequence[str]) -> list[list[str]]:
    """The cells of some columns of a table, for some of its rows: one list for each row.

    Args:
        path: the table.
        task: its notation.
        rows: their numbers, from 1.
        names: the columns.

    Raises:
        DataError: it is no table, or has no such column.
    """
    place = place_of(path)
    if place.is_dir() and not isinstance(place, Source):
        place = only_file(path) or path
    if not is_table(place):
        raise DataError(f"{path}: no table; only a table has columns to keep", public="no table")
    found: dict[int, list[str]] = {}
    with open_table(place, names, 1, task.read) as file:
        unknown = [name for name in names if name not in file.positions]
        if unknown:
            raise DataError(
                f"{place}: no column {listed(unknown)}; the columns are {listed(file.columns)}",
                public="a column is missing",
            )
        for block in file.blocks(names, BadCells(place)):
            columns = [map(spelled, block.cells[name]) for name in names]
            found.update(zip(block.rows, map(list, zip(*columns, strict=True)), strict=True))
    return [found[row] for row in rows]


def _array_of(path: Path, name: str) -> Array:
    """The samples (x) or targets (y) in an .npz file."""
    arrays = read_npz(path)
    for alias in ALIASES[name]:
        if alias in arrays:
            return arrays[alias]
    raise DataError(f"{path}: no array {name}; expected it under this name", public=f"no {name}")


def _samples(
    features: Array, rows: Sequence[int], task: Task, source: str, columns: RawColumns | None = None
) -> UnlabelledSamples:
    """Samples with stand-ins for their targets: the first class, or 0."""
    repeated = features
    if len(rows) == 1:
        repeated = np.concatenate([features, features])
    targets = np.zeros(
        (len(repeated), task.outputs if task.kind in ("values", "labels") else 1), np.int64
    )
    names: tuple[str, ...] = ()
    if isinstance(task.classes, tuple) and task.kind != "labels":
        names = task.classes
    data = dataset(repeated, targets, source=source, labels=names, columns=columns)
    return UnlabelledSamples(fit(data, task), rows)
