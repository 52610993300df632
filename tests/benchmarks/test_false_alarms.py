"""The benchmark of false alarms: fleets are what they are called, and the page shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.false_alarms import SIZES, judged, shares, shifted, table

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "false_alarms.json").read_text())


@pytest.mark.parametrize("sizes", SIZES)
def test_each_sample_has_at_most_one_agent_and_each_agent_has_samples(sizes: str) -> None:
    dealt = shares(sizes, 20, 1797, np.random.default_rng(1))
    every = np.concatenate(dealt)
    assert len(dealt) == 20
    assert len(np.unique(every)) == len(every) > 1700
    counts = [len(own) for own in dealt]
    assert min(counts) >= 4
    assert (max(counts) - min(counts) <= 1) == (sizes == "equal")


def test_a_shift_changes_every_second_agent() -> None:
    images, labels = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2), np.array([0, 5])
    assert shifted("upside down", 0, images, labels)[0] is images
    turned, _ = shifted("upside down", 1, images, labels)
    assert turned[0, 0].tolist() == [[3, 2], [1, 0]]
    assert shifted("two labels swapped", 1, images, labels)[1].tolist() == [1, 5]


def test_cards_see_images_upside_down() -> None:
    assert judged("log-normal 0.5", "upside down", 8, 1)["cards"]


def test_the_page_shows_the_record() -> None:
    page = (ROOT / "docs" / "choosing-k.md").read_text("utf-8")
    assert table(RECORD["cells"], RECORD["fleets"]) in page
