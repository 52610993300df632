"""What benchmarks share."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.encoding import CODECS, rows
from benchmarks.measuring import (
    Cost,
    Row,
    cost_of,
    foreign_load,
    in_turns,
    record_options,
    resumed,
    show,
)
from benchmarks.rounds import KINDS, PART_BYTES, parts_of


def test_floor_and_product_are_measured_in_turns_and_the_median_counts() -> None:
    order: list[str] = []
    seconds = iter([1.0, 5.0, 100.0, 6.0, 2.0, 7.0])

    def measured(name: str) -> Cost:
        order.append(name)
        return Cost(next(seconds), 1.0)

    row = in_turns("x", lambda: measured("floor"), lambda: measured("product"), 3)
    assert order == ["floor", "product"] * 3
    assert (row.floor.wall_s, row.product.wall_s, row.wall_ratio) == (2.0, 6.0, 3.0)


def test_figures_are_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with foreign_load() as load:
        cost_of(lambda: sum(range(1000)), repeats=3)
    row = Row("a round", Cost(0.01, 0.01), Cost(0.05, 0.02), 3, {"broker": 1.5})
    show("x", "rounds", [row], load, tmp_path)
    assert "5.0x" in capsys.readouterr().out
    written = json.loads((tmp_path / "x.json").read_text())
    assert 0 <= written["foreign"] <= 1
    assert written["rows"][0]["ratio"] == {"wall": 5.0, "cpu": 2.0}


def test_the_parts_of_the_floor_have_the_size_of_the_payload() -> None:
    for kind in KINDS.values():
        sizes = parts_of(kind.payload_bytes)
        assert sum(sizes) == kind.payload_bytes
        assert max(sizes) <= PART_BYTES


def test_every_codec_is_measured() -> None:
    measured = {row.what for row in rows(1000, 1)}
    assert measured >= set(CODECS)


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
