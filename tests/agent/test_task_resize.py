"""Images of mixed sizes and colours, brought to the form of the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from covey.agent.data import load
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task


def task(**keys: Any) -> Task:
    base: dict[str, Any] = {"features": (1, 4, 6), "classes": ("dark", "light")}
    return Task(**(base | {"resize": "bilinear"} | keys))


def image(path: Path, size: tuple[int, int], colour: Any, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.mark.whole
def test_images_of_any_size_and_colour_get_the_form_of_the_task(tmp_path: Path) -> None:
    image(tmp_path / "dark" / "1.png", (6, 4), 10)
    image(tmp_path / "dark" / "2.png", (31, 7), (20, 20, 20), "RGB")
    image(tmp_path / "light" / "3.png", (2, 2), 1, "1")
    data = load(tmp_path, task=task())
    assert data.features.shape == (3, 1, 4, 6)
    assert data.features.dtype == np.uint8
    assert data.features[:, 0, 0, 0].tolist() == [10, 20, 255]
    colour = load(tmp_path, task=task(features=(3, 2, 2)))
    assert colour.features[1].tolist() == [[[20, 20], [20, 20]]] * 3


@pytest.mark.whole
def test_making_smaller_averages_except_with_the_nearest_pixel(tmp_path: Path) -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (8, 4))
    for name in ("dark", "light"):
        (tmp_path / name).mkdir()
        Image.fromarray(stripes).save(tmp_path / name / "1.png")
    small = {"features": (1, 2, 2)}
    averaged = load(tmp_path, task=task(**small)).features
    assert 100 < averaged.min() <= averaged.max() < 155
    nearest = load(tmp_path, task=task(resize="nearest", **small)).features
    assert set(nearest.ravel().tolist()) <= {0, 255}


@pytest.mark.whole
def test_without_resize_mixed_sizes_are_refused_with_the_way_out(tmp_path: Path) -> None:
    image(tmp_path / "dark" / "1.png", (6, 4), 10)
    image(tmp_path / "light" / "2.png", (5, 4), 10)
    with pytest.raises(DataError, match=r"grey 5x4, the first image is grey 6x4.*task\.resize"):
        load(tmp_path, task=task(resize="none"))
    other = tmp_path / "light" / "2.png"
    other.unlink()
    image(other, (6, 4), (1, 2, 3, 4), "RGBA")
    with pytest.raises(DataError, match="colour mode RGBA"):
        load(tmp_path, task=task())


@pytest.mark.parametrize("features", [(6,), (2, 4, 6), (4, 6)])
def test_resize_needs_features_of_an_image(features: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="resize is for images"):
        task(features=features)
