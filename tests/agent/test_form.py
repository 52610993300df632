"""A device whose owner demands anything states the form of its data, and no cell. Rows that do not fit are left out of the work."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covey.agent.data.dataset import Dataset
from covey.agent.data.form import form_counts
from covey.agent.worker.sources import dataset
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task
from covey.shared.wire.jobs import DeviceData

TABLE: dict[str, Any] = {
    "features": [2],
    "columns": ["age", "weight"],
    "target": "y",
    "model": {"name": "linear"},
}
ROWS = [(20 + n, 50.5 + n, n % 2) for n in range(20)]


def task(**changes: Any) -> Task:
    return Task.model_validate({**TABLE, **changes})


def written(
    path: Path, rows: Sequence[Sequence[object]] = ROWS, header: str = "age weight y"
) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(), *rows])
    return str(path)


def test_each_row_of_a_table_counts_whatever_is_in_it(tmp_path: Path) -> None:
    rows = [("old", "", ""), (1,), *ROWS[2:]]
    assert form_counts(written(tmp_path / "t.csv", rows), None, task()) == (16, 4)


def test_a_test_table_has_counts_of_its_own(tmp_path: Path) -> None:
    written(tmp_path / "train.csv")
    written(tmp_path / "test.csv", ROWS[:3])
    assert form_counts(str(tmp_path), None, task()) == (20, 3)


def test_windows_are_those_of_one_series(tmp_path: Path) -> None:
    data = written(tmp_path / "t.csv")
    window = {"rows": 4, "stride": 2, "group": "y"}
    windows = task(features=[1, 4], columns=["age"], target="weight", window=window)
    assert form_counts(data, None, windows) == (7, 2)
    with pytest.raises(DataError, match="longest series has 20 rows"):
        form_counts(data, None, task(features=[2, 32], window={"rows": 32}))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"columns": ["age", "height"]}, "no column 'height'"),
        ({"target": "z"}, "no label column 'z'"),
        ({"columns": [], "features": [5]}, "2 feature columns instead of 5"),
        ({"target": ["y", "age"], "columns": ["weight"], "features": [1]}, ""),
    ],
)
def test_a_fault_of_the_form_is_named(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    data = written(tmp_path / "t.csv")
    if not fault:
        assert form_counts(data, None, task(**changes)) == (16, 4)
        return
    with pytest.raises(DataError, match=fault):
        form_counts(data, None, task(**changes))


@pytest.mark.whole
def test_files_of_images_count_before_they_are_read(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for n in range(5):
            Image.new("L", (n + 2, 3)).save(tmp_path / name / f"{n}.png")
    (tmp_path / "cats" / "damaged.png").write_bytes(b"no image")
    of_images = Task.model_validate({"features": [1, 8, 8], "classes": ["cats", "hens"]})
    assert form_counts(str(tmp_path), None, of_images) == (9, 2)


def test_an_array_of_another_shape_is_a_fault_of_the_form(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((10, 4)), y=np.arange(10) % 3)
    data = str(tmp_path / "a.npz")
    assert form_counts(data, None, Task.model_validate({"features": [4], "classes": 2})) == (8, 2)
    with pytest.raises(DataError, match="shape"):
        form_counts(data, None, Task.model_validate({"features": [5], "classes": 2}))


def same(one: Dataset, other: Dataset) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("features", "targets", "test_features", "test_targets")
    )


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        (("old", 60, 1), {}),
        (("", 60, 1), {}),
        ((40,), {}),
        ((40, 60, ""), {}),
        ((40, 60, "ill"), {}),
        ((40, 60, 2), {"classes": ["0", "1"]}),
        ((40, 60, "ill"), {"classes": 2}),
        ((40, 60, 0.5), {"classes": 2}),
    ],
)
def test_a_row_that_does_not_fit_is_left_out_and_the_others_are_as_without_it(
    tmp_path: Path, row: tuple[object, ...], changes: dict[str, Any]
) -> None:
    whole = written(tmp_path / "whole.csv")
    longer = written(tmp_path / "longer.csv", [*ROWS[:5], row, *ROWS[5:]])
    asked = task(**changes)
    with pytest.raises(DataError):
        dataset(DeviceData(data=longer), asked)
    left = dataset(DeviceData(data=longer), asked, leaves_out=True)
    assert same(left, dataset(DeviceData(data=whole), asked))


def test_samples_of_unknown_classes_in_an_array_are_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(40).reshape(10, 4), y=np.arange(10) % 3)
    source = DeviceData(data=str(tmp_path / "a.npz"))
    left = dataset(source, Task.model_validate({"features": [4], "classes": 2}), leaves_out=True)
    assert (len(left.targets) + len(left.test_targets), left.targets.max()) == (7, 1)


def test_which_number_of_an_array_is_not_finite_stays_on_the_device(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.full((10, 4), np.nan), y=np.arange(10) % 3)
    data = str(tmp_path / "a.npz")
    with pytest.raises(DataError, match="nan") as caught:
        form_counts(data, None, Task.model_validate({"features": [4], "classes": 2}))
    assert caught.value.public.startswith("the local data cannot be used; ")
