"""The benchmarks of what cards cost and reveal: measures are right where they are known, and the pages show the records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import card_costs, card_leakage

ROOT = Path(__file__).parents[2]


def test_a_small_fleet_costs_a_card_of_five_kilobytes() -> None:
    row = card_costs.measured(20)
    assert 5000 < row["bytes"] < 6000
    assert row["ari"] > 0.3


@pytest.mark.parametrize(
    ("made", "record", "page"),
    [
        (card_costs.table, card_costs.OUT, "docs/kin.md"),
        (card_leakage.table, card_leakage.OUT, "benchmarks/results/privacy.md"),
    ],
)
def test_the_page_shows_the_figures_of_the_record(
    made: Callable[[Any], str], record: Path, page: str
) -> None:
    assert made(json.loads(record.read_text())["cells"]) in (ROOT / page).read_text("utf-8")
