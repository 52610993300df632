"""The benchmark of tests on cards: each shift is found by its test, and the page shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.card_power import alarms, picture, power, shifts, votes
from covey.coordinator.view.svg import document

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "card_power.json").read_text())["cells"]
PAGE = (ROOT / "benchmarks" / "results" / "kin.md").read_text("utf-8")


def test_each_shift_is_found_by_the_test_of_its_kind() -> None:
    for kind, strength in (("labels", 0.8), ("style", 2.0), ("concept", 1.0)):
        found = shifts(kind, strength, "equal", 8, 1)
        assert getattr(found, kind) < 0.01
    assert not shifts("none", 0.0, "equal", 8, 1).any


def test_the_page_shows_the_figures_of_the_record() -> None:
    for made in (alarms(RECORD), power(RECORD), votes(RECORD)):
        assert made in PAGE


def test_the_curves_are_those_of_the_record() -> None:
    drawn = (ROOT / "docs" / "_static" / "power.svg").read_text("utf-8")
    assert drawn == document(picture(RECORD))


def test_cards_of_few_samples_have_the_sums_of_all_classes() -> None:
    """A card of ten samples in ten classes would have none with five."""
    assert shifts("style", 4.0, "10 each", 20, 1).style < 0.01
