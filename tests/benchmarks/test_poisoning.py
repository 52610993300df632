"""The poisoning benchmark: its lies are what they are called, and the laboratory book shows the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.poisoning import table
from benchmarks.torch_runs import TIMES, bent
from covey.shared.seeds import generator
from tests.bowl import flat

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "poisoning.json"


def test_a_bent_report_goes_ten_times_as_far_as_the_honest_one() -> None:
    base, honest = flat(1.0, 1.0, 1.0), flat(1.0, 2.0, 1.0)
    draw = generator(1, "test")
    assert bent(honest, base, "scaled", draw).tolist() == [1.0, 11.0, 1.0]
    assert bent(honest, base, "sign_flip", draw).tolist() == [1.0, -9.0, 1.0]
    random = bent(honest, base, "random", draw)
    assert float(np.linalg.norm(random - base)) == pytest.approx(TIMES, rel=1e-5)
    assert random.tolist() != [1.0, 11.0, 1.0]


@pytest.mark.parametrize("mode", ["server", "tuned"])
def test_the_book_shows_the_record(mode: str) -> None:
    found = json.loads(RECORD.read_text())["cells"]
    seeds = sorted({int(key.rpartition(" ")[2]) for key in found})
    assert table(found, mode, seeds) in RECORD.with_name("hostile_agents.md").read_text("utf-8")
    assert all(one["finite"] for one in found.values())
