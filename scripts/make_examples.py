"""Make the files in `examples/` from the data sets that come with scikit-learn: python scripts/make_examples.py

Each set is shuffled on a seed and divided among three devices. The result is committed; run this only to change it.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn import datasets

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DEVICES = 3
DIGITS_PER_CLASS = 10  # on each device
SEED = 1

Row = list[Any]


def divided(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    """The rows of each device, from device 1."""
    shuffled = list(rows)
    random.Random(SEED).shuffle(shuffled)  # noqa: S311 - a division that can be repeated
    for device in range(DEVICES):
        yield device + 1, shuffled[device::DEVICES]


def place(example: str, name: str) -> Path:
    """The path of a file in an example's folder, which is made."""
    path = EXAMPLES / example / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def table(example: str, names: Sequence[str], rows: Sequence[Row]) -> None:
    """CSV files."""
    for device, own in divided(rows):
        with place(example, f"device-{device}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(own)


def wine() -> None:
    found = datasets.load_wine()
    rows: list[Row] = []
    for x, y in zip(found.data.tolist(), found.target, strict=True):
        rows.append([*x, str(found.target_names[y])])
    names = [name.replace("/", "_") for name in found.feature_names]
    table("wine", [*names, "cultivar"], rows)


def diabetes() -> None:
    found = datasets.load_diabetes(scaled=False)
    rows: list[Row] = []
    for x, y in zip(found.data.tolist(), found.target, strict=True):
        rows.append([*x, int(y)])
    table("diabetes", [*found.feature_names, "progression"], rows)


def breast_cancer() -> None:
    found = datasets.load_breast_cancer()
    names = [name.replace(" ", "_") for name in found.feature_names]
    rows: list[Row] = []
    for x, y in zip(found.data.tolist(), found.target, strict=True):
        rows.append([*x, str(found.target_names[y])])
    for device, own in divided(rows):
        *columns, words = zip(*own, strict=True)
        arrays: dict[str, Any] = {}
        for name, column in zip(names, columns, strict=True):
            arrays[name] = np.array(column, np.float32)
        arrays["diagnosis"] = list(words)
        path = place("breast-cancer", f"device-{device}.parquet")
        pq.write_table(pa.table(arrays), path, compression="zstd")


def digits() -> None:
    found = datasets.load_digits()
    rows = [[image, digit] for image, digit in zip(found.images, found.target, strict=True)]
    for device, own in divided(rows):
        counts = [0] * 10
        for image, digit in own:
            if counts[digit] == DIGITS_PER_CLASS:
                continue
            counts[digit] += 1
            pixels = (image * 255 / 16).astype(np.uint8)
            path = place("digits", f"device-{device}/{digit}/{counts[digit]:02}.png")
            Image.fromarray(pixels).save(path, optimize=True)


if __name__ == "__main__":
    wine()
    diabetes()
    breast_cancer()
    digits()
