"""The benchmark of the default cuts: its fleets are what they are called, and the page shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.default_cut import (
    ALONE,
    FLEETS,
    METHODS,
    RULES,
    UNEQUAL,
    Cell,
    behind,
    cells,
    clusters_of,
    judged,
    of,
    people,
    rules_table,
    scenario,
    table,
)
from benchmarks.measuring import replaced

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "default_cut.json").read_text())
BOOK = (ROOT / "benchmarks" / "results" / "choosing_k.md").read_text("utf-8")


def test_every_fleet_and_method_is_a_scenario_with_its_own_defaults() -> None:
    listed = list(cells(list(FLEETS), [1]))
    assert len({cell.key for cell in listed}) == len(FLEETS) * len(METHODS)
    assert {scenario(cell).strategy.name for cell in listed} == set(METHODS)
    assert set(scenario(Cell("planted", "fedclust", 1)).strategy.model_fields_set) >= {"name"}


def test_the_rules_agree_on_planted_groups_and_that_there_are_none() -> None:
    planted, even = (judged(fleet, 1, "../shared/data") for fleet in ("planted", "even digits"))
    assert {label: one["ari"] for label, one in planted.items()} == dict.fromkeys(RULES, 1.0)
    assert {label for label, one in even.items() if len(one["sizes"]) == 1} == set(RULES)
    assert planted["fedclust"]["shift"] == ["labels"]
    assert even["fedclust"]["shift"] == []


def test_agents_keep_log_normal_shares_of_their_samples() -> None:
    whole, _ = people("even digits", 1, "../shared/data")
    kept, _ = people("even digits, log-normal", 1, "../shared/data")
    before = [len(data.targets) for data in whole.values()]
    after = [len(data.targets) for data in kept.values()]
    assert max(before) - min(before) <= 1
    assert min(after) >= 8
    assert max(after) == max(before)
    assert max(after) > 4 * min(after)


def test_by_default_planted_groups_are_found_whatever_the_sizes() -> None:
    for fleet in ("planted", "planted, log-normal"):
        for label in ("fedclust", "pacfl"):
            assert of(RECORD["rules"], fleet, label, "ari") == [1.0] * 3


def test_the_book_shows_the_record() -> None:
    assert rules_table(RECORD["rules"]) in BOOK
    assert table(RECORD["cells"]) in BOOK


def test_the_book_names_every_default_that_is_half_a_point_below_the_worse_of_local_and_fedavg() -> (
    None
):
    named = [
        f"{method} on `{fleet}` ({points:.1f})"
        for (fleet, method), points in behind(RECORD["cells"]).items()
    ]
    assert f"below the worse of Local and FedAvg: {', '.join(named) or 'none'}." in BOOK


def test_by_rotations_no_fleet_falls_into_nearly_as_many_clusters_as_agents() -> None:
    for label in (label for label in RULES if "rotations" in label):
        sizes = [one["sizes"] for key, one in RECORD["rules"].items() if key.split("/")[1] == label]
        assert len(sizes) == len(FLEETS | UNEQUAL) * 3
        assert all(len(own) <= sum(own) / 3 for own in sizes)


def figures(**tuned: float) -> dict[str, Any]:
    one = {"sizes": [2, 2], "ari": 0.5, "server": 0.5}
    return {
        Cell("rotated", method, 1).key: {**one, "tuned": share} for method, share in tuned.items()
    }


def test_who_falls_behind_the_worse_of_local_and_fedavg_is_named() -> None:
    assert behind(figures(local=0.9, fedavg=0.7, fedclust=0.697, pacfl=0.69)) == {
        ("rotated", "pacfl"): pytest.approx(1.0)
    }
    assert behind(figures(fedavg=0.7, fedclust=0.5)) == {}  # Local is not there yet
    assert ALONE == ("local", "fedavg")


def test_a_table_takes_the_place_of_the_one_with_the_same_first_column() -> None:
    made = table(figures(fedclust=0.5))
    assert made.splitlines()[2] == "| rotated | fedclust | 2 (0.50) | 50.0 | 50.0 |"
    assert clusters_of(figures(fedclust=0.5), "rotated", "fedavg") == ""
    page = "| a | b |\n|---|---|\n| 1 | 2 |\n\n| fleet | x |\n|---|---|\n| 3 | 4 |\n\nend"
    assert replaced(page, "fleet", made) == f"| a | b |\n|---|---|\n| 1 | 2 |\n\n{made}\n\nend"
