"""The table of clusters of brokers is that of its record, and a stand lasts from a fold to the next one."""

from __future__ import annotations

import json

from benchmarks.broker_clusters import OUT, figures, table
from tests.processes import ROOT


def test_the_page_has_the_table_of_the_record() -> None:
    found = json.loads((ROOT / OUT).read_text())["cells"]
    assert table(found) in (ROOT / "docs" / "brokers.md").read_text("utf-8")


def test_the_longest_time_between_two_folds_counts_from_the_round_of_the_kill_on() -> None:
    folds = [0.0, 9.0, 10.0, 12.0, 37.0, 38.0]
    found = figures(folds, killed=10.5, returned=31.0, stands=False)
    assert (found["longest_s"], found["returned_s"], found["fold_after_return_s"]) == (25, 20.5, 6)
    assert figures(folds, killed=0.0, returned=0.0, stands=False)["fold_after_return_s"] is None
