"""The benchmark of mixtures: a cell has what the table shows, and the book shows the figures of the record."""

from __future__ import annotations

import json

from benchmarks.kin import Cell
from benchmarks.mixture import OUT, PARTS, WAYS, measured, parts_table, table

RECORD = json.loads(OUT.read_text())["cells"]
BOOK = OUT.with_suffix(".md").read_text("utf-8")


def test_a_cell_has_what_the_table_shows() -> None:
    figures = measured(Cell("even", "fedavg", 1))
    assert figures.keys() == RECORD["even/fedavg/1"].keys()
    assert figures["figures"].keys() == RECORD["even/fedavg/1"]["figures"].keys() > {*WAYS}
    assert figures["figures"]["mixture"] > figures["figures"]["served"] - 2


def test_the_book_shows_the_figures_of_the_record() -> None:
    assert table(RECORD) in BOOK
    assert parts_table(json.loads(PARTS.read_text())["cells"]) in BOOK
