"""IDX files, as MNIST, Fashion-MNIST and EMNIST ship them. Nothing is extracted to disk."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.limits import Unpacked, check_size, unpacked_limit
from covey.shared.errors import DataError

# the third byte of a file -> numpy's type (LeCun, "The MNIST database": the IDX file format)
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_AXES = 8
Shape = tuple[int, ...]

DIGITS = "0123456789"
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# small letters that look like their capitals count as these
MERGED = DIGITS + CAPITALS + "abdefghnqrt"
EMNIST_CLASSES = {
    "byclass": DIGITS + CAPITALS + CAPITALS.lower(),
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": CAPITALS,
    "digits": DIGITS,
    "mnist": DIGITS,
}
EMNIST_PREFIX = "emnist-"
LETTERS_PREFIX = "emnist-letters-"  # the only split whose labels count from 1


def is_idx(path: Path) -> bool:
    """Whether this is a folder of IDX files, or the file of training images itself."""
    if path.is_dir():
        return bool(_files(path, "*train-images"))
    return "train-images" in path.name


def load_idx(path: Path) -> Dataset:
    """`train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` and, if present, `t10k-...` (or `test-...`).

    EMNIST (Cohen et al. 2017), known by its file names (`emnist-letters-train-...`), stores its images by columns: they
    are turned upright, as MNIST's are. Its `letters` count from 1 and become 0 to 25.

    Args:
        path: the folder of the files, or the training images if the folder holds several sets, as EMNIST's does.

    Returns:
        Images (n, h, w) as (n, 1, h, w), in the type of their file.

    Raises:
        DataError: a file is missing, damaged, or does not belong to the others; it names the file.
    """
    folder = path
    if not path.is_dir():
        folder = path.parent
    prefix = _set_prefix(path)
    train = _pair(folder, f"{prefix}train")
    if train is None:
        fault = "no train-images-idx3-ubyte(.gz)"
        raise DataError(f"{path}: {fault}", public=fault)
    test = _pair(folder, f"{prefix}t10k")
    if test is None:
        test = _pair(folder, f"{prefix}test")
    if not prefix.startswith(EMNIST_PREFIX):
        return dataset(*train, test, source=str(path))
    classes = _emnist_classes(path, prefix)
    upright = _emnist(path, prefix, train, classes)
    upright_test = None
    if test is not None:
        upright_test = _emnist(path, prefix, test, classes)
    return dataset(*upright, upright_test, source=str(path), labels=tuple(classes), ordered=True)


def read_idx(path: Path) -> Array:
    """One IDX file, gzipped or not, as an array of its own shape. The header is checked before anything is unpacked.

    Raises:
        DataError: damaged, cut short, or larger than its limit.
    """
    limit = unpacked_limit(path)
    try:
        with path.open("rb") as raw, _plain(path, raw) as plain:
            file = Unpacked(plain, path, limit)
            dtype, shape = _header(path, file)
            size = math.prod(shape) * dtype.itemsize
            check_size(path, size, limit)
            content = file.read(size)
            excess = file.read(1)
    except (EOFError, OSError, zlib.error) as error:
        fault = "cut short or not a gzip file"
        raise DataError(
            f"{path}: {fault} ({error}); copy it again", public=f"an IDX file is {fault}"
        ) from None
    if len(content) != size or excess:
        seen = str(len(content))
        if excess:
            seen = f"more than {size}"
        fault = f"{seen} bytes of values, its header asks for {size}: cut short or damaged"
        raise DataError(f"{path}: {fault}; copy it again", public=f"an IDX file holds {fault}")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _plain(path: Path, raw: IO[bytes]) -> IO[bytes]:
    """The content as it was before compression."""
    if path.suffix != ".gz":
        return raw
    unzipped = gzip.GzipFile(fileobj=raw)
    return cast(IO[bytes], unzipped)


def _header(path: Path, file: Unpacked) -> tuple[np.dtype[Any], Shape]:
    """The type and the shape that an IDX file claims."""
    magic = file.read(4)
    zeros = magic[:2]
    if len(magic) < 4 or zeros != b"\0\0" or magic[2] not in TYPES:
        start = magic.hex() or "nothing"
        raise DataError(
            f"{path}: not an IDX file (it starts with {start})", public="not an IDX file"
        )
    axes = magic[3]
    if not 1 <= axes <= MAX_AXES:
        fault = f"its header claims {axes} axes; expected 1 to {MAX_AXES}"
        raise DataError(f"{path}: {fault}", public=f"an IDX file is damaged: {fault}")
    size = 4 * axes  # a length of four bytes for each axis
    lengths = file.read(size)
    if len(lengths) < size:
        fault = "cut short in its header"
        raise DataError(f"{path}: {fault}; copy it again", public=f"an IDX file is {fault}")
    return np.dtype(TYPES[magic[2]]), tuple(np.frombuffer(lengths, ">u4").tolist())


def _set_prefix(path: Path) -> str:
    """What the names of a set's files begin with: "" for MNIST, "emnist-letters-" for a split of EMNIST."""
    if path.is_file():
        return _prefix_of(path)
    found: set[str] = set()
    for file in _files(path, "*train-images"):
        prefix = _prefix_of(file)
        found.add(prefix)
    prefixes = sorted(found)
    if len(prefixes) > 1:
        files = ", ".join(f"{prefix}train-images-idx3-ubyte" for prefix in prefixes)
        raise DataError(
            f"{path}: {len(prefixes)} data sets; give the training images of one of them: {files}",
            public=f"the data folder holds {len(prefixes)} data sets; expected one",
        )
    return "".join(prefixes)


def _prefix_of(images: Path) -> str:
    """The part of the name before `train-images`."""
    prefix, _, _ = images.name.partition("train-images")
    return prefix


def _pair(folder: Path, part: str) -> tuple[Array, Array] | None:
    """Images and labels of a part such as "train"; None if the folder has no such images."""
    images = _files(folder, f"{part}-images")
    if not images:
        return None
    labels = _files(folder, f"{part}-labels")
    if not labels:
        raise DataError(
            f"{folder}: {images[0].name} has no file of its labels ({part}-labels-idx1-ubyte.gz); "
            "copy that one too",
            public="a file of images is there, the file of its labels is not",
        )
    x = read_idx(images[0])
    y = read_idx(labels[0])
    if x.ndim == 3:
        x = x[:, None]  # one channel
    return x, y


def _files(folder: Path, start: str) -> list[Path]:
    """The IDX files whose name begins like this pattern, sorted."""
    found: list[Path] = []
    for path in folder.glob(f"{start}*idx*"):
        if path.suffix == ".gz" or "ubyte" in path.name:
            found.append(path)
    return sorted(found)


def _emnist_classes(path: Path, prefix: str) -> str:
    """The character of each class."""
    split = prefix.removeprefix(EMNIST_PREFIX).rstrip("-")
    if split not in EMNIST_CLASSES:
        expected = f"it has {', '.join(EMNIST_CLASSES)}"
        raise DataError(
            f"{path}: EMNIST has no split {split!r}; {expected}",
            public=f"EMNIST has no such split; {expected}",
        )
    return EMNIST_CLASSES[split]


def _emnist(
    path: Path, prefix: str, pair: tuple[Array, Array], classes: str
) -> tuple[Array, Array]:
    """Upright images, and labels from 0."""
    images, labels = pair
    first = 1 if prefix == LETTERS_PREFIX else 0
    last = first + len(classes) - 1
    smallest = labels.min(initial=first)
    largest = labels.max(initial=first)
    if images.ndim != 4 or smallest < first or largest > last:
        expected = f"expected labels from {first} to {last}"
        shape = images.shape[1:]
        raise DataError(
            f"{path}: {prefix}: images {shape}, labels {smallest} to {largest}; {expected}: copy "
            "the files again",
            public=f"EMNIST's images or labels are damaged; {expected}",
        )
    return np.ascontiguousarray(images.transpose(0, 1, 3, 2)), labels.astype(np.int64) - first
