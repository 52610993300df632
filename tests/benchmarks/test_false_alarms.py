"""The benchmark of false alarms: fleets are what they are called, and the page shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.false_alarms import KINDS, SIZES, counts_of, seen, series, shares, table, windows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "choosing-k.md").read_text("utf-8")
BOOK = (ROOT / "benchmarks" / "results" / "choosing_k.md").read_text("utf-8")
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


@pytest.mark.parametrize("sizes", SIZES)
def test_made_up_agents_have_a_hundred_samples_on_average(sizes: str) -> None:
    counts = counts_of(sizes, 200, np.random.default_rng(1))
    assert min(counts) >= 10
    assert np.mean(counts) == pytest.approx(100, rel=0.05)
    assert (len(set(counts)) == 1) == (sizes == "equal")


def test_windows_share_half_of_their_rows_with_the_next() -> None:
    features, labels = series(40, np.random.default_rng(1))
    assert features.shape == (40, 3, 32)
    np.testing.assert_array_equal(features[:-1, :, 16:], features[1:, :, :16])
    assert set(labels.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("kind", list(KINDS))
def test_cards_see_a_planted_shift_and_none_where_there_is_none(kind: str) -> None:
    assert KINDS[kind]("equal", "planted", 40, 1)["cards"]
    assert not KINDS[kind]("equal", "none", 40, 1)["cards"]


def test_windows_that_are_dealt_one_by_one_seem_to_differ() -> None:
    assert windows("equal", "none", 12, 1)["cards, windows one by one"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_book_shows_the_record(kind: str) -> None:
    assert table(kind, RECORD) in BOOK


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_page_has_the_rates_of_the_record(kind: str) -> None:
    other = "cards, windows one by one" if kind == "windows" else "rotations"
    for judge in ("cards", other):
        alarms, fleets = seen(RECORD, kind, "none", judge)
        assert f"{alarms} of {fleets}" in PAGE
