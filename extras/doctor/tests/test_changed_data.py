"""Data that are replaced in mid-run are compared again: their sums are sent once more, under the rule under which they were sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.worker.worker import answer
from covey.coordinator.checks import checked_numbers
from covey.extras.doctor.of_run import at_the_end
from covey.extras.doctor.on_device import has_moved
from covey.extras.simulate.tests import device_run
from covey.extras.simulate.tests.device_run import scenes
from covey.shared.disclosures import SUMS
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import Phase
from covey.shared.strategies.client_half import Report
from covey.shared.wire.jobs import Perform
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit.gateways import FAULTY, TASK, Fault, constant, gateways, rows, scaled, written

TEMP, _, WIND, LOAD = range(4)
MIDDLE = 2  # rounds that are over when the data change


def odd_after(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Fault,
    more: Mapping[str, Any] | None = None,
    *,
    every: int = 0,
) -> tuple[list[tuple[str, str]], list[ReportContent]]:
    """The odd devices at the end of a run in whose middle the rows of one change, and its reports with sums."""
    files = gateways(folder)
    reports: list[ReportContent] = []

    def answered(job: Any) -> Any:
        if isinstance(job, Perform):
            order = OrderMessage.from_bytes(job.order)
            if order.work is not None and order.work.round == MIDDLE:
                written(files[FAULTY], change(rows(int(FAULTY.removeprefix("gw-")))))
        found = answer(job)
        if isinstance(job, Perform) and job.client == FAULTY:
            report = ReportContent.from_bytes(job.report_out.read_bytes(), verified=True)
            reports.extend([report] if SUMS in report.numbers else [])
        return found

    monkeypatch.setattr(device_run, "answer", answered)
    training = {
        "epochs": 1,
        "batch": 80,
        "lr": 1e-6,
    }  # the data are looked at, whatever the training makes of them
    scene = scenes({**TASK, **(more or {})})(
        rounds={"count": 5}, training=training, evaluation={"deliver": "served", "every": every}
    )
    run = device_run.devices(folder / "run", scene, files)
    return [(one.who, one.kind) for one in at_the_end(run, {})], reports


CHANGES: dict[str, tuple[Fault, str]] = {
    "°F": (scaled(TEMP, 1.8, 32.0), "unit"),
    "a thousand times": (scaled(WIND, 1000), "unit"),
    "a tenth": (scaled(WIND, 0.1), "scale"),
    "constant": (constant(TEMP, 21.3), "constant"),
    "the target": (scaled(LOAD, 1000), "target"),
}


@pytest.mark.parametrize(
    "every", [0, 1]
)  # the sums come with a report of training, or of an evaluation
@pytest.mark.parametrize("name", CHANGES)
def test_data_that_change_in_mid_run_are_named_as_if_they_had_been_so_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, every: int
) -> None:
    change, kind = CHANGES[name]
    found, reports = odd_after(tmp_path, monkeypatch, change, every=every)
    assert found[:1] == [(FAULTY, kind)]
    assert len(reports) == 1, "sums that the coordinator has are not sent again"


def test_data_that_change_by_a_row_send_no_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sums that are a row apart would be that row."""
    found, reports = odd_after(
        tmp_path, monkeypatch, lambda own: np.vstack([own[1:], 1.1 * own[:1]])
    )
    assert (found, reports) == ([], [])


def test_a_task_that_asks_for_no_sums_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"mean": [14.0, 60.0, 5.0], "std": [4.0, 9.0, 2.0]}
    more = {"standardise": known, "target_scale": {"mean": 150.0, "std": 20.0}}
    _, reports = odd_after(tmp_path, monkeypatch, scaled(TEMP, 1.8, 32.0), more)
    assert reports == []


def test_columns_have_moved_where_another_unit_would_show() -> None:
    def table(mean: float, std: float, count: float = 100.0) -> Any:
        return np.array([[count], [count * mean], [count * (std**2 + mean**2)]])

    usual = table(60, 5)
    for other in (table(140, 9), table(60, 0), table(-60, 5), table(600, 50), table(66, 5)):
        assert has_moved(other, usual)
        assert has_moved(usual, other)
    for other in (usual, table(60, 5, 101), table(62, 6), table(140, 9, 5)):
        assert not has_moved(other, usual)
    two = np.concatenate([table(60, 5), table(1, 1)], axis=1)
    gone = np.concatenate([table(60, 5, 20), table(1, 1)], axis=1)
    assert has_moved(gone, two), "most cells of a column are missing"


@dataclass(frozen=True)
class Facts:
    """A report without its vectors."""

    report: Report

    def __getattr__(self, name: str) -> Any:
        return getattr(self.report, name)

    seconds: float = 0.1


WRONG: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda sums: 7, "expected sums by name"),
    (lambda sums: {**sums, "count": [1.0]}, "count"),
    (lambda sums: {**sums, "square": [0.0, 0.0, 0.0]}, "no 80"),
    (lambda sums: {**sums, "sum": [float("inf")] * 3}, "sum"),
    (lambda sums: {**sums, "target": 3}, "target"),
]


@pytest.mark.parametrize(("wrong", "why"), WRONG)
def test_sums_that_no_data_have_are_refused(
    wrong: Callable[[dict[str, Any]], Any], why: str
) -> None:
    one = [80.0, 80.0, 80.0]
    sums: dict[str, Any] = {"count": one, "sum": one, "square": one, "words": "more"}
    sums |= {"target": {"count": 80.0, "sum": 80.0, "square": 80.0}}
    scene, phase = scenes(TASK)(), Phase("train", "all")

    def kept(value: Any) -> Any:
        numbers = {SUMS: value}
        facts = Report({}, examples=64, numbers=numbers, steps=1, loss=0.5)
        return checked_numbers(phase, Facts(facts), scene)[SUMS]

    assert set(kept(sums)) == {"count", "sum", "square", "target"}
    with pytest.raises(DecodeError, match=why):
        kept(wrong(sums))
