"""The benchmark of rules that choose K: its record is in the laboratory book."""

from __future__ import annotations

import json

import pytest

from benchmarks import choosing_k
from benchmarks.choosing_k import OUT, RULES, answers, counted, planned_cases, table

BOOK = OUT.with_name("choosing_k.md").read_text("utf-8")


def test_the_book_shows_the_record() -> None:
    for first, counts in json.loads(OUT.read_text()).items():
        assert table(first, counts) in BOOK


def test_a_case_with_one_cluster_is_not_one_of_the_best_silhouettes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choosing_k, "AGENTS", 30)
    monkeypatch.setattr(choosing_k, "DIMENSIONS", 40)
    one, two = (case for case in planned_cases([0.5], [1])[:2])
    assert (one.clusters, two.clusters) == (1, 2)
    results = [(case, answer) for case in (one, two) for answer in answers(case)]
    counts = counted(results, lambda _: "all")["all"]
    assert {rule: cases for rule, (_, cases) in counts.items()} == {
        rule: 1 if rule == "best silhouette" else 2 for rule in RULES
    }
    assert counts["best silhouette"] == (1, 1)
