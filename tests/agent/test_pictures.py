"""Images as people have them: folders, tables with a column per pixel, or both in one fleet."""

from __future__ import annotations

import csv
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pydantic import ValidationError

from covey.agent.data.check import load_local
from covey.agent.data.survey import DataSurvey
from covey.shared.errors import DataError
from covey.shared.scenario.fleet_statistics import asked_statistics
from covey.shared.scenario.task import Task

Bytes = npt.NDArray[np.uint8]
PIXELS = tuple(f"p{number}" for number in range(6))
TASK: dict[str, Any] = {
    "features": (1, 2, 3),
    "columns": PIXELS,
    "target": "shade",
    "classes": ("dark", "light"),
    "scale": 1 / 255,
}


def shades(seed: int, count: int = 12) -> tuple[Bytes, list[str]]:
    """Images (n, 2, 3) of two classes in turn."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 100, (count, 2, 3)).astype(np.uint8)
    pixels[1::2] += 150
    pixels[0, 0, 0] = 255
    return pixels, ["dark", "light"] * (count // 2)


def as_csv(path: Path, pixels: Bytes, names: list[str], columns: tuple[str, ...] = PIXELS) -> Path:
    """A table with a column per pixel; the columns may be in another order than the pixels."""
    order = [PIXELS.index(name) for name in columns]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*columns, "shade"])
        for image, name in zip(pixels, names, strict=True):
            flat = image.reshape(-1)
            table.writerow([*flat[order].tolist(), name])
    return path


def as_parquet(path: Path, pixels: Bytes, names: list[str]) -> Path:
    flat = pixels.reshape(len(pixels), -1)
    arrays: dict[str, Any] = {}
    for number, name in enumerate(PIXELS):
        arrays[name] = flat[:, number]
    arrays["shade"] = names
    pq.write_table(pa.table(arrays), path)
    return path


def as_folder(folder: Path, pixels: Bytes, names: list[str]) -> Path:
    for number, (image, name) in enumerate(zip(pixels, names, strict=True)):
        path = folder / name / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def three_forms(folder: Path) -> list[Path]:
    """The same images as a CSV table, a folder of images and a Parquet table."""
    images = shades(1)
    return [
        as_csv(folder / "a.csv", *images, columns=PIXELS[::-1]),
        as_folder(folder / "b", *images),
        as_parquet(folder / "c.parquet", *images),
    ]


# -- one task for all forms ----------------------------------------------------------------------------------


@pytest.mark.whole
def test_tables_of_pixels_and_a_folder_of_images_give_the_same_features(tmp_path: Path) -> None:
    task = Task(**TASK)
    pixels, _ = shades(1)
    expected = sorted(image.reshape(-1).tolist() for image in pixels)
    for source in three_forms(tmp_path):
        data = load_local(source, task=task)
        assert data.shape == (1, 2, 3)
        assert data.columns is None
        rows = np.concatenate([data.features, data.test_features]).reshape(12, -1)
        assert sorted(rows.tolist()) == expected
        light = data.features[data.targets == 1]
        assert light.min() >= 150


@pytest.mark.whole
def test_pixels_are_standardised_per_channel(tmp_path: Path) -> None:
    task = Task(**TASK, standardise="federated")
    assert asked_statistics(task) == ("count", "sum", "square")
    sums = [
        DataSurvey(load_local(source, task=task), task).statistics()
        for source in three_forms(tmp_path)
    ]
    counts = [one["count"].tolist() for one in sums]
    assert counts == [[60.0]] * 3  # 10 training images of 6 pixels


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"columns": PIXELS[:5]}, "6 pixels, columns lists 5"),
        ({"impute": "mean"}, "remove impute"),
        ({"categories": {"p0": 2}}, "remove categories"),
        ({"times": ("p0",)}, "remove times"),
    ],
)
def test_pixels_have_no_treatment_of_their_own(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Task(**(TASK | keys))


# -- proposals -----------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_folder_of_a_foreign_class_is_refused_by_its_name(tmp_path: Path) -> None:
    pixels, _ = shades(1)
    folder = as_folder(tmp_path / "a", pixels, ["dark", "light", "grey", "pale"] * 3)
    with pytest.raises(DataError, match="2 classes are unknown to the task") as raised:
        load_local(folder, task=Task(**TASK))
    assert "'grey' (3 samples" in str(raised.value)
    alone = as_folder(tmp_path / "b", pixels, ["light"] * 12)
    assert load_local(alone, task=Task(**TASK)).targets.tolist() == [1] * 10


# -- images in Parquet ---------------------------------------------------------------------------------------


def encoded(image: Bytes) -> bytes:
    file = BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def in_parquet(path: Path, cells: list[Any], labels: list[Any]) -> Path:
    count = len(cells)
    pq.write_table(pa.table({"id": range(count), "image": cells, "label": labels}), path)
    return path


@pytest.mark.whole
def test_faults_of_images_in_parquet_name_their_rows(tmp_path: Path) -> None:
    pixels, names = shades(1)
    cells = [encoded(image) for image in pixels]
    cells[2:4] = [b"no image", b""]
    path = in_parquet(tmp_path / "a.parquet", cells, names)
    with pytest.raises(DataError, match="2 images cannot be used") as raised:
        load_local(path)
    assert f"{path}: row 3: not a readable image" in str(raised.value)
    unlabelled = in_parquet(tmp_path / "b.parquet", cells, [None, *names[1:]])
    with pytest.raises(DataError, match="1 rows without a label, the first: 1"):
        load_local(unlabelled)
    ragged = in_parquet(tmp_path / "c.parquet", [[1, 2], [1]], ["dark", "light"])
    with pytest.raises(DataError, match="row 2 has a list of 1 numbers"):
        load_local(ragged)
