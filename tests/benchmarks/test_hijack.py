"""The hijack: honest members of the attacked cluster are served well with the fallback, and badly without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmarks.hijack
from benchmarks.hijack import (
    HOSTILE,
    METHODS,
    Cell,
    attacks,
    cost_table,
    hostile,
    measured,
    scenario,
    table,
)

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "hijack.json"


@pytest.mark.parametrize("attack", ["stay", "follow"])
def test_a_hijacked_cluster_serves_its_honest_members_with_the_fallback(attack: str) -> None:
    found = measured(Cell("fedclust", "mean", attack, fallback=True))
    assert found["lies"] > 0
    assert found["group 0"] >= 0.9
    assert found["others"] >= 0.95
    assert found["fell_back"] == 5


def test_without_the_fallback_a_hijacked_cluster_is_lost() -> None:
    found = measured(Cell("fedclust", "mean", "stay"))
    assert found["group 0"] <= 0.2
    assert found["others"] >= 0.95


def test_a_campaign_whose_hostile_agents_do_not_attack_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmarks.hijack.Hijacked, "_is_inside", lambda *_: False)
    monkeypatch.setattr(benchmarks.hijack, "ROUNDS", 1)
    with pytest.raises(RuntimeError, match="no false report was accepted"):
        measured(Cell("fedclust", "mean", "stay"))


def test_six_agents_of_other_groups_are_hostile_the_same_in_every_cell_of_a_seed() -> None:
    assert len(set(hostile(1))) == HOSTILE
    assert hostile(1) == hostile(1) != hostile(2)
    assert min(hostile(1)) >= "agent-05"
    listed = list(attacks([1]))
    assert len({cell.key for cell in listed}) == len(listed)
    assert {cell.method for cell in listed} == set(METHODS)
    assert all(scenario(cell).evaluation.fallback == cell.fallback for cell in listed)


def test_the_book_shows_the_record() -> None:
    record = json.loads(RECORD.read_text())["cells"]
    book = RECORD.with_name("hostile_agents.md").read_text("utf-8")
    attacked = {key: cell for key, cell in record.items() if " none " not in key}
    assert attacked
    assert all(cell["lies"] > 0 for cell in attacked.values())
    assert table(record, [1]) in book
    assert cost_table(record, [1, 2, 3]) in book
