"""Accuracy against epsilon: the training of all agents at once against one agent by hand, and the tables of the docs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import privacy
from benchmarks.privacy import DELTA, Cell, cells, measured, tables
from covey.coordinator.fold.private_sums import epsilon

ROOT = Path(__file__).parents[2]
SMALL = {key: replace(setting, agents=12, rounds=2) for key, setting in privacy.SETTINGS.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "SETTINGS", SMALL)
    privacy.fleet_of.cache_clear()


@pytest.mark.usefixtures("small")
def test_a_cell_repeats_and_its_epsilon_is_that_of_the_account() -> None:
    cell = Cell("digits", "client", "fedclust", 2.0, 1, 0.1)
    one, other = measured(cell, None), measured(cell, None)
    assert one["accuracy"] == other["accuracy"]
    assert one["epsilon"] == epsilon([(2.0, 2), (0.1, 1)], DELTA)


def test_the_tables_of_the_docs_are_those_of_the_record() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "privacy.json").read_text())
    known = {cell.key for data in privacy.TASKS for cell in cells(data, [1, 2, 3])}
    assert rows.keys() <= known
    book = (ROOT / "benchmarks" / "results" / "privacy.md").read_text()
    assert tables(list(rows.values())).strip() in book
