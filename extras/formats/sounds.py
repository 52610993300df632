"""A folder of sounds: one folder of .wav files per class, read as logarithmic mel spectrograms.

Each file is one sample: the mean of its channels, resampled to 16 kHz, from its beginning on. A shorter one is followed by
silence. `task.features` [1, mels, frames] gives the number of bands, and of frames, of which a second has 98.

The bands are triangles of equal width on the mel scale 2595 log10(1 + f / 700) (O'Shaughnessy, Speech Communication, 1987),
over power spectra of 25 ms in steps of 10 ms.
"""

from __future__ import annotations

import wave
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset, dataset
from covey.agent.data.limits import ARRAY_VALUE_BYTES, check_size, unpacked_limit
from covey.extras.formats.class_folders import ClassFile, ClassFolders
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task

SUFFIXES = frozenset({".wav"})
RATE = 16_000  # to which all sounds are resampled, in Hz
RATES = (1_000, 384_000)  # of files
EXTENSIBLE, PCM = b"\xfe\xff", b"\1\0"  # kinds of samples in a header
EXTENDED = 4096  # bytes, in which it ends
MOST_WIDTH = 4  # bytes of a sample of one channel
WINDOW, HOP, SPECTRUM = 400, 160, 512  # samples: 25 ms, 10 ms, and those of a Fourier transform
LOWEST_HZ = 20.0
DEFAULT = (1, 40, 98)  # one second
FLOOR = 1e-10  # of a power, whose logarithm is finite then
MOST_FRAMES = 60_000  # ten minutes

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def sound_folders(folder: Path) -> ClassFolders:
    """The sounds of a folder, by class."""
    return ClassFolders(folder, SUFFIXES)


def load_sound_folder(folder: Path, task: Task | None = None) -> Dataset:
    """`folder/CLASS/*.wav`, or `folder/train/CLASS/...` with `folder/test/CLASS/...`.

    Args:
        folder: holds a folder of sounds per class.
        task: its features are (1, mels, frames); None: 40 bands of one second.

    Returns:
        Features (n, 1, mels, frames) float32. The labels are the names of the class folders, sorted.

    Raises:
        DataError: features of another form, a file that cannot be read, a test class unknown in train.
    """
    found = sound_folders(folder)
    test: tuple[Array, Array] | None = None
    if found.test:
        test = (spectrograms(_paths(found.test), task), found.targets(found.test))
    features, targets = spectrograms(_paths(found.train), task), found.targets(found.train)
    return dataset(features, targets, test, source=str(folder), labels=found.labels)


def _paths(files: list[ClassFile]) -> list[Path]:
    return [file.path for file in files]


def spectrograms(paths: list[Path], task: Task | None) -> Float32:
    """The sounds in some files (n, 1, mels, frames). DataError as `load_sound_folder`."""
    form = DEFAULT if task is None else task.features
    if len(form) != 3 or form[0] != 1 or form[1] > SPECTRUM // 4 or form[2] > MOST_FRAMES:
        raise DataError(
            f"{paths[0].parent}: sounds are read as [1, mels, frames], and task.features is {list(form)}; expected at most "
            f"{SPECTRUM // 4} mels and {MOST_FRAMES} frames, for example {list(DEFAULT)} for one second",
            public="the data are sounds, and the task's features are not [1, mels, frames]",
        )
    _, mels, frames = form
    check_size(
        paths[0].parent, len(paths) * mels * frames * ARRAY_VALUE_BYTES, unpacked_limit(*paths)
    )
    found: Float32 = np.stack([log_mel(read(path, frames), mels, frames) for path in paths])
    return found[:, None]


def read(path: Path, frames: int) -> Float64:
    """The beginning of a sound (m,) at 16 kHz, between -1 and 1: no more than these frames need.

    Raises DataError if the file is not of PCM, or cut short.
    """
    try:
        with path.open("rb") as file, wave.open(_plain(file), "rb") as sound:
            rate, channels, width = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
            if not RATES[0] <= rate <= RATES[1]:
                raise wave.Error(f"{rate} samples a second, expected {RATES[0]} to {RATES[1]}")
            if width > MOST_WIDTH:
                raise wave.Error(f"{width} bytes a sample, expected at most {MOST_WIDTH}")
            seconds = (WINDOW + (frames - 1) * HOP) / RATE
            content = sound.readframes(int(np.ceil(seconds * rate)))
    except (wave.Error, EOFError, OSError, RuntimeError) as error:  # `wave` seeks beyond a chunk
        raise DataError(
            f"{path}: not a .wav file of PCM, or cut short ({error}); convert it, for example with `ffmpeg -i IN OUT.wav`",
            public="a sound cannot be read",
        ) from None
    whole = np.frombuffer(
        content[: len(content) // (channels * width) * channels * width], np.uint8
    )
    return resampled(_numbers(whole, width).reshape(-1, channels).mean(axis=1), rate)


def _plain(file: BinaryIO) -> BinaryIO:
    """A file of sound, where PCM in the extensible form has the mark of plain PCM: Python 3.11 reads this one alone."""
    begin = file.read(EXTENDED)
    place = begin.find(b"fmt ")
    kind, of_samples = begin[place + 8 : place + 10], begin[place + 32 : place + 34]
    file.seek(0)
    if place < 0 or kind != EXTENSIBLE or of_samples != PCM:
        return file
    return BytesIO(begin[: place + 8] + PCM + begin[place + 10 :] + file.read()[EXTENDED:])


def _numbers(content: npt.NDArray[np.uint8], width: int) -> Float64:
    """Samples of 1 to 4 bytes, little-endian, as numbers between -1 and 1. Those of one byte have no sign."""
    if width == 1:
        return (content.astype(np.float64) - 128) / 128
    padded = np.zeros((len(content) // width, 4), np.uint8)
    padded[:, 4 - width :] = content.reshape(-1, width)
    numbers: Float64 = padded.view("<i4").ravel() / 2.0**31
    return numbers


def resampled(sound: Float64, rate: int) -> Float64:
    """A sound (m,) at 16 kHz, without what is above 8 kHz: by its Fourier transform."""
    size = round(len(sound) * RATE / rate)
    if rate == RATE or not size:
        return sound[:size]
    found: Float64 = np.fft.irfft(np.fft.rfft(sound)[: size // 2 + 1], size) * (size / len(sound))
    return found


def log_mel(sound: Float64, mels: int, frames: int) -> Float32:
    """The logarithm of the power of each band (mels, frames) of a sound (m,) at 16 kHz."""
    padded = np.zeros(WINDOW + (frames - 1) * HOP)
    padded[: len(sound)] = sound[: len(padded)]
    cut = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(cut * np.hanning(WINDOW), SPECTRUM)) ** 2
    found: Float32 = np.log(np.maximum(bands(mels) @ power.T, FLOOR)).astype(np.float32)
    return found


@lru_cache(4)
def bands(mels: int) -> Float64:
    """The weight of each frequency in each band (mels, 257)."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    bottom = 2595 * np.log10(1 + LOWEST_HZ / 700)
    edges = 700 * (10 ** (np.linspace(bottom, top, mels + 2) / 2595) - 1)
    hertz = np.arange(SPECTRUM // 2 + 1) * RATE / SPECTRUM
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
    weights: Float64 = np.maximum(np.minimum(rising, falling), 0.0)
    return weights
