"""The tables of planted signatures on docs/choosing-k.md are those of the stored record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.choosing_k import Answer, Case, share_found

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "choosing_k.json").read_text())
PAGE = (ROOT / "docs" / "choosing-k.md").read_text("utf-8")
PLANTED = PAGE[PAGE.index("## Measured on planted signatures") :]
RULES = ("gap", "second difference", "silhouette", "rotations")
OUTLIERS = {"none": 0, "ten": 10, "no outliers": 0, "ten outliers": 10}


def found(key: str, value: float, outliers: str) -> list[str]:
    """The shares of the cases with this noise, or this number of clusters, in which each rule found K."""
    rows = [row for row in RECORD if (row[key], row["outliers"]) == (value, OUTLIERS[outliers])]
    cases = Case.__dataclass_fields__
    answers = Answer.__dataclass_fields__
    results = [
        (
            Case(**{name: row[name] for name in cases}),
            Answer(**{name: row[name] for name in answers}),
        )
        for row in rows
    ]
    return [share_found(rule, results) for rule in RULES]


@pytest.mark.parametrize("outliers", ["none", "ten"])
@pytest.mark.parametrize("noise", ["0.5", "1", "2", "2.5", "3"])
def test_the_page_has_the_shares_of_each_noise(noise: str, outliers: str) -> None:
    row = f"| {noise}, {outliers} | 16 | {' | '.join(found('noise', float(noise), outliers))} |"
    assert row in PLANTED


@pytest.mark.parametrize("outliers", ["no outliers", "ten outliers"])
@pytest.mark.parametrize("clusters", range(1, 9))
def test_the_page_has_the_shares_of_each_number_of_clusters(clusters: int, outliers: str) -> None:
    row = f"| {clusters}, {outliers} | 10 | {' | '.join(found('clusters', clusters, outliers))} |"
    assert row in PLANTED
