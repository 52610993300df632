"""The benchmark of ten thousand agents: what it repeats, what it keeps, and how it sums up. Nothing is measured here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.ten_thousand import (
    Figures,
    digest_of,
    load_figures,
    missing,
    reports_in_the_spool,
    summary,
)
from covey.coordinator.disk.spool import Spool
from covey.shared.strategies.base import Report


def test_sizes_take_turns_and_finished_repetitions_are_not_run_again() -> None:
    assert list(missing({}, [100, 300], 2)) == [100, 300, 100, 300]
    finished: dict[str, list[Figures]] = {"100": [{}, {}], "300": [{}]}
    assert list(missing(finished, [100, 300], 3)) == [300, 100, 300]
    assert list(missing(finished, [100, 300], 1)) == []


def test_a_figure_is_summed_up_by_its_median_and_its_range() -> None:
    assert summary([1.5]) == "1.5"
    assert summary([3.0, 1.0, 2.5]) == "2.5 (1 to 3)"
    assert summary([True, True]) == "True"


def test_a_result_of_an_earlier_version_counts_as_one_repetition(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"agents": {"100": {"foreign": 0.0}}, "known": {}}))
    found = load_figures(file)
    assert found["agents"] == {"100": [{"foreign": 0.0}]}
    assert load_figures(tmp_path / "none.json")["agents"] == {}


def test_the_digest_of_a_run_changes_with_the_name_and_the_content_of_a_file() -> None:
    whole = {"a": b"1", "b": b"2"}
    assert digest_of(whole) == digest_of(dict(reversed(whole.items())))
    assert digest_of(whole) != digest_of({"a": b"2", "b": b"1"})
    assert digest_of(whole) != digest_of({"a": b"1"})


def test_the_kill_waits_for_reports_in_the_spool(tmp_path: Path) -> None:
    """The benchmark kills the coordinator once a third of them is there."""
    spool = Spool(tmp_path / "spool")
    spool.durable = False
    assert reports_in_the_spool(tmp_path) == 0
    for client in ("a", "b", "c"):
        spool.keep(4, client, Report({"model": np.zeros(3, np.float32)}, 1), 0.0)
    assert reports_in_the_spool(tmp_path) == 3
