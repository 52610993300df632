"""An image folder: one folder per class.

All images have one size and one mode, unless the task resizes them (`task.resize`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.image_form import BICUBIC, Form
from covey.agent.data.limits import MAX_BYTES, check_size
from covey.shared.errors import DataError
from covey.shared.extras import install
from covey.shared.scenario.task import Task

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
)
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # the formats behind these suffixes
MAX_PIXELS = 64 << 20  # of one image: 8192x8192
MODES = ("L", "RGB")  # grey and colour, 8 bits per channel
# a palette is only another way to store RGB, black-and-white another way to store grey
EQUIVALENT_MODES = {"P": "RGB", "1": "L"}

Pixels = npt.NDArray[np.uint8]  # (channels, height, width)


@dataclass(frozen=True)
class ImageHeader:
    """What the header of an image file claims."""

    channels: int  # 1: grey, 3: RGB
    height: int  # pixels
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels first, as the image is read."""
        return self.channels, self.height, self.width


@dataclass(frozen=True)
class ImageFile:
    """One image of a folder, and the name of the folder that it is in."""

    path: Path
    class_name: str


def is_image_folder(folder: Path) -> bool:
    """Whether the folder, or its folder `train`, has folders of images."""
    train = folder / "train"
    classes = _class_folders(folder) or _class_folders(train)
    return bool(classes)


def image_files(folder: Path) -> list[ImageFile]:
    """The images of all classes, those of a test part included."""
    train = folder / "train"
    if not _class_folders(train):
        return _image_files(folder)
    return _image_files(train) + _image_files(folder / "test")


def read_header(path: Path) -> ImageHeader:
    """Size and colours of an image, without unpacking it. DataError for anything else than a grey or RGB image."""
    with _opened(path) as image:
        mode = EQUIVALENT_MODES.get(image.mode, image.mode)
        width, height = image.size
    _check_mode(path, mode)
    channels = 1 if mode == "L" else 3
    return ImageHeader(channels, height, width)


def load_image_folder(folder: Path, task: Task | None = None) -> Dataset:
    """`folder/CLASS/*.png`, or `folder/train/CLASS/...` with `folder/test/CLASS/...`.

    Args:
        folder: holds a folder of images per class.
        task: brings the images to the form of its features, if it has `resize`.

    Returns:
        Features (n, 1 or 3, height, width) uint8. The labels are the names of the class folders, sorted.

    Raises:
        DataError: an image of another size or mode than the first, an unreadable one, a test class unknown in train.
    """
    train = folder
    test_files: list[ImageFile] = []
    if _class_folders(folder / "train"):
        train = folder / "train"
        test_files = _image_files(folder / "test")
    labels = tuple(sub.name for sub in _class_folders(train))
    files = _image_files(train)
    form = Form.of(task)
    first = _read_image(files[0].path, form)
    features = _read_images(files, first, form)
    targets = _class_indices(files, labels)
    test: tuple[Array, Array] | None = None
    if test_files:
        test_features = _read_images(test_files, first, form)
        test_targets = _class_indices(test_files, labels)
        test = (test_features, test_targets)
    return dataset(features, targets, test, source=str(folder), labels=labels)


def resized(path: Path, side: int) -> Pixels:
    """One image as (3, side, side), the way LEAF does it: resized without regard to its proportions, then made RGB.

    Bicubic, which is what LEAF's call means to Pillow since its version 7; before, it meant the nearest pixel.
    """
    image = _open(path)
    square = image.resize((side, side), resample=BICUBIC)
    coloured = square.convert("RGB")
    pixels = np.asarray(coloured, np.uint8)
    return _channels_first(pixels)


def _class_folders(folder: Path) -> list[Path]:
    """Sub-folders with at least one image, sorted by name; none if the folder does not exist."""
    if not folder.is_dir():
        return []
    found: list[Path] = []
    for sub in sorted(folder.iterdir()):
        hidden = sub.name.startswith(".")
        if sub.is_dir() and not hidden and _images_in(sub):
            found.append(sub)
    return found


def _images_in(folder: Path) -> list[Path]:
    """Files with the suffix of an image, sorted by name."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        suffix = path.suffix.lower()
        if suffix in SUFFIXES:
            found.append(path)
    return found


def _image_files(folder: Path) -> list[ImageFile]:
    """The images of all class folders."""
    files: list[ImageFile] = []
    for sub in _class_folders(folder):
        for path in _images_in(sub):
            files.append(ImageFile(path, sub.name))
    return files


def _class_indices(files: Sequence[ImageFile], labels: tuple[str, ...]) -> Array:
    """The class of each image (n,) int64. DataError for a class that train does not have."""
    indices: list[int] = []
    for file in files:
        name = file.class_name
        if name not in labels:
            raise DataError(
                f"{file.path}: class {name!r} occurs in test only; train has "
                f"{', '.join(labels)}. Move its images, or add a folder of this class to train",
                public="a class occurs in the test part only",
            )
        indices.append(labels.index(name))
    return np.array(indices, np.int64)


def _read_images(files: Sequence[ImageFile], first: Pixels, form: Form | None) -> Array:
    """All images in one array (n, channels, height, width). DataError for one that differs from the first."""
    count = len(files)
    size = count * first.size
    folder = files[0].path.parent
    check_size(folder, size, MAX_BYTES)
    shape = (count, *first.shape)
    features = np.empty(shape, np.uint8)
    for row, file in enumerate(files):
        image = _read_image(file.path, form)
        if image.shape != first.shape:
            seen = _described(image)
            expected = _described(first)
            fault = (
                f"{seen}, the first image is {expected}; "
                "bring all images to one size and one colour mode, or set task.resize"
            )
            number = row + 1
            raise DataError(f"{file.path}: {fault}", public=f"image {number} is {fault}")
        features[row] = image
    return features


def _described(image: Pixels) -> str:
    channels, height, width = image.shape
    colour = "grey" if channels == 1 else "RGB"
    return f"{colour} {width}x{height}"


def _read_image(path: Path, form: Form | None) -> Pixels:
    """One image, brought to a form if there is one. DataError for a file that is none, or for another mode."""
    image = _open(path)
    _check_mode(path, image.mode)
    if form is not None:
        image = form.of_image(image)
    pixels = np.asarray(image, np.uint8)
    if pixels.ndim == 2:
        return pixels[None]
    return _channels_first(pixels)


def _channels_first(pixels: Array) -> Pixels:
    """(channels, height, width) from (height, width, channels)."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_mode(path: Path, mode: str) -> None:
    if mode not in MODES:
        fault = f"colour mode {mode}; expected grey (L) or RGB with 8 bits: convert the image"
        raise DataError(f"{path}: {fault}", public=f"an image has {fault}")


def _open(path: Path) -> Image:
    """The unpacked image, with palettes and black-and-white resolved. DataError for anything else than an image."""
    with _opened(path) as opened:
        own_mode = opened.mode
        mode = EQUIVALENT_MODES.get(own_mode, own_mode)
        return opened.convert(mode)


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """An image file whose pixels are not unpacked yet. What its reader raises, also later, becomes a DataError."""
    try:
        from PIL import Image
    except ImportError:
        remedy = install("agent")
        fault = f"reading images needs Pillow: {remedy}"
        raise DataError(f"{path}: {fault}", public=fault) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow's own, much higher, limit of pixels
            # a file called .png may hold anything: for PostScript Pillow would start Ghostscript
            with Image.open(path, formats=FORMATS) as opened:
                _check_pixels(path, opened.size)
                yield opened
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise whatever their unpacking meets
        fault = "not a readable image"
        raise DataError(
            f"{path}: {fault} ({error}); replace or remove it", public=f"an image file is {fault}"
        ) from None


def _check_pixels(path: Path, size: tuple[int, int]) -> None:
    """Check the size that the header claims, before the pixels are unpacked."""
    width, height = size
    pixels = width * height
    if pixels > MAX_PIXELS:
        fault = f"{width}x{height} pixels, at most {MAX_PIXELS} are read; resize it beforehand"
        raise DataError(f"{path}: {fault}", public=f"an image has {fault}")
