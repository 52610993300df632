"""Data sets as their authors publish them, as one .npz that Covey reads.

    python scripts/to_npz.py idx ../data/fashion-mnist fashion-mnist.npz
    python scripts/to_npz.py idx ../data/emnist/emnist-letters-train-images-idx3-ubyte.gz emnist-letters.npz
    python scripts/to_npz.py cifar10 cifar-10-binary.tar.gz cifar10.npz
    python scripts/to_npz.py cifar100 cifar-100-binary.tar.gz cifar100.npz
    python scripts/to_npz.py svhn FOLDER svhn.npz
    python scripts/to_npz.py mat ARRAYS.mat own.npz
    python scripts/to_npz.py leaf FOLDER femnist.npz

- idx: MNIST's format, a folder of four files or the training images of one set of several. EMNIST is turned upright.
- cifar10, cifar100: the binary version, an archive or its folder; y are the fine classes, `coarse` the 20 groups.
- svhn: train_32x32.mat and test_32x32.mat; ten counts as the digit zero. mat: every array of a MATLAB file by its name.
- leaf: train/*.json and test/*.json of LEAF, with the users as groups; CelebA's images lie below the folder.

The files are your own download: a damaged one ends in Python's error. Needs scipy for .mat, Pillow for CelebA.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
DIGITS, CAPITALS = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MERGED = (
    DIGITS + CAPITALS + "abdefghnqrt"
)  # small letters that look like their capitals count as these
EMNIST = {"byclass": DIGITS + CAPITALS + CAPITALS.lower(), "bymerge": MERGED, "balanced": MERGED}
EMNIST |= {"letters": CAPITALS, "digits": DIGITS, "mnist": DIGITS}
CELEBA_FOLDERS = ("raw/img_align_celeba", "img_align_celeba", "raw", ".")


def idx(source: Path) -> Arrays:
    images = source if source.is_file() else _only(source, "*train-images*")
    prefix, _, _ = images.name.partition("train-images")
    arrays: Arrays = {}
    for end, parts in {"": ("train",), "_test": ("t10k", "test")}.items():
        for part in parts:
            if not list(images.parent.glob(f"{prefix}{part}-images*")):
                continue
            x = _read_idx(_only(images.parent, f"{prefix}{part}-images*"))
            arrays[f"x{end}"] = x[:, None] if x.ndim == 3 else x  # one channel
            arrays[f"y{end}"] = _read_idx(_only(images.parent, f"{prefix}{part}-labels*"))
            break
    if prefix.startswith("emnist-"):
        classes = EMNIST[prefix.removeprefix("emnist-").rstrip("-")]
        arrays["label_names"] = np.array(list(classes))
        for end in ("", "_test"):  # stored by columns, and letters count from 1
            arrays[f"x{end}"] = np.ascontiguousarray(arrays[f"x{end}"].transpose(0, 1, 3, 2))
            arrays[f"y{end}"] = arrays[f"y{end}"].astype(np.int64) - (classes == CAPITALS)
    return arrays


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(path for path in folder.glob(pattern) if "ubyte" in path.name)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise SystemExit(
            f"{folder}: expected one file {pattern}, found {names}; give the file itself"
        )
    return found[0]


def _read_idx(path: Path) -> npt.NDArray[Any]:
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    dtype, axes = np.dtype(IDX_TYPES[content[2]]), content[3]
    shape = np.frombuffer(content, ">u4", axes, 4)
    return (
        np.frombuffer(content, dtype, offset=4 + 4 * axes)
        .reshape(shape)
        .astype(dtype.newbyteorder("="))
    )


def cifar10(source: Path) -> Arrays:
    files = _cifar_files(source)
    batches = b"".join(files[f"data_batch_{number}.bin"] for number in range(1, 6))
    parts = {"": batches, "_test": files["test_batch.bin"]}
    return _cifar(parts, files.get("batches.meta.txt", b""), ("y",))


def cifar100(source: Path) -> Arrays:
    files = _cifar_files(source)
    parts = {"": files["train.bin"], "_test": files["test.bin"]}
    return _cifar(parts, files.get("fine_label_names.txt", b""), ("coarse", "y"))


def _cifar_files(source: Path) -> dict[str, bytes]:
    if source.is_dir():
        return {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    with tarfile.open(source) as archive:
        plain = [member for member in archive if member.isfile()]
        return {Path(member.name).name: archive.extractfile(member).read() for member in plain}  # type: ignore[union-attr]


def _cifar(parts: dict[str, bytes], names: bytes, labels: tuple[str, ...]) -> Arrays:
    """Each record has a byte for each label, then its pixels."""
    arrays: Arrays = {}
    for end, content in parts.items():
        records = np.frombuffer(content, np.uint8).reshape(-1, len(labels) + 3072)
        arrays[f"x{end}"] = records[:, len(labels) :].reshape(-1, 3, 32, 32)
        arrays |= {f"{label}{end}": records[:, place] for place, label in enumerate(labels)}
    return arrays | ({"label_names": np.array(names.decode().split())} if names else {})


def svhn(source: Path) -> Arrays:
    arrays: Arrays = {}
    for end, name in {"": "train_32x32.mat", "_test": "test_32x32.mat"}.items():
        path = source if source.is_file() and not end else source / name
        if path.is_file():
            found = mat(path)
            arrays[f"x{end}"] = np.ascontiguousarray(found["X"].transpose(3, 2, 0, 1))
            arrays[f"y{end}"] = found["y"].reshape(-1).astype(np.int64) % 10
    return arrays


def mat(source: Path) -> Arrays:
    from scipy.io import loadmat

    return {name: array for name, array in loadmat(source).items() if not name.startswith("__")}


def leaf(source: Path) -> Arrays:
    arrays: Arrays = {}
    for end, part in {"": "train", "_test": "test"}.items():
        x: list[Any] = []
        y: list[Any] = []
        users: list[str] = []
        for file in _leaf_files(source, part):
            content = json.loads(file.read_bytes())
            for user in content["users"]:
                own = content["user_data"][user]
                x += own["x"]
                y += own["y"]
                users += [user] * len(own["y"])
        if users:
            arrays[f"x{end}"] = _leaf_samples(source if source.is_dir() else source.parent, x)
            arrays |= {f"y{end}": np.array(y), f"{'test_' if end else ''}groups": np.array(users)}
    return arrays


def _leaf_files(source: Path, part: str) -> list[Path]:
    if source.is_file():  # one file has no test part
        return [source] if part == "train" else []
    return sorted((source / part).glob("*.json"))


def _leaf_samples(base: Path, x: list[Any]) -> npt.NDArray[Any]:
    """Rows of numbers, those of 784 as images; names of images as LEAF's models read them, in 84x84."""
    if not isinstance(x[0], str):
        rows = np.array(x, np.float32)
        return rows.reshape(-1, 1, 28, 28) if rows.shape[1:] == (784,) else rows
    from PIL import Image

    folder = next(base / place for place in CELEBA_FOLDERS if (base / place / x[0]).is_file())
    images = np.empty((len(x), 84, 84, 3), np.uint8)
    for row, name in enumerate(x):
        with Image.open(folder / name) as image:
            images[row] = np.asarray(image.resize((84, 84)).convert("RGB"))
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


FORMATS = {read.__name__: read for read in (idx, cifar10, cifar100, svhn, mat, leaf)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    arrays = FORMATS[options.format](options.source)
    if not arrays:
        parser.error(f"{options.source}: nothing of the format {options.format}")
    np.savez_compressed(options.out, **arrays)  # type: ignore[arg-type]  # the stubs fear an array named allow_pickle
    print(f"{options.out}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


if __name__ == "__main__":
    main()
