"""The benchmark of Kin: its fleets are what they are called, and the page shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kin import (
    EVERY,
    SEVEN,
    Cell,
    advice_for,
    cells,
    measured,
    outputs,
    people,
    scenario,
    suits,
    tables_of,
)
from benchmarks.kin_fleets import FLEETS, NATURAL, SETTINGS

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "kin.json").read_text())
PAGE = "".join(
    (ROOT / page).read_text("utf-8")
    for page in ("docs/kin.md", "docs/choosing-k.md", "benchmarks/results/kin.md")
)


def test_every_fleet_and_method_is_a_scenario() -> None:
    listed = list(cells([*FLEETS, *NATURAL], list(EVERY), [1]))
    possible = sum(suits(fleet, method) for fleet in (*FLEETS, *NATURAL) for method in EVERY)
    assert len({cell.key for cell in listed}) == possible
    assert possible == (len(FLEETS) + len(NATURAL)) * len(EVERY) - 4  # priors of two regressions
    assert all(scenario(cell).strategy.name for cell in listed)
    assert len(SEVEN) == 7


def test_groups_name_digits_otherwise_and_see_them_turned() -> None:
    plain, _ = people("even", 1)
    swapped, truth = people("swaps", 1)
    assert truth[:4] == (0, 1, 2, 0)
    for place, name in enumerate(plain):
        moved = np.mean(plain[name].targets != swapped[name].targets)
        assert (moved > 0) == (truth[place] > 0)
    turned, _ = people("skewed rotation", 1)
    plain, _ = people("dirichlet 0.3", 1)
    second = list(plain)[1]
    np.testing.assert_array_equal(
        turned[second].features[0, 0, ::-1, ::-1], plain[second].features[0, 0]
    )


def test_a_cell_has_what_the_tables_show() -> None:
    figures = measured(Cell("log-normal", "kin", 1))
    assert figures.keys() == RECORD["cells"]["log-normal/kin/1"].keys()
    assert 0.5 < figures["server"] < 1


def test_the_page_shows_the_figures_of_the_records() -> None:
    for setting in (*SETTINGS, "natural"):
        for name, table in tables_of(cells_of(setting), setting).items():
            assert len(table.splitlines()) > 2, (setting, name)
            assert table in PAGE, (setting, name)


def cells_of(setting: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(outputs(setting).read_text())["cells"]
    return found


def test_the_advice_for_a_fleet_is_that_of_the_record() -> None:
    assert advice_for(Cell("rotated", "advice", 1)) == {"kind": "groups"}
    assert RECORD["cells"]["rotated/advice/1"] == {"kind": "groups"}
