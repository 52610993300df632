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
    paired,
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


def test_the_last_third_of_a_method_that_finishes_alone_has_as_many_epochs() -> None:
    whole = scenario(Cell("even", "fedavg", 1))
    thirds = scenario(Cell("even", "local last third", 1))
    left = whole.rounds.count - thirds.rounds.count
    assert thirds.evaluation.tune_epochs == 1 + left * whole.training.epochs


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


def test_a_difference_to_the_best_has_the_interval_of_its_pairs() -> None:
    """Kin is 1, 2 and 3 points ahead: the mean is 2, the standard deviation 1, and t(0.975, 2) = 4.303."""
    plain = {"tuned": 0.5, "server": 0.5, "decile": {"server": 0.4}, "mb": 2.0}
    found = {
        f"even/{method}/{seed}": dict(plain)
        for method in (*SEVEN, "kin, cells of 5", "fedavg, prior")
        for seed in (1, 2, 3)
    }
    for seed in (1, 2, 3):
        ahead = {"server": 0.5 + seed / 100, "chances": [1, 0.0005, 1], "votes": {}}
        found[f"even/kin/{seed}"] = plain | ahead
    row = paired(found, "x").splitlines()[-1]
    assert "| 3 | +2.0 ± 2.5 | +0.0 ± 0.0 | 40.0 | 40.0 | 2.00 | 2.00 |" in row


def test_a_setting_has_its_own_data_size_and_share_of_agents() -> None:
    few = scenario(Cell("even", "fedavg", 1, "few"))
    assert few.fleet is not None
    assert (few.fleet.data, few.fleet.agents, few.rounds.participation) == (
        "fashion-mnist",
        40,
        0.1,
    )
    assert scenario(Cell("even", "fedavg", 1, "lenet")).task.model.name == "lenet5"


def test_the_advice_for_a_fleet_is_that_of_the_record() -> None:
    assert advice_for(Cell("rotated", "advice", 1)) == {"kind": "groups"}
    assert RECORD["cells"]["rotated/advice/1"] == {"kind": "groups"}
