"""Image files as arrays, and a folder of images: one folder per class.

All images have one size and one mode, unless the task resizes them (`task.resize`). Every file that cannot be used is
named: one message for all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.limits import check_size, unpacked_limit
from covey.extras.formats.class_folders import ClassFolders
from covey.shared.errors import DataError, install
from covey.shared.scenario.task import Task

if TYPE_CHECKING:
    from PIL.Image import Image


# -- image files as arrays -------------------------------------------------------------------------


# numbers of PIL.Image.Resampling, because Pillow is imported only to read an image
FILTERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}
MODE_OF = {1: "L", 3: "RGB"}  # by number of channels


@dataclass(frozen=True)
class Form:
    """The size and the colours to which all images are brought."""

    channels: int  # 1: grey, 3: RGB
    height: int
    width: int
    resample: int  # Pillow's number of the filter

    @classmethod
    def of(cls, task: Task | None) -> Form | None:
        """The form that a task asks for; None if it leaves images as they are."""
        if task is None or task.resize == "none":
            return None
        channels, height, width = task.features
        return cls(channels, height, width, FILTERS[task.resize])

    def of_image(self, image: Image) -> Image:
        """A grey or RGB image in this form, stretched without regard to its proportions."""
        coloured = image.convert(MODE_OF[self.channels])
        return coloured.resize((self.width, self.height), resample=self.resample)


FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # the formats behind SUFFIXES
MAX_PIXELS = 64 << 20  # of one image: 8192x8192
MAX_NAMED = 10  # refused images in one message
MODES = ("L", "RGB")  # grey and colour, 8 bits per channel
# a palette is only another way to store RGB, black-and-white another way to store grey; alpha where all is opaque adds nothing
EQUIVALENT_MODES = {"P": "RGB", "1": "L", "RGBA": "RGB", "PA": "RGB", "LA": "L"}
OPAQUE = 255
ORIENTATION = 0x0112  # in EXIF: how a camera was held; 1: upright

Pixels = npt.NDArray[np.uint8]  # (channels, height, width)


@dataclass(frozen=True)
class EncodedImage:
    """The content of an image file that lies in another file."""

    place: str  # the file and the row, for messages
    content: bytes

    def __str__(self) -> str:
        return self.place


ImageSource = Path | EncodedImage


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


class ImageReader:
    """Reads the images of one folder, all of one size and one colour mode."""

    _first: Pixels | None  # the first image that could be read: the others must have its shape
    _faults: list[DataError]  # the first MAX_NAMED
    _count: int  # of all faults

    def __init__(self, folder: Path, form: Form | None) -> None:
        self._folder = folder
        self._form = form  # brings all images to one size; None leaves them as they are
        self._first = None
        self._faults = []
        self._count = 0

    def __repr__(self) -> str:
        return f"<ImageReader {self._folder}: {self._count} faults>"

    def read(self, sources: Sequence[ImageSource]) -> Array:
        """The images (n, channels, height, width) uint8. Faults are remembered: call `check` after the last part."""
        features: Array | None = None
        for row, source in enumerate(sources):
            image = self._fitting(source, row + 1)
            if image is None:
                continue
            if features is None:
                count = len(sources)
                files = [one for one in sources if isinstance(one, Path)] or [self._folder]
                check_size(self._folder, count * image.size, unpacked_limit(*files))
                features = np.zeros((count, *image.shape), np.uint8)
            features[row] = image
        if features is None:
            self.check()
            return np.zeros((0,), np.uint8)
        return features

    def check(self) -> None:
        """Raises DataError if any image was refused. It names the first ones, and counts them all."""
        if not self._faults:
            return
        first = self._faults[0]
        if self._count == 1:
            raise first
        heading = f"{self._count} images cannot be used"
        if self._count > len(self._faults):
            heading += f", the first {len(self._faults)}"
        lines = [f"{self._folder}: {heading}:"]
        lines += [f"{fault};" for fault in self._faults]
        raise DataError(
            "\n  ".join(lines),
            public=f"{self._count} images cannot be used, the first: {first.public}",
        )

    def _fitting(self, source: ImageSource, number: int) -> Pixels | None:
        """One image; None for one that is refused."""
        try:
            image = read_image(source, self._form)
            if self._first is None:
                self._first = image
            _check_shape(source, number, image, self._first)
        except DataError as fault:
            self._count += 1
            if len(self._faults) < MAX_NAMED:
                self._faults.append(fault)
            return None
        return image


def read_header(source: ImageSource) -> ImageHeader:
    """Size and colours of an image, without unpacking it. DataError for anything else than a grey or RGB image."""
    with _opened(source) as image:
        mode = EQUIVALENT_MODES.get(image.mode, image.mode)
        width, height = image.size
    _check_mode(source, mode)
    channels = 1 if mode == "L" else 3
    return ImageHeader(channels, height, width)


def read_image(source: ImageSource, form: Form | None) -> Pixels:
    """One image, brought to a form if there is one. DataError for a file that is none, or for another mode."""
    image = _open(source)
    _check_mode(source, image.mode)
    if form is not None:
        image = form.of_image(image)
    pixels = np.asarray(image, np.uint8)
    if pixels.ndim == 2:
        return pixels[None]
    return _channels_first(pixels)


def _check_shape(source: ImageSource, number: int, image: Pixels, first: Pixels) -> None:
    """DataError for an image of another size or mode than the first one."""
    if image.shape == first.shape:
        return
    seen = _described(image)
    expected = _described(first)
    fault = (
        f"{seen}, the first image is {expected}; "
        "bring all images to one size and one colour mode, or set task.resize"
    )
    raise DataError(f"{source}: {fault}", public=f"image {number} is {fault}")


def _described(image: Pixels) -> str:
    channels, height, width = image.shape
    colour = "grey" if channels == 1 else "RGB"
    return f"{colour} {width}x{height}"


def _channels_first(pixels: Array) -> Pixels:
    """(channels, height, width) from (height, width, channels)."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_mode(source: ImageSource, mode: str) -> None:
    if mode not in MODES:
        fault = f"colour mode {mode}; expected grey (L) or RGB with 8 bits: convert the image"
        raise DataError(f"{source}: {fault}", public=f"an image has {fault}")


def _open(source: ImageSource) -> Image:
    """The unpacked image, with palettes, black-and-white and opaque alpha resolved. DataError for anything else than an image."""
    with _opened(source) as opened:
        mode = opened.mode
        return opened.convert(EQUIVALENT_MODES.get(mode, mode))


@contextmanager
def _opened(source: ImageSource) -> Iterator[Image]:
    """An image file, upright as viewers show it; its pixels are not unpacked before it has to be turned. What its reader raises, also later, becomes a DataError."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        remedy = install("agent")
        fault = f"reading images needs Pillow: {remedy}"
        raise DataError(f"{source}: {fault}", public=fault) from None
    file = BytesIO(source.content) if isinstance(source, EncodedImage) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow's own, much higher, limit of pixels
            # a file called .png may hold anything: for PostScript Pillow would start Ghostscript
            with Image.open(file, formats=FORMATS) as opened:
                _check_pixels(source, opened.size)
                if opened.getexif().get(ORIENTATION, 1) != 1:
                    ImageOps.exif_transpose(opened, in_place=True)
                if opened.has_transparency_data:
                    alpha = opened.convert("RGBA").getchannel("A")
                    if np.asarray(alpha).min() < OPAQUE:
                        _check_mode(source, f"{opened.mode} with transparent pixels")
                yield opened
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise whatever their unpacking meets
        fault = "not a readable image"
        raise DataError(
            f"{source}: {fault} ({error}); replace or remove it", public=f"an image file is {fault}"
        ) from None


def _check_pixels(source: ImageSource, size: tuple[int, int]) -> None:
    """Check the size that the header claims, before the pixels are unpacked."""
    width, height = size
    if width * height > MAX_PIXELS:
        fault = f"{width}x{height} pixels, at most {MAX_PIXELS} are read; resize it beforehand"
        raise DataError(f"{source}: {fault}", public=f"an image has {fault}")


# -- an image folder --------------------------------------------------------------------------------


SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
)


def image_folders(folder: Path) -> ClassFolders:
    """The images of a folder, by class."""
    return ClassFolders(folder, SUFFIXES)


def load_image_folder(folder: Path, task: Task | None = None) -> Dataset:
    """`folder/CLASS/*.png`, or `folder/train/CLASS/...` with `folder/test/CLASS/...`.

    Args:
        folder: holds a folder of images per class.
        task: brings the images to the form of its features, if it has `resize`.

    Returns:
        Features (n, 1 or 3, height, width) uint8. The labels are the names of the class folders, sorted.

    Raises:
        DataError: images of another size or mode than the first, unreadable ones, a test class unknown in train. One
            message names all refused images, or the first ones and their number.
    """
    found = image_folders(folder)
    reader = ImageReader(folder, Form.of(task))
    features = reader.read([file.path for file in found.train])
    test: tuple[Array, Array] | None = None
    if found.test:
        test = (reader.read([file.path for file in found.test]), found.targets(found.test))
    reader.check()
    targets = found.targets(found.train)
    return dataset(features, targets, test, source=str(folder), labels=found.labels)
