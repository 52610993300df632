"""Images as people have them: what needs `in_use` and `proposals`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covey.agent.data.check import load_local
from covey.extras.in_use.unlabelled import load_unlabelled
from covey.extras.proposals.choices import Proposal
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe
from covey.shared.errors import UserError
from covey.shared.scenario.task import Task
from tests.agent.test_pictures import (
    PIXELS,
    TASK,
    as_csv,
    as_folder,
    encoded,
    in_parquet,
    shades,
    three_forms,
)


def proposed(*sources: Path, **options: Any) -> Proposal:
    return propose([describe(str(source)) for source in sources], **options)


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
