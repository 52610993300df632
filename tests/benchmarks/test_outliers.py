"""The benchmark of outliers: the laboratory book shows its record, and a cell has what the record has."""

from __future__ import annotations

import json

from benchmarks.outliers import OUT, key_of, measured, table

FOUND = json.loads(OUT.read_text())["cells"]


def test_the_book_shows_the_record() -> None:
    assert table(FOUND) in OUT.with_name("choosing_k.md").read_text("utf-8")


def test_outliers_divide_no_loose_group_unless_groups_have_any_size() -> None:
    counts = measured(20, 1, 2, [1])
    assert counts.keys() == FOUND[key_of(20, 1, 2)].keys()
    assert counts["complete, any size"] == counts["average, any size"] == 1
    assert counts["complete, three or more"] == counts["average, three or more"] == 0
