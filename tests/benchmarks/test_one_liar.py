"""The benchmark of one liar: its fleets are what they are called, and the laboratory book shows the record."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.one_liar import FLEETS, OUT, SETTINGS, cells, sizes, table
from covey.shared.numerics.averages import fair_weights
from covey.shared.seeds import generator

BOOK = OUT.with_name("hostile_agents.md")


def test_the_book_shows_the_record() -> None:
    found = json.loads(OUT.read_text())["cells"]
    assert table(found) in BOOK.read_text("utf-8")
    assert set(found) == {cell.key for cell in cells([1, 2, 3])}
    assert all(
        bool(one["lies"]) == (key[:4] in ("own ", "back", "figu")) for key, one in found.items()
    )


def test_fleets_are_as_unequal_as_their_names_say() -> None:
    for fleet in FLEETS:
        assert max(sizes(fleet, 1)) == 1.0
    assert sorted(sizes("halves", 2)) == [0.1] * 10 + [1.0] * 10
    assert sorted(sizes("few", 2)) == [0.1] * 18 + [1.0] * 2
    assert SETTINGS["default"] == {}


def test_the_limit_changes_half_of_log_normal_fleets_of_20_and_hardly_any_of_100() -> None:
    changed = {}
    for agents in (20, 40, 100):
        draw = generator(1, "log-normal", agents)
        fleets = [np.exp(draw.standard_normal(agents)).tolist() for _ in range(400)]
        changed[agents] = sum(fair_weights(own, 0.2) != own for own in fleets) / 400
    assert 0.4 < changed[20] < 0.55
    assert 0.1 < changed[40] < 0.2
    assert changed[100] < 0.03
