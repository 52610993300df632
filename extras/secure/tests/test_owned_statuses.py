"""A device answers a made-up task with the same status for two tables that differ in one row, under any demand of its owner: what needs `secure`."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.attacks.test_what_leaves import DATA, NOISY, VALUES, Device


def without_nine_rows(folder: Path) -> Path:
    """The patients' table, in which nine rows are none of the task."""
    rows = [
        ["old", *row[1:]] if 0 < at < 10 else row for at, row in enumerate(csv.reader(DATA.open()))
    ]
    folder.mkdir()
    with (folder / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "data.csv"


@pytest.mark.parametrize("limit", ["samples=hidden", "labels=hidden", "privacy={local_epsilon: 8}"])
def test_a_report_counts_the_rows_of_the_file_or_one(tmp_path: Path, limit: str) -> None:
    tables = (DATA, without_nine_rows(tmp_path / "other"))
    reports = [Device(tmp_path, limit, data).report(phase="evaluate") for data in tables]
    assert [one.failure for one in reports] == [None, None]
    rows = len(DATA.read_text().splitlines()) - 1
    expected = 1 if limit == "samples=hidden" else rows - round(0.2 * rows)
    assert [one.examples for one in reports] == [expected, expected]
    assert limit == "labels=hidden" or [one.numbers for one in reports] == [{}, {}]


def test_the_account_of_dp_sgd_is_of_all_rows_of_the_file(tmp_path: Path) -> None:
    """A report has what was spent, and of fewer rows that would be more."""
    pytest.importorskip("opacus")
    spent: list[float] = []
    for data in (DATA, without_nine_rows(tmp_path / "other")):
        folder = tmp_path / str(len(spent))
        folder.mkdir()
        device = Device(folder, "privacy={local_epsilon: 8}", data, learner="torch")
        training = {"epochs": 2, "batch": 10, "lr": 0.05}
        report = device.report(privacy=NOISY, training=training, sizes={"model": VALUES})
        assert report.failure is None, report.failure
        spent.append(float(report.numbers["epsilon"]))
    assert spent[0] == spent[1] > 0
