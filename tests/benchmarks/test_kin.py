"""The benchmark of Kin: its fleets are what they are called, and the page shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.kin import (
    EVERY,
    FLEETS,
    MODES,
    SEVEN,
    Cell,
    advice_for,
    advised,
    brief,
    cells,
    gated,
    measured,
    outputs,
    people,
    scenario,
    summary,
    table,
)

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "kin.json").read_text())
PAGE = "".join(
    (ROOT / page).read_text("utf-8") for page in ("docs/kin.md", "benchmarks/results/kin.md")
)


def test_every_fleet_and_method_is_a_scenario() -> None:
    listed = list(cells(list(FLEETS), list(EVERY), [1]))
    assert len({cell.key for cell in listed}) == len(FLEETS) * len(EVERY)
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


def test_the_page_shows_the_figures_of_the_record() -> None:
    for mode in MODES:
        assert table(RECORD["cells"], mode) in PAGE
        assert summary(RECORD["cells"], mode) in PAGE
    assert advised(RECORD["cells"]) in PAGE
    for setting in ("few", "lenet"):
        cells_of = json.loads(outputs(setting).read_text())["cells"]
        assert brief(cells_of, setting) in PAGE
    assert gated(RECORD["cells"]) in (ROOT / "docs" / "choosing-k.md").read_text("utf-8")


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
