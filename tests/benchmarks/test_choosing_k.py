"""The benchmark of rules that choose K: its record is in the laboratory book."""

from __future__ import annotations

import json

from benchmarks.choosing_k import OUT, table

BOOK = OUT.with_name("choosing_k.md").read_text("utf-8")


def test_the_book_shows_the_record() -> None:
    for first, counts in json.loads(OUT.read_text()).items():
        assert table(first, counts) in BOOK
