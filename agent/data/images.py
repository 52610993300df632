"""An image folder: one folder per class, all images of one size and one mode. Nothing is resized or recoloured."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.limits import MAX_BYTES, check_size
from covey.shared.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
)
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # the formats behind these suffixes
MAX_PIXELS = 64 << 20  # of one image: 8192x8192
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
        test = (
            _read(test_files, first),
            np.array([_index(labels, name, path) for path, name in test_files], np.int64),
        )
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
        raise DataError(
            f"{path}: class {name!r} occurs in test only; train has {', '.join(labels)}",
            public="a class occurs in the test part only",
        )
    return labels.index(name)


def _read(files: list[tuple[Path, str]], first: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    check_size(files[0][0].parent, len(files) * first.size, MAX_BYTES)
    features = np.empty((len(files), *first.shape), np.uint8)
    for row, (path, _) in enumerate(files):
        image = _open(path)
        if image.shape != first.shape:
            fault = f"{_said(image)}, the first image is {_said(first)}; "
            advice = "bring all images to one size and one colour mode"
            raise DataError(
                f"{path}: {fault}{advice}", public=f"image {row + 1} is {fault}{advice}"
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
        fault = f"colour mode {image.mode}; grey (L) or RGB with 8 bits is expected"
        raise DataError(f"{path}: {fault}", public=f"an image has {fault}")
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _opened(path: Path) -> Image:
    try:
        from PIL import Image
    except ImportError:
        fault = "reading images needs Pillow: pip install 'covey[agent]'"
        raise DataError(f"{path}: {fault}", public=fault) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow's own, much higher, limit of pixels
            # the name ends in .png, the content may be anything: Pillow would start Ghostscript for a PostScript file
            with Image.open(path, formats=FORMATS) as opened:
                _check_pixels(path, opened.size)
                # a palette is only another way to store RGB, black-and-white another way to store grey
                return opened.convert({"P": "RGB", "1": "L"}.get(opened.mode, opened.mode))
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise whatever their unpacking meets
        fault = "not a readable image"
        raise DataError(f"{path}: {fault} ({error})", public=f"an image file is {fault}") from None


def _check_pixels(path: Path, size: tuple[int, int]) -> None:
    """What the header claims, before the pixels are unpacked."""
    width, height = size
    if width * height > MAX_PIXELS:
        fault = f"{width}x{height} pixels, at most {MAX_PIXELS} are read; resize it beforehand"
        raise DataError(f"{path}: {fault}", public=f"an image has {fault}")
