"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), binary version. No pickle, and nothing is extracted to disk."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.limits import Unpacked, check_size, unpacked_limit
from covey.shared.errors import DataError

IMAGE_SHAPE = (3, 32, 32)
PIXEL_BYTES = 3 * 32 * 32
SUFFIXES = (".bin", ".txt")
MAX_FILES = 100
PLAIN_MEMBERS = (tarfile.REGTYPE, tarfile.AREGTYPE)
GZIP_MAGIC = b"\x1f\x8b"

Files = Mapping[str, bytes]  # content by name


@dataclass(frozen=True)
class _Version:
    """The files of one of the two data sets."""

    train: tuple[str, ...]
    test: str
    class_names: str  # may be missing
    label_bytes: int  # before the pixels of each record; the last of them is the label


CIFAR_10 = _Version(
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    class_names="batches.meta.txt",
    label_bytes=1,
)
CIFAR_100 = _Version(
    train=("train.bin",),
    test="test.bin",
    class_names="fine_label_names.txt",
    label_bytes=2,  # coarse label, then fine label
)


def is_cifar(path: Path) -> bool:
    """Whether this is a folder of CIFAR's .bin files; an archive is known by its name."""
    if (path / "train.bin").is_file():
        return True
    return path.is_dir() and any(path.glob("*_batch*.bin"))


def load_cifar(path: Path) -> Dataset:
    """The `.tar.gz` as it ships, or the folder of its `.bin` files.

    Returns:
        Images (n, 3, 32, 32) uint8. CIFAR-100 is read with its 100 fine classes.

    Raises:
        DataError: a file is missing or damaged; it names the file.
    """
    files = _folder_files(path) if path.is_dir() else _archive_files(path)
    version = _version_of(path, files)
    missing = sorted({*version.train, version.test} - set(files))
    if missing:
        names = ", ".join(missing)
        fault = f"{names} missing: the data set is incomplete; copy it again"
        raise DataError(f"{path}: {fault}", public=fault)
    image_parts: list[Array] = []
    label_parts: list[Array] = []
    for name in sorted(files):
        if _is_train(name):
            images_of_file, labels_of_file = _records(path, name, files[name], version)
            image_parts.append(images_of_file)
            label_parts.append(labels_of_file)
    features = np.concatenate(image_parts)
    targets = np.concatenate(label_parts)
    test = _records(path, version.test, files[version.test], version)
    labels = _class_names(path, files.get(version.class_names, b""))
    return dataset(features, targets, test, source=str(path), labels=labels, ordered=bool(labels))


def _is_train(name: str) -> bool:
    return name.startswith("data_batch") or name in CIFAR_100.train


def _version_of(path: Path, files: Files) -> _Version:
    """Which of the two data sets the training files belong to. DataError if there are none."""
    train = [name for name in files if _is_train(name)]
    if not train:
        fault = "no data_batch_*.bin and no train.bin"
        found = ", ".join(sorted(files)) or "nothing"
        raise DataError(f"{path}: {fault} among {found}", public=fault)
    if tuple(train) == CIFAR_100.train:
        return CIFAR_100
    return CIFAR_10


def _class_names(path: Path, content: bytes) -> tuple[str, ...]:
    """One name per class, in the order of their labels."""
    try:
        return tuple(content.decode().split())
    except UnicodeDecodeError:
        fault = "the file of class names is not UTF-8 text"
        raise DataError(f"{path}: {fault}; copy it again", public=fault) from None


def _records(path: Path, name: str, content: bytes, version: _Version) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and labels (n,), both uint8, of one file."""
    size = version.label_bytes + PIXEL_BYTES
    if not content or len(content) % size:
        fault = f"{len(content)} bytes are not a whole number of records of {size} bytes"
        raise DataError(
            f"{path}/{name}: {fault}; copy it again", public=f"a file of CIFAR is damaged: {fault}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    first_pixel = version.label_bytes
    return records[:, first_pixel:].reshape(-1, *IMAGE_SHAPE), records[:, first_pixel - 1]


def _folder_files(folder: Path) -> Files:
    """The files of a folder that could be CIFAR's."""
    files: dict[str, bytes] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in SUFFIXES and path.is_file():
            files[path.name] = path.read_bytes()
    return files


def _archive_files(path: Path) -> Files:
    """The plain files of an archive, by their last name: no link is followed, and nothing is written to disk."""
    files: dict[str, bytes] = {}
    limit = unpacked_limit(path)
    try:
        with path.open("rb") as raw, _plain(raw) as plain:
            # all that tarfile asks of a stream is to be read
            stream: Any = Unpacked(plain, path, limit)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    # a sparse member claims more than it holds
                    check_size(path, member.size, limit)
                    if member.type in PLAIN_MEMBERS and member.name.endswith(SUFFIXES):
                        _add_member(path, files, archive, member)
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        fault = "cut short or not a tar archive"
        raise DataError(
            f"{path}: {fault} ({error}); copy it again", public=f"an archive is {fault}"
        ) from None
    return files


def _plain(raw: IO[bytes]) -> IO[bytes]:
    """The content as it was before compression."""
    start = raw.read(len(GZIP_MAGIC))
    raw.seek(0)
    if start != GZIP_MAGIC:
        return raw
    unzipped = gzip.GzipFile(fileobj=raw)
    return cast(IO[bytes], unzipped)


def _add_member(
    path: Path, files: dict[str, bytes], archive: tarfile.TarFile, member: tarfile.TarInfo
) -> None:
    """Read a member into `files`. DataError for a second one of its name, and for too many."""
    name = Path(member.name).name
    if name in files:
        raise DataError(
            f"{path}: {name} occurs twice; keep one of them",
            public="an archive holds two files of one name",
        )
    if len(files) >= MAX_FILES:
        fault = f"more than {MAX_FILES} files, CIFAR has 8"
        raise DataError(f"{path}: {fault}", public=f"an archive holds {fault}")
    content = archive.extractfile(member)
    files[name] = b""
    if content is not None:
        files[name] = content.read()
