"""The trial of a mixed fleet: each group has an agent of both kinds, and the page shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.boards import GROUPS, INSTALL, OUT, divided, table

ROOT = Path(__file__).parents[2]


def test_each_group_of_labels_has_an_agent_of_both_kinds() -> None:
    held = [frozenset(np.unique(labels)) for _, labels in divided()]
    assert held[::2] == held[1::2] == [frozenset(group) for group in GROUPS]


def test_the_userland_is_made_with_the_commands_of_the_page() -> None:
    lines = (ROOT / "docs" / "devices.md").read_text("utf-8").splitlines()
    assert set(INSTALL) <= set(lines)


def test_the_page_shows_the_figures_of_the_record() -> None:
    found = json.loads((ROOT / OUT).read_text())["cells"]
    assert table(found) in (ROOT / "benchmarks" / "results" / "boards.md").read_text("utf-8")
