"""Data of any accepted kind: its file names and its suffix select the loader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from covey.agent.data.arrays import load_function, load_installed, load_npz
from covey.agent.data.dataset import Dataset
from covey.agent.data_place import DAILY, FORM, Source, is_named_table, place_of
from covey.shared import extras
from covey.shared.errors import DataError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import NO_CODE, AllowedCode
from covey.shared.scenario.task import Task

if TYPE_CHECKING:
    from covey.extras.formats.class_folders import ClassFolders

TABLES = DAILY
ACCEPTED = (
    "a table (.csv, .tsv, .txt, .jsonl, .parquet), a folder of tables with dates in their names, an .npz with x and y, a folder per class of "
    f"images or of .wav sounds, {FORM}, module:function, or a data source that an installed package adds"
)

# Published data sets that are not read: the names of their files -> what it is, and the format of scripts/to_npz.py.
PUBLISHED_FILES = {
    "*train-images*": ("an IDX file", "idx"),
    "*cifar-100*.tar*": ("CIFAR-100's archive", "cifar100"),
    "*.tar*": ("an archive such as CIFAR-10's", "cifar10"),
    "*.tgz": ("an archive such as CIFAR-10's", "cifar10"),
    "*_32x32.mat": ("a file of SVHN", "svhn"),
    "*.mat": ("a MATLAB file", "mat"),
    "*.json": ("a JSON file such as LEAF's", "leaf"),
}
PUBLISHED_FOLDERS = {
    "*train-images*": ("a folder of IDX files", "idx"),
    "data_batch_*.bin": ("a folder of CIFAR-10's batches", "cifar10"),
    "train.bin": ("a folder of CIFAR-100's batches", "cifar100"),
    "train_32x32.mat": ("SVHN's folder", "svhn"),
    "train/*.json": ("a folder of LEAF", "leaf"),
}


def _check_not_published(place: Path) -> None:
    """DataError for a data set as its authors publish it, with the command that makes an .npz of it."""
    folder = place.is_dir()
    for pattern, (what, kind) in (PUBLISHED_FOLDERS if folder else PUBLISHED_FILES).items():
        if any(place.glob(pattern)) if folder else place.match(pattern):
            advice = f"make an .npz of it: python scripts/to_npz.py {kind}"
            raise DataError(
                f"{place}: {what} is not read; {advice} {place} {kind}.npz",
                public=f"the data is {what}, which is not read; {advice} SOURCE OUT.npz",
            )


def _table(
    path: Path, label: str | None, test: Path | None = None, task: Task | None = None
) -> Dataset:
    from covey.agent.data.tables import load_table

    return load_table(path, label, test, task)


def is_image_folder(folder: Path) -> bool:
    """Whether a folder has one folder of images for each class."""
    found = _images_in(folder)
    return bool(found and found.train)


def _images_in(folder: Path) -> ClassFolders | None:
    """The folders of images in a folder; None where nothing can read them."""
    if not extras.has("formats"):
        return None
    return cast("ClassFolders", extras.part("formats", "images").image_folders(folder))


def _sounds_in(folder: Path) -> ClassFolders | None:
    if not extras.has("formats"):
        return None
    return cast("ClassFolders", extras.part("formats", "sounds").sound_folders(folder))


def class_folders(place: Path) -> ClassFolders | None:
    """The files that `load` reads at a path, if they are images or sounds in a folder for each class."""
    if not place.is_dir() or _tables_and_arrays(place):
        return None
    return next((one for one in (_images_in(place), _sounds_in(place)) if one and one.train), None)


def load(
    path: str | Path,
    label: str | None = None,
    allowed: AllowedCode = NO_CODE,
    task: Task | None = None,
) -> Dataset:
    """Load the data at a path, or from a data source. A path takes precedence over code of the same name.

    Args:
        path: a file, a folder, `module:function[:PATH]`, or the name of a data source that an installed package adds.
        label: the label column of a table; None: the task's target, else the column called `label`, else the last one.
        allowed: the code that may be imported.
        task: if it names the columns of a table, these are read.

    Raises:
        DataError: the data is missing, of an unknown kind or damaged; it names the file and, in a table, the cell.
        ConsentError: `path` names code that is not allowed.
    """
    place = place_of(path)
    if isinstance(place, Source):
        return _table(place, label, task=task)
    if place.is_dir():
        return _folder(place, label, task)
    if place.is_file():
        return _file(place, label, task)
    name = str(path)
    match plugins.data_code(name):
        case "function":
            return load_function(name, allowed)
        case "package":
            return load_installed(name, allowed)
        case None:
            raise DataError(
                f"{path}: no such file or folder; expected {ACCEPTED}",
                public="the given path does not exist",
            )


def has_image_column(path: Path) -> bool:
    """Whether a Parquet file has a column of images that can be read here."""
    return (
        extras.has("formats")
        and extras.part("formats", "parquet_images").image_column(path) is not None
    )


def _file(path: Path, label: str | None, task: Task | None) -> Dataset:
    """One file, by its name. DataError for a name of no known kind."""
    may_hold_images = path.suffix.lower() == ".parquet" and (
        task is None or not task.has_own_columns
    )
    if may_hold_images and has_image_column(path):
        load_images = extras.part("formats", "parquet_images").load_image_column
        return cast(Dataset, load_images(path, label, task))
    if path.suffix.lower() in TABLES or is_named_table(path):
        return _table(path, label, task=task)
    if path.suffix.lower() == ".npz":
        return load_npz(path)
    _check_not_published(path)
    from covey.agent.data.table_rows import check_is_text

    check_is_text(path, is_named=False)
    raise DataError(
        f"{path}: unknown kind of file {path.suffix!r}; expected {ACCEPTED}",
        public="the data is a file of an unknown kind",
    )


def _folder(folder: Path, label: str | None, task: Task | None) -> Dataset:
    """A data set of several files, the only file that can be loaded, or a folder of images."""
    tables = _train_and_test(folder)
    if tables:
        train, test = tables
        return _table(train, label, test, task)
    files = _tables_and_arrays(folder)
    if len(files) == 1:
        return _file(files[0], label, task)
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:5])
        raise DataError(
            f"{folder}: {len(files)} files ({names}); give the path of one, of each in turn if they are devices, or name "
            "two of them train and test",
            public=f"the data folder holds {len(files)} files; expected one, or train and test",
        )
    if is_image_folder(folder):
        images: Dataset = extras.part("formats", "images").load_image_folder(folder, task)
        return images
    if class_folders(folder):
        sounds: Dataset = extras.part("formats", "sounds").load_sound_folder(folder, task)
        return sounds
    _check_not_published(folder)
    seen = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    raise DataError(
        f"{folder}: found {seen}; expected {ACCEPTED}",
        public="the data folder holds data of an unknown kind",
    )


def is_table(place: Path) -> bool:
    """Whether a place is read as the rows of one table."""
    if isinstance(place, Source) or place.suffix.lower() in TABLES:
        return True
    return place.is_file() and is_named_table(place)


def tables_at(place: Path) -> tuple[Path, ...]:
    """The tables that `load` reads at a path: one, or a training and a test table. None if it reads something else."""
    if isinstance(place, Source):
        return (place,)
    if place.is_file():
        return (place,) if is_table(place) else ()
    if not place.is_dir():
        return ()
    both = _train_and_test(place)
    if both:
        return both
    files = _tables_and_arrays(place)
    if len(files) == 1 and files[0].suffix.lower() in TABLES:
        return (files[0],)
    return ()


def has_images(place: Path) -> bool:
    """Whether `load` reads a folder of images at a path."""
    return place.is_dir() and not _tables_and_arrays(place) and is_image_folder(place)


def only_file(folder: Path) -> Path | None:
    """The only table or .npz file of a folder; None if there is none, or several."""
    files = _tables_and_arrays(folder)
    if len(files) == 1:
        return files[0]
    return None


def is_loadable(place: Path) -> bool:
    """Whether `load` recognises the data at a path as that of one device. Nothing is read."""
    if place.is_file():
        return is_table(place) or place.suffix.lower() == ".npz"
    if not place.is_dir():
        return False
    if tables_at(place):
        return True
    return len(_tables_and_arrays(place)) == 1 or class_folders(place) is not None


def _train_and_test(folder: Path) -> tuple[Path, ...]:
    """The tables called train and test; empty unless a folder has both."""
    by_stem = {path.stem.lower(): path for path in _tables_and_arrays(folder)}
    train = by_stem.get("train")
    test = by_stem.get("test")
    if train is None or test is None or train.suffix.lower() not in TABLES:
        return ()
    return train, test


def _tables_and_arrays(folder: Path) -> list[Path]:
    """The tables and .npz files of a folder, sorted; hidden files are left out."""
    kinds = (*TABLES, ".npz")
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in visible if path.suffix.lower() in kinds)
