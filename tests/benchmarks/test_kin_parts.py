"""The benchmark of Kin's parts: further fleets differ as they are called, and variants in one thing."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.kin import people
from benchmarks.kin_fleets import FLEETS
from benchmarks.kin_parts import FURTHER, NO_CUT, figures, judged

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "kin_parts.json").read_text())["cells"]
PAGE = "".join(
    (ROOT / page).read_text("utf-8") for page in ("docs/kin.md", "benchmarks/results/kin.md")
)


def test_further_fleets_differ_from_an_even_one_in_their_later_groups_alone() -> None:
    plain, _ = people("even", 1)
    with mock.patch.dict(FLEETS, FURTHER):
        for name, fleet in FURTHER.items():
            if fleet.unequal:
                continue
            changed, _ = people(name, 1)
            differs = [
                not np.array_equal(plain[agent].features, changed[agent].features)
                or not np.array_equal(plain[agent].targets, changed[agent].targets)
                for agent in plain
            ]
            assert not differs[0], name
            assert differs[4 if "4 of 20" in name else 1], name


def test_in_the_variant_without_cuts_one_falls_that_the_agents_have_voted_for() -> None:
    falls = figures("upside down", NO_CUT, 1)
    assert falls["votes"]["inputs"]["z"] > 0
    assert falls["basis"] == ""


def test_the_page_shows_the_figures_of_the_record() -> None:
    assert judged(RECORD) in PAGE
