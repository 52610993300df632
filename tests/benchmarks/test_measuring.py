"""What benchmarks share."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring import Cost, in_turns, record_options, resumed


def test_floor_and_product_are_measured_in_turns_and_the_median_counts() -> None:
    order: list[str] = []
    seconds = iter([1.0, 5.0, 100.0, 6.0, 2.0, 7.0])

    def measured(name: str) -> Cost:
        order.append(name)
        return Cost(next(seconds), 1.0)

    row = in_turns("x", lambda: measured("floor"), lambda: measured("product"), 3)
    assert order == ["floor", "product"] * 3
    assert (row.floor.wall_s, row.product.wall_s, row.wall_ratio) == (2.0, 6.0, 3.0)


def test_a_record_resumes_after_the_last_finished_cell(tmp_path: Path) -> None:
    options = record_options("A table.", tmp_path / "record.json", [1]).parse_args([])
    ran: list[str] = []

    def measured(key: str) -> dict[str, Any]:
        if key == "b" and len(ran) == 1:
            raise KeyboardInterrupt
        ran.append(key)
        return {"figure": len(ran)}

    cells = {key: partial(measured, key) for key in "abc"}
    with pytest.raises(KeyboardInterrupt):
        resumed(options, cells, {"agents": 3})
    kept = json.loads(options.out.read_text())
    assert kept == {"settings": {"agents": 3}, "cells": {"a": {"figure": 1}}}
    ran.append("resumed")
    found = resumed(options, cells, {"agents": 3})
    assert ran == ["a", "resumed", "b", "c"]
    assert found == json.loads(options.out.read_text())["cells"]
    options.table = True
    assert resumed(options, {"d": partial(measured, "d")}, {}) == found
