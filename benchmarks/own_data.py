"""Files as people have them, of real data: a table with holes, series of measurements, images of mixed sizes.

    python -m benchmarks.own_data --data-root ../shared/data --out runs/own-data

Writes one folder per kind of data, each with a file or a folder per device, for the scenarios `own_table.yaml`,
`own_series.yaml` and `own_images.yaml`. The measurements are real; this is derived:

- `table`: UCI HAR, thirty people. A row is a window of 2.56 s; of two windows that overlap one is left out. The columns are
  statistics of the gyroscope and the activity as a word. The target is the standard deviation of the acceleration in mg,
  computed from the accelerometer, which the columns do not contain. One cell in ten is deleted at random.
- `series`: the same recordings of twelve people at 50 Hz. Windows that overlap are joined again to the recordings from
  which they were cut. One cell in fifty of the sensors is deleted at random.
- `images`: MNIST with its writers: six census employees and six students. Each device has a camera of its own, with 20 to
  42 pixels: its images were enlarged or reduced.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from covey.shared.seeds import generator

Array = npt.NDArray[Any]

HALF = 64  # samples by which consecutive windows of HAR overlap
GYROSCOPE = slice(3, 6)  # channels
ACCELERATION = slice(6, 9)
AXES = ("x", "y", "z")
MG = 1000.0  # of 1 g
TABLE_HOLES = 0.1  # share of deleted cells
SERIES_HOLES = 0.02
SERIES_PEOPLE = 12
WRITERS = {"staff": 0, "students": 4}  # the folder's name, and the partition of NIST's forms
WRITERS_OF_EACH = 6
MIN_IMAGES = 100  # of a writer
SMALLEST = 20  # pixels of the first camera; each further one has two more


@dataclass(frozen=True)
class Recordings:
    """HAR: windows (n, 128, 9) in g and rad/s, activities (n,) as words, people (n,)."""

    windows: Array
    activities: Array
    people: Array

    @classmethod
    def read(cls, path: Path) -> Recordings:
        """The recordings in har.npz."""
        with np.load(path) as file:
            windows = file["x"] * file["scale"]
            return cls(windows, np.char.lower(file["label_names"])[file["y"]], file["subject"])

    def of(self, person: int) -> Recordings:
        """Those of one person."""
        own = self.people == person
        return Recordings(self.windows[own], self.activities[own], self.people[own])

    def chains(self) -> list[list[int]]:
        """Windows of one recording, in their order: the second half of each is the first half of the next."""
        by_first_half = {window[:HALF].tobytes(): i for i, window in enumerate(self.windows)}
        follower: dict[int, int] = {}
        for i, window in enumerate(self.windows):
            after = by_first_half.get(window[HALF:].tobytes())
            if after is not None:
                follower[i] = after
        first = sorted(set(range(len(self.windows))) - set(follower.values()))
        chains: list[list[int]] = []
        for start in first:
            chain = [start]
            while chain[-1] in follower:
                chain.append(follower[chain[-1]])
            chains.append(chain)
        return chains


Row = Mapping[str, Any]


def table_rows(person: Recordings) -> Iterator[Row]:
    """A row per window that shares no sample with another one."""
    for chain in person.chains():
        for i in chain[::2]:
            window = person.windows[i]
            row: dict[str, Any] = {"activity": person.activities[i]}
            for axis, turn in zip(AXES, window[:, GYROSCOPE].T, strict=True):
                row[f"turn_{axis}_sd"] = round(float(turn.std()), 4)
                row[f"turn_{axis}_mean"] = round(float(turn.mean()), 4)
                row[f"turn_{axis}_max"] = round(float(np.abs(turn).max()), 4)
            strength = np.linalg.norm(window[:, ACCELERATION], axis=1)
            row["shake_mg"] = round(float(strength.std()) * MG, 1)
            yield row


def series_rows(person: Recordings) -> Iterator[Row]:
    """The samples of each recording, 50 a second, recording after recording."""
    for number, chain in enumerate(person.chains()):
        pieces = [person.windows[chain[0]]]
        pieces += [person.windows[i][HALF:] for i in chain[1:]]
        for sample in np.concatenate(pieces):
            row: dict[str, Any] = {"recording": number}
            for axis, value in zip(AXES, sample[GYROSCOPE], strict=True):
                row[f"turn_{axis}"] = round(float(value), 3)
            for axis, value in zip(AXES, sample[ACCELERATION], strict=True):
                row[f"acceleration_{axis}"] = round(float(value), 3)
            row["activity"] = person.activities[chain[0]]
            yield row


def write_table(path: Path, rows: Sequence[Row], complete: Sequence[str], holes: float) -> None:
    """A CSV file with a share of its cells deleted, but none of the columns in `complete`."""
    columns = list(rows[0])
    is_hole = generator(1, "holes", path.name).random((len(rows), len(columns))) < holes
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row, deleted in zip(rows, is_hole, strict=True):
            cells: list[Any] = []
            for column, is_deleted in zip(columns, deleted, strict=True):
                is_empty = is_deleted and column not in complete
                cells.append("" if is_empty else row[column])
            writer.writerow(cells)


def write_tables(folder: Path, recordings: Recordings) -> None:
    """The table of each person."""
    for person in np.unique(recordings.people).tolist():
        rows = list(table_rows(recordings.of(person)))
        write_table(folder / f"person-{person:02d}.csv", rows, ["shake_mg"], TABLE_HOLES)


def write_series(folder: Path, recordings: Recordings, people: int = SERIES_PEOPLE) -> None:
    """The recordings of the first people."""
    for person in np.unique(recordings.people)[:people].tolist():
        rows = list(series_rows(recordings.of(person)))
        complete = ["recording", "activity"]
        write_table(folder / f"person-{person:02d}.csv", rows, complete, SERIES_HOLES)


@dataclass(frozen=True)
class Handwriting:
    """MNIST: images (n, 28, 28) uint8, digits (n,), writers (n,), and the partition of NIST's forms (n,)."""

    images: Array
    digits: Array
    writers: Array
    forms: Array

    @classmethod
    def read(cls, path: Path) -> Handwriting:
        """The training images in mnist_writer.npz."""
        with np.load(path) as file:
            return cls(file["x_train"], file["y_train"], file["writer_train"], file["hsf_train"])


def write_images(
    folder: Path, data: Handwriting, writers: int = WRITERS_OF_EACH, min_images: int = MIN_IMAGES
) -> None:
    """A folder per writer, in a folder per population, with a folder per digit."""
    cameras = 0
    for population, form in WRITERS.items():
        found, counts = np.unique(data.writers[data.forms == form], return_counts=True)
        for writer in found[counts >= min_images][:writers].tolist():
            place = folder / population / f"writer-{writer:04d}"
            _write_device(place, data, writer, pixels=SMALLEST + 2 * cameras)
            cameras += 1


def _write_device(folder: Path, data: Handwriting, writer: int, pixels: int) -> None:
    for i in np.flatnonzero(data.writers == writer).tolist():
        path = folder / str(data.digits[i]) / f"{i:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(data.images[i])
        image.resize((pixels, pixels), Image.Resampling.BICUBIC).save(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runs/own-data"))
    options = parser.parse_args(arguments)
    recordings = Recordings.read(options.data_root / "har.npz")
    write_tables(options.out / "table", recordings)
    write_series(options.out / "series", recordings)
    handwriting = Handwriting.read(options.data_root / "mnist_writer.npz")
    write_images(options.out / "images", handwriting)
    for folder in sorted(options.out.iterdir()):
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        print(f"{folder}: {len(files)} files, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
