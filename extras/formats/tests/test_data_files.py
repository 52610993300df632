"""Arrays, image folders, functions: what needs `formats`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.agent.data import load
from covey.extras.formats.images import read_header, read_image
from covey.shared.errors import DataError


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("turned", range(2, 9))
def test_an_image_is_read_as_viewers_show_it(tmp_path: Path, kind: str, turned: int) -> None:
    image_module = pytest.importorskip("PIL.Image")
    seen = np.zeros((8, 16, 3), np.uint8)
    seen[:, :8] = 200  # bright on the left, and brightest at the top
    seen[:2, :8] = 255
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's numbers of turns
    stored = image_module.fromarray(seen).transpose(undo[turned])
    exif = image_module.Exif()
    exif[0x0112] = turned
    (tmp_path / "a").mkdir()
    place = tmp_path / "a" / f"1.{kind}"
    stored.save(place, quality=100, exif=exif)
    assert np.abs(read_image(place, None).transpose(1, 2, 0) - seen.astype(float)).max() < 40
    assert read_header(place).shape == (3, 8, 16)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_alpha_counts_where_something_is_transparent(tmp_path: Path, mode: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    for name, alpha in (("1", 255), ("2", 254)):
        rgba = image_module.new("RGBA", (3, 2), (9, 9, 9, alpha))
        if mode == "P":
            rgba.convert("P").save(
                tmp_path / "a" / f"{name}.png", **({} if alpha == 255 else {"transparency": 0})
            )
        else:
            rgba.convert(mode).save(tmp_path / "a" / f"{name}.png")
    assert read_header(tmp_path / "a" / "1.png").channels == (1 if mode == "LA" else 3)
    with pytest.raises(DataError, match=rf"2\.png: colour mode {mode} with transparent pixels"):
        load(tmp_path)
    assert np.unique(read_image(tmp_path / "a" / "1.png", None)).tolist() == [9]
