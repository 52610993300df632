"""The benchmark of ten thousand agents: what it repeats, what it keeps, and how it sums up. Nothing is measured here."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.ten_thousand import Figures, missing, reports_in_the_spool
from covey.coordinator.disk.spool import Spool
from covey.shared.strategies.base import Report


def test_sizes_take_turns_and_finished_repetitions_are_not_run_again() -> None:
    assert list(missing({}, [100, 300], 2)) == [100, 300, 100, 300]
    finished: dict[str, list[Figures]] = {"100": [{}, {}], "300": [{}]}
    assert list(missing(finished, [100, 300], 3)) == [300, 100, 300]
    assert list(missing(finished, [100, 300], 1)) == []


def test_the_kill_waits_for_reports_in_the_spool(tmp_path: Path) -> None:
    """The benchmark kills the coordinator once a third of them is there."""
    spool = Spool(tmp_path / "spool")
    spool.durable = False
    assert reports_in_the_spool(tmp_path) == 0
    for client in ("a", "b", "c"):
        spool.keep(4, client, Report({"model": np.zeros(3, np.float32)}, 1), 0.0)
    assert reports_in_the_spool(tmp_path) == 3
