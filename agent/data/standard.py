"""The standard files of the benchmark sets: IDX as MNIST and EMNIST ship, CIFAR's binary version. No pickle, no extraction."""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.limits import Unpacked, check_size, unpacked_limit
from covey.shared.errors import DataError

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CIFAR_PIXELS = 3 * 32 * 32
BATCHES = 5  # training files of CIFAR-10
CIFAR_SUFFIXES = (".bin", ".txt")
MAX_CIFAR_FILES = 100
PLAIN_MEMBERS = (tarfile.REGTYPE, tarfile.AREGTYPE)
MAX_IDX_AXES = 8
GZIP_MAGIC = b"\x1f\x8b"
DIGITS, UPPER = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MERGED = (
    DIGITS + UPPER + "abdefghnqrt"
)  # small letters that look like their capitals count as these
EMNIST_CLASSES = {
    "byclass": DIGITS + UPPER + UPPER.lower(),
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": UPPER,
    "digits": DIGITS,
    "mnist": DIGITS,
}


def read_idx(path: Path) -> Array:
    """One IDX file, gzipped or not, as an array of its own shape. The header is checked before anything is unpacked."""
    limit = unpacked_limit(path)
    try:
        with path.open("rb") as raw, _plain(raw, zipped=path.suffix == ".gz") as plain:
            file = Unpacked(plain, path, limit)
            dtype, shape = _idx_header(path, file)
            size = math.prod(shape) * dtype.itemsize
            check_size(path, size, limit)
            content = file.read(size)
            more = file.read(1)
    except (EOFError, OSError, zlib.error) as error:
        fault = "cut short or not a gzip file"
        raise DataError(
            f"{path}: {fault} ({error}); copy it again", public=f"an IDX file is {fault}"
        ) from None
    if len(content) != size or more:
        seen = f"more than {size}" if more else str(len(content))
        fault = f"{seen} bytes of values, its header asks for {size}: cut short or damaged"
        raise DataError(f"{path}: {fault}", public=f"an IDX file holds {fault}")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _idx_header(path: Path, file: Unpacked) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and the shape that an IDX file claims."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES:
        raise DataError(
            f"{path}: not an IDX file (it starts with {magic.hex() or 'nothing'})",
            public="a file is no IDX file",
        )
    axes = magic[3]
    if not 1 <= axes <= MAX_IDX_AXES:
        fault = f"its header claims {axes} axes; 1 to {MAX_IDX_AXES} are expected"
        raise DataError(f"{path}: {fault}", public=f"an IDX file is damaged: {fault}")
    lengths = file.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise DataError(
            f"{path}: cut short in its header", public="an IDX file is cut short in its header"
        )
    shape = tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
    return np.dtype(IDX_TYPES[magic[2]]), shape


def is_idx(path: Path) -> bool:
    """A folder of IDX files, or the file of training images itself."""
    return (
        bool(_idx_files(path, "train", "images")) if path.is_dir() else "train-images" in path.name
    )


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
        raise DataError(
            f"{path}: {len(sets)} data sets; name the training images of one of them: {files}",
            public=f"the data folder holds {len(sets)} data sets; one is expected",
        )
    train = _idx_pair(folder, f"{name}train")
    if train is None:
        fault = "no train-images-idx3-ubyte(.gz)"
        raise DataError(f"{path}: {fault}", public=fault)
    test = _idx_pair(folder, f"{name}t10k") or _idx_pair(folder, f"{name}test")
    if not name.startswith("emnist-"):
        return dataset(*train, test, source=str(path))
    classes = _emnist_classes(path, name)
    upright = [_emnist(path, name, pair, classes) for pair in (train, test) if pair]
    return dataset(
        *upright[0],
        upright[1] if test else None,
        source=str(path),
        labels=tuple(classes),
        ordered=True,
    )


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
        fault = "no data_batch_*.bin and no train.bin"
        raise DataError(
            f"{path}: {fault} among {', '.join(sorted(files)) or 'nothing'}", public=fault
        )
    hundred = names == ["train.bin"]
    wanted = [] if hundred else [f"data_batch_{i}.bin" for i in range(1, BATCHES + 1)]
    if lacking := sorted({*wanted, "test.bin" if hundred else "test_batch.bin"} - set(files)):
        fault = (
            f"{', '.join(lacking)} missing: a part of the data set would be left out; copy it again"
        )
        raise DataError(f"{path}: {fault}", public=fault)
    parts = [_cifar_records(f"{path}/{name}", files[name], hundred) for name in names]
    test_name = "test.bin" if hundred else "test_batch.bin"
    test = (
        _cifar_records(f"{path}/{test_name}", files[test_name], hundred)
        if test_name in files
        else None
    )
    labels = _cifar_labels(
        path, files.get("fine_label_names.txt" if hundred else "batches.meta.txt", b"")
    )
    features, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
    return dataset(
        features, targets, test, source=str(path), labels=tuple(labels), ordered=bool(labels)
    )


def _cifar_labels(path: Path, content: bytes) -> list[str]:
    try:
        return content.decode().split()
    except UnicodeDecodeError:
        fault = "the file of class names is no UTF-8 text"
        raise DataError(f"{path}: {fault}", public=fault) from None


def _emnist_classes(path: Path, name: str) -> str:
    split = name.removeprefix("emnist-").rstrip("-")
    if split not in EMNIST_CLASSES:
        expected = f"it has {', '.join(EMNIST_CLASSES)}"
        raise DataError(
            f"{path}: EMNIST has no split {split!r}; {expected}",
            public=f"EMNIST has no such split; {expected}",
        )
    return EMNIST_CLASSES[split]


def _emnist(path: Path, name: str, pair: tuple[Array, Array], classes: str) -> tuple[Array, Array]:
    """Upright images, and labels from 0."""
    images, labels = pair
    first = 1 if name == "emnist-letters-" else 0
    if (
        images.ndim != 4
        or labels.min(initial=first) < first
        or labels.max(initial=first) >= first + len(classes)
    ):
        seen = f"images {images.shape[1:]}, labels {labels.min(initial=first)} to {labels.max(initial=first)}"
        expected = f"labels from {first} to {first + len(classes) - 1} are expected"
        raise DataError(
            f"{path}: {name}: {seen}; {expected}",
            public=f"EMNIST's images or labels are damaged; {expected}",
        )
    return np.ascontiguousarray(images.transpose(0, 1, 3, 2)), labels.astype(np.int64) - first


def _idx_files(folder: Path, part: str, kind: str, start: str = "*") -> list[Path]:
    found = folder.glob(f"{start}{part}-{kind}*idx*")
    return sorted(p for p in found if p.suffix == ".gz" or "ubyte" in p.name)


def _idx_pair(folder: Path, part: str) -> tuple[Array, Array] | None:
    images, labels = _idx_files(folder, part, "images", ""), _idx_files(folder, part, "labels", "")
    if not images:
        return None
    if not labels:
        raise DataError(
            f"{folder}: {images[0].name} is there, its labels ({part}-labels-idx1-ubyte.gz) are not",
            public="a file of images is there, the file of its labels is not",
        )
    x, y = read_idx(images[0]), read_idx(labels[0])
    return (x[:, None] if x.ndim == 3 else x), y


def _folder_files(folder: Path) -> Mapping[str, bytes]:
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.suffix in CIFAR_SUFFIXES and path.is_file()
    ]
    return {path.name: path.read_bytes() for path in files}


def _archive_files(path: Path) -> Mapping[str, bytes]:
    """Plain files alone, by their last name: no link is followed, and nothing is written to disk."""
    files: dict[str, bytes] = {}
    limit = unpacked_limit(path)
    try:
        with path.open("rb") as raw, _plain(raw, zipped=_is_gzip(raw)) as plain:
            stream: Any = Unpacked(
                plain, path, limit
            )  # all that tarfile asks of a stream is to be read
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    check_size(
                        path, member.size, limit
                    )  # a sparse member holds less than it claims
                    if member.type in PLAIN_MEMBERS and member.name.endswith(CIFAR_SUFFIXES):
                        _add_member(path, files, archive, member)
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        fault = "cut short or not a tar archive"
        raise DataError(
            f"{path}: {fault} ({error}); copy it again", public=f"an archive is {fault}"
        ) from None
    return files


def _plain(raw: IO[bytes], *, zipped: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if zipped else raw


def _is_gzip(raw: IO[bytes]) -> bool:
    head = raw.read(len(GZIP_MAGIC))
    raw.seek(0)
    return head == GZIP_MAGIC


def _add_member(
    path: Path, files: dict[str, bytes], archive: tarfile.TarFile, member: tarfile.TarInfo
) -> None:
    name = Path(member.name).name
    if name in files:
        raise DataError(
            f"{path}: {name} occurs twice", public="an archive holds two files of one name"
        )
    if len(files) >= MAX_CIFAR_FILES:
        fault = f"more than {MAX_CIFAR_FILES} files, CIFAR has 8"
        raise DataError(f"{path}: {fault}", public=f"an archive holds {fault}")
    content = archive.extractfile(member)
    files[name] = content.read() if content else b""


def _cifar_records(where: str, content: bytes, hundred: bool) -> tuple[Array, Array]:
    head = 2 if hundred else 1  # CIFAR-100: coarse label, then fine label
    if not content or len(content) % (head + CIFAR_PIXELS):
        fault = (
            f"{len(content)} bytes are no whole number of records of {head + CIFAR_PIXELS} bytes"
        )
        raise DataError(f"{where}: {fault}", public=f"a file of CIFAR is damaged: {fault}")
    records = np.frombuffer(content, np.uint8).reshape(-1, head + CIFAR_PIXELS)
    return records[:, head:].reshape(-1, 3, 32, 32), records[:, head - 1]
