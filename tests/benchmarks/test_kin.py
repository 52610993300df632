"""The benchmark of Kin: its fleets are what they are called, and the page shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.kin import Cell, changed, measured, outputs, tables_of
from benchmarks.kin_fleets import SETTINGS

ROOT = Path(__file__).parents[2]
PAGE = "".join(
    (ROOT / page).read_text("utf-8")
    for page in ("benchmarks/results/choosing_k.md", "benchmarks/results/kin.md")
)


def test_a_cell_has_what_the_tables_show() -> None:
    figures = measured(Cell("log-normal", "kin", 1))
    assert figures.keys() == one_vote("digits")["log-normal/kin/1"].keys()
    assert 0.5 < figures["server"] < 1


def test_the_page_shows_the_figures_of_the_records() -> None:
    for setting in (*SETTINGS, "natural"):
        for name, table in tables_of(cells_of(setting), setting).items():
            assert len(table.splitlines()) > 2, (setting, name)
            assert table in PAGE, (setting, name)


def test_the_page_shows_what_one_vote_changes() -> None:
    for setting in ("digits", "natural"):
        table = changed(cells_of(setting), one_vote(setting), f"{setting}, two votes")
        assert table in PAGE, setting


def one_vote(setting: str) -> dict[str, dict[str, Any]]:
    record = outputs(setting)
    found = json.loads(record.with_name(f"{record.stem}_one_vote.json").read_text())["cells"]
    return {key: figures for key, figures in found.items() if "/kin/" in key}


def cells_of(setting: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(outputs(setting).read_text())["cells"]
    return found
