"""The laboratory book of kept layers shows the figures of its record."""

from __future__ import annotations

import json

import pytest

from benchmarks.kept_layers import OUT, table

RECORD = json.loads(OUT.read_text())["cells"]
BOOK = OUT.with_suffix(".md").read_text("utf-8")


@pytest.mark.parametrize(
    ("model", "seeds"),
    [
        ("mlp", (1, 2, 3)),
        ("cnn4", (1, 2, 3)),
        ("fashion", (1,)),
        ("lenet", (1, 2, 3)),
        ("cifar", (1, 2, 3)),
        ("writers", (1, 2, 3)),
    ],
)
def test_a_table_of_the_book_is_made_from_the_record(model: str, seeds: tuple[int, ...]) -> None:
    rows = table(RECORD, model, seeds)
    assert rows.count("\n") > 7
    assert rows in BOOK
