"""What steady members cost: the page has rows of the record, and a cell can be measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.secure_steady import HONEST, NO_RULE, THRESHOLD, Cell, measured, table

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "secure_steady.json").read_text())


def test_the_page_has_rows_of_the_record_for_both_forms() -> None:
    page = (ROOT / "benchmarks" / "results" / "secure_sums.md").read_text("utf-8").splitlines()
    shown = [line for line in table(RECORD["cells"]) if line in page]
    for rule in (NO_RULE, THRESHOLD, "batches of 5"):
        assert sum(f"| {rule} |" in line for line in shown) == 4


@pytest.mark.parametrize("form", [HONEST, "batches of 5"])
def test_a_cell_repeats(form: str) -> None:
    cell = Cell(10, 0.1, "all", form)
    assert measured(cell, RECORD["settings"]["seeds"]) == RECORD["cells"][cell.key]
