"""The standard files of the benchmark sets: IDX as MNIST and EMNIST ship, CIFAR's binary version. No pickle, no extraction."""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from agent.data.dataset import Array, Dataset, dataset
from shared.errors import DataError

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CIFAR_PIXELS = 3 * 32 * 32
BATCHES = 5  # training files of CIFAR-10
DIGITS, UPPER = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MERGED = DIGITS + UPPER + "abdefghnqrt"  # small letters that look like their capitals count as these
EMNIST_CLASSES = {
    "byclass": DIGITS + UPPER + UPPER.lower(),
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": UPPER,
    "digits": DIGITS,
    "mnist": DIGITS,
}


def read_idx(path: Path) -> Array:
    """One IDX file, gzipped or not, as an array of its own shape."""
    content = _unzipped(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        raise DataError(f"{path}: not an IDX file (it starts with {content[:4].hex() or 'nothing'})")
    axes = content[3]
    shape = tuple(int(n) for n in np.frombuffer(content[4 : 4 + 4 * axes], ">u4"))
    dtype = np.dtype(IDX_TYPES[content[2]])
    wanted = 4 + 4 * axes + math.prod(shape) * dtype.itemsize
    if len(shape) != axes or len(content) != wanted:
        raise DataError(f"{path}: {len(content)} bytes, its header asks for {wanted}: cut short or damaged")
    return np.frombuffer(content, dtype, offset=4 + 4 * axes).reshape(shape).astype(dtype.newbyteorder("="))


def is_idx(path: Path) -> bool:
    """A folder of IDX files, or the file of training images itself."""
    return bool(_idx_files(path, "train", "images")) if path.is_dir() else "train-images" in path.name


def load_idx(path: Path) -> Dataset:
    """`train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` and, if there, `t10k-...` (or `test-...`).

    `path` is their folder, or the training images where the folder holds more than one set, as EMNIST's does.
    Images (n, h, w) become (n, 1, h, w). EMNIST (Cohen et al. 2017), known by its file names
    (`emnist-letters-train-...`), stores its images by columns: they are turned upright, as MNIST's are.
    Its `letters` count from 1 and become 0 to 25. DataError names the file.
    """
    folder = path if path.is_dir() else path.parent
    sets = sorted({p.name.split("train-images")[0] for p in _idx_files(folder, "train", "images")})
    name = path.name.split("train-images")[0] if path.is_file() else "".join(sets[:1])
    if path.is_dir() and len(sets) > 1:
        files = ", ".join(f"{one}train-images-idx3-ubyte" for one in sets)
        raise DataError(f"{path}: {len(sets)} data sets; name the training images of one of them: {files}")
    train = _idx_pair(folder, f"{name}train")
    if train is None:
        raise DataError(f"{path}: no train-images-idx3-ubyte(.gz)")
    test = _idx_pair(folder, f"{name}t10k") or _idx_pair(folder, f"{name}test")
    if not name.startswith("emnist-"):
        return dataset(*train, test, source=str(path))
    classes = _emnist_classes(path, name)
    upright = [_emnist(path, name, pair, classes) for pair in (train, test) if pair]
    return dataset(*upright[0], upright[1] if test else None, source=str(path), labels=tuple(classes), ordered=True)


def is_cifar(path: Path) -> bool:
    """A folder of CIFAR's .bin files; an archive is known by its name."""
    return (path.is_dir() and any(path.glob("*_batch*.bin"))) or (path / "train.bin").is_file()


def load_cifar(path: Path) -> Dataset:
    """CIFAR-10 or CIFAR-100, binary version: the `.tar.gz` as it ships, or the folder of its `.bin` files.

    CIFAR-100 is read with its 100 fine classes.
    """
    files = _folder_files(path) if path.is_dir() else _archive_files(path)
    names = sorted(name for name in files if name.startswith("data_batch") or name == "train.bin")
    if not names:
        raise DataError(f"{path}: no data_batch_*.bin and no train.bin among {', '.join(sorted(files)) or 'nothing'}")
    hundred = names == ["train.bin"]
    wanted = [] if hundred else [f"data_batch_{i}.bin" for i in range(1, BATCHES + 1)]
    if lacking := sorted({*wanted, "test.bin" if hundred else "test_batch.bin"} - set(files)):
        raise DataError(
            f"{path}: {', '.join(lacking)} missing: a part of the data set would be left out; copy it again"
        )
    parts = [_cifar_records(f"{path}/{name}", files[name], hundred) for name in names]
    test_name = "test.bin" if hundred else "test_batch.bin"
    test = _cifar_records(f"{path}/{test_name}", files[test_name], hundred) if test_name in files else None
    labels = files.get("fine_label_names.txt" if hundred else "batches.meta.txt", b"").decode().split()
    features, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
    return dataset(features, targets, test, source=str(path), labels=tuple(labels), ordered=bool(labels))


def _unzipped(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: cut short or not a gzip file ({error}); copy it again") from None


def _emnist_classes(path: Path, name: str) -> str:
    split = name.removeprefix("emnist-").rstrip("-")
    if split not in EMNIST_CLASSES:
        raise DataError(f"{path}: EMNIST has no split {split!r}; it has {', '.join(EMNIST_CLASSES)}")
    return EMNIST_CLASSES[split]


def _emnist(path: Path, name: str, pair: tuple[Array, Array], classes: str) -> tuple[Array, Array]:
    """Upright images, and labels from 0."""
    images, labels = pair
    first = 1 if name == "emnist-letters-" else 0
    if images.ndim != 4 or labels.min(initial=first) < first or labels.max(initial=first) >= first + len(classes):
        seen = f"images {images.shape[1:]}, labels {labels.min(initial=first)} to {labels.max(initial=first)}"
        raise DataError(f"{path}: {name}: {seen}; labels from {first} to {first + len(classes) - 1} are wanted")
    return np.ascontiguousarray(images.transpose(0, 1, 3, 2)), labels.astype(np.int64) - first


def _idx_files(folder: Path, part: str, kind: str, start: str = "*") -> list[Path]:
    found = folder.glob(f"{start}{part}-{kind}*idx*")
    return sorted(p for p in found if p.suffix == ".gz" or "ubyte" in p.name)


def _idx_pair(folder: Path, part: str) -> tuple[Array, Array] | None:
    images, labels = _idx_files(folder, part, "images", ""), _idx_files(folder, part, "labels", "")
    if not images:
        return None
    if not labels:
        raise DataError(f"{folder}: {images[0].name} is there, its labels ({part}-labels-idx1-ubyte.gz) are not")
    x, y = read_idx(images[0]), read_idx(labels[0])
    return (x[:, None] if x.ndim == 3 else x), y


def _folder_files(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in {".bin", ".txt"}}


def _archive_files(path: Path) -> Mapping[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content and member.name.endswith((".bin", ".txt")):
                    files[Path(member.name).name] = content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: cut short or not a tar archive ({error}); copy it again") from None
    return files


def _cifar_records(where: str, content: bytes, hundred: bool) -> tuple[Array, Array]:
    head = 2 if hundred else 1  # CIFAR-100: coarse label, then fine label
    if not content or len(content) % (head + CIFAR_PIXELS):
        raise DataError(f"{where}: {len(content)} bytes are no whole number of records of {head + CIFAR_PIXELS} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, head + CIFAR_PIXELS)
    return records[:, head:].reshape(-1, 3, 32, 32), records[:, head - 1]
