"""An image folder: one folder per class, all images of one size and one mode. Nothing is resized or recoloured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from agent.data.dataset import Array, Dataset, dataset
from shared.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})
CHANNELS = {"L": 1, "RGB": 3}
BICUBIC = 3  # PIL.Image.Resampling.BICUBIC, named here because Pillow is imported only where an image is read


def is_image_folder(folder: Path) -> bool:
    return any(_class_folders(part) for part in (folder, folder / "train"))


def load_image_folder(folder: Path) -> Dataset:
    """`folder/CLASS/*.png` or `folder/train/CLASS/...` with `folder/test/CLASS/...`: (n, 1 or 3, h, w) uint8.

    DataError names the first image of another size or mode, an unreadable one, and test classes unknown in train.
    """
    parted = (folder / "train").is_dir() and bool(_class_folders(folder / "train"))
    train = folder / "train" if parted else folder
    labels = tuple(sub.name for sub in _class_folders(train))
    files = _files(train)
    first = _open(files[0][0])
    features = _read(files, first)
    targets = np.array([labels.index(name) for _, name in files], np.int64)
    test: tuple[Array, Array] | None = None
    if parted and (test_files := _files(folder / "test")):
        test = _read(test_files, first), np.array([_index(labels, name, path) for path, name in test_files], np.int64)
    return dataset(features, targets, test, source=str(folder), labels=labels)


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    subs = sorted(sub for sub in folder.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    return [sub for sub in subs if any(path.suffix.lower() in SUFFIXES for path in sub.iterdir())]


def _files(folder: Path) -> list[tuple[Path, str]]:
    return [
        (path, sub.name)
        for sub in _class_folders(folder)
        for path in sorted(sub.iterdir())
        if path.suffix.lower() in SUFFIXES
    ]


def _index(labels: tuple[str, ...], name: str, path: Path) -> int:
    if name not in labels:
        raise DataError(f"{path}: class {name!r} occurs in test only; train has {', '.join(labels)}")
    return labels.index(name)


def _read(files: list[tuple[Path, str]], first: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    features = np.empty((len(files), *first.shape), np.uint8)
    for row, (path, _) in enumerate(files):
        image = _open(path)
        if image.shape != first.shape:
            raise DataError(
                f"{path}: {_said(image)}, the first image is {_said(first)}; "
                "bring all images to one size and one colour mode"
            )
        features[row] = image
    return features


def _said(image: npt.NDArray[np.uint8]) -> str:
    channels, height, width = image.shape
    return f"{'grey' if channels == 1 else 'RGB'} {width}x{height}"


def resized(path: Path, side: int) -> npt.NDArray[np.uint8]:
    """One image brought to (3, side, side) as LEAF does: resized without regard to its proportions, then made RGB.

    Bicubic, which is what LEAF's call means to Pillow since its version 7; before, it meant the nearest pixel.
    """
    opened = _opened(path)
    pixels = np.asarray(opened.resize((side, side), resample=BICUBIC).convert("RGB"), np.uint8)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _open(path: Path) -> npt.NDArray[np.uint8]:
    """One image as (channels, h, w)."""
    image = _opened(path)
    if image.mode not in CHANNELS:
        raise DataError(f"{path}: colour mode {image.mode}; grey (L) or RGB with 8 bits is wanted")
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _opened(path: Path) -> Image:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError(f"{path}: reading images needs Pillow: pip install 'covey[agent]'") from None
    try:
        with Image.open(path) as opened:
            # a palette is only another way to store RGB, black-and-white another way to store grey
            return opened.convert({"P": "RGB", "1": "L"}.get(opened.mode, opened.mode))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from None
