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

from covey.agent.data.check import inspect, load_local, read_local
from covey.agent.data.survey import DataSurvey
from covey.extras.in_use.unlabelled import load_unlabelled
from covey.extras.proposals.choices import Proposal
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe
from covey.shared.errors import DataError, UserError
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


def proposed(*sources: Path, **options: Any) -> Proposal:
    return propose([describe(str(source)) for source in sources], **options)


# -- one task for all forms ----------------------------------------------------------------------------------


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


def test_a_check_notes_pixels_that_are_much_darker_than_the_scale_expects(tmp_path: Path) -> None:
    pixels, names = shades(1)
    task = Task(**TASK)
    dim = as_csv(tmp_path / "dim.csv", pixels // 16, names)
    finding = inspect(read_local(dim, task=task), task)
    assert any("reach only 0.0588 after task.scale" in note for note in finding.notes)
    usual = inspect(read_local(as_csv(tmp_path / "a.csv", pixels, names), task=task), task)
    assert not any("task.scale" in note for note in usual.notes)


# -- proposals -----------------------------------------------------------------------------------------------


def test_one_scenario_for_a_csv_a_folder_and_a_parquet_table(tmp_path: Path) -> None:
    sources = three_forms(tmp_path)
    proposal = proposed(*sources)
    task = checked(proposal).task
    assert (task.features, task.columns) == ((1, 2, 3), PIXELS[::-1])
    assert (task.target, task.classes, task.scale) == ("shade", ("dark", "light"), 0.00392157)
    assert task.resize == "none"
    assert not proposal.remarks()


def test_class_names_are_those_of_all_devices(tmp_path: Path) -> None:
    pixels, _ = shades(1)
    digits = as_folder(tmp_path / "digits", pixels, ["2", "10"] * 6)
    table = as_csv(tmp_path / "a.csv", pixels, ["2", "3"] * 6)
    proposal = proposed(digits, table)
    assert checked(proposal).task.classes == ("2", "3", "10")
    assert proposal.differences == [
        f"{digits}: no images of class 3",
        f"{table}: no images of class 10",
    ]
    assert load_local(table, task=checked(proposal).task).labels == ("2", "3", "10")


def test_pixels_of_another_range_are_a_warning(tmp_path: Path) -> None:
    pixels, names = shades(1)
    folder = as_folder(tmp_path / "b", pixels, names)
    dim = as_csv(tmp_path / "dim.csv", pixels // 16, names)
    [warning] = proposed(folder, dim).warnings
    assert warning.startswith(f"{dim}: pixels are smaller than 16")


def test_tables_with_another_number_of_pixels_are_refused(tmp_path: Path) -> None:
    pixels, names = shades(1)
    folder = as_folder(tmp_path / "b", pixels, names)
    table = as_csv(tmp_path / "a.csv", pixels, names, columns=PIXELS[:5])
    with pytest.raises(UserError, match="the tables have 5 columns of numbers"):
        proposed(folder, table)


def test_images_of_mixed_sizes_are_resized(tmp_path: Path) -> None:
    for device, sizes in (("a", [(60, 40), (300, 200)]), ("b", [(50, 80)] * 2)):
        for number, size in enumerate(sizes):
            path = tmp_path / device / ("cat", "dog")[number] / "1.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB" if number else "L", size).save(path)
    proposal = proposed(tmp_path / "a", tmp_path / "b")
    task = checked(proposal).task
    assert (task.features, task.resize) == ((3, 40, 40), "bilinear")
    assert "50x40 to 300x200" in proposal.sections["task"]["resize"].why
    assert load_local(tmp_path / "a", task=task).shape == (3, 40, 40)


def test_large_images_of_one_size_become_small_and_unreadable_ones_are_counted(
    tmp_path: Path,
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (640, 480)).save(tmp_path / name / "1.png")
    (tmp_path / "cat" / "2.png").write_bytes(b"no image")
    proposal = proposed(tmp_path)
    task = checked(proposal).task
    assert (task.features, task.resize) == ((1, 64, 64), "bilinear")
    [warning] = proposal.warnings
    assert warning.startswith(f"{tmp_path}: 1 image unreadable, or neither grey nor RGB")
    assert f"agent check --data {tmp_path}" in warning


def test_class_names_that_hardly_differ_are_a_warning(tmp_path: Path) -> None:
    pixels, _ = shades(1)
    one = as_folder(tmp_path / "a", pixels, ["leaf rust", "healthy"] * 6)
    other = as_folder(tmp_path / "b", pixels, ["Leaf_rust", "healthy"] * 6)
    [warning] = proposed(one, other).warnings
    assert "'Leaf_rust' and 'leaf rust' are hardly different" in warning
    table = as_csv(tmp_path / "a.csv", pixels, ["Light", "light"] * 6)
    assert "'Light' and 'light'" in proposed(table).warnings[0]


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


@pytest.mark.parametrize("form", ["struct", "binary", "list"])
def test_a_column_of_images_in_parquet(tmp_path: Path, form: str) -> None:
    pixels, names = shades(1)
    cells: list[Any] = [encoded(image) for image in pixels]
    if form == "struct":
        cells = [{"bytes": content, "path": None} for content in cells]
    if form == "list":
        cells = [image.reshape(-1).tolist() for image in pixels]
    path = in_parquet(tmp_path / "a.parquet", cells, names)
    task = Task(**(TASK | {"target": None}))
    data = load_local(path, task=task)
    features = np.concatenate([data.features, data.test_features])
    assert sorted(features.reshape(12, -1).tolist()) == sorted(pixels.reshape(12, -1).tolist())
    assert data.features[data.targets == 1].min() >= 150
    assert load_unlabelled(path, task).data.shape == (1, 2, 3)
    folder = as_folder(tmp_path / "b", pixels, names)
    proposed_task = checked(proposed(folder, path)).task
    assert (proposed_task.features, proposed_task.classes) == ((1, 2, 3), ("dark", "light"))


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
