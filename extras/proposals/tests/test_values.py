"""The value of a cell: what needs `proposals`."""

from __future__ import annotations

from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from covey.agent.data import load
from covey.extras.proposals.describe import describe_table
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task


def parquet(folder: Path, **columns: Any) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = folder / "data.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_every_plain_type_of_parquet_has_a_kind(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    days = [date(2025, 1, day) for day in range(1, 25)]
    path = parquet(
        tmp_path,
        flag=pa.array([day.day % 2 == 0 for day in days]),
        price=pa.array([Decimal(f"{day.day}.{day.day:02}") for day in days], pa.decimal128(10, 2)),
        day=pa.array(days),
        clock=pa.array([time(13, day.day) for day in days], pa.time64("us")),
        took=pa.array([timedelta(seconds=day.day / 2) for day in days]),
        raw=pa.array([b"\x00\x01"] * 24),
        none=pa.nulls(24),
        y=pa.array([day.day % 2 == 0 for day in days]),
    )
    kinds = {column.name: column.kind for column in describe_table(path).columns}
    assert kinds == {
        "flag": "boolean",
        "price": "number",
        "day": "time",
        "clock": "whole",
        "took": "number",
        "raw": "bytes",
        "none": "empty",
        "y": "boolean",
    }
    task = Task(
        features=(4,),
        columns=("flag", "price", "clock", "took"),
        target="y",
        classes=("FALSE", "TRUE"),
        ignore=("day", "raw", "none"),
    )
    data = load(path, task=task)
    assert data.features[:2].tolist() == [[0, 1.01, 46_860, 0.5], [1, 2.02, 46_920, 1]]
    assert data.targets[:2].tolist() == [0, 1]


def test_times_of_nanoseconds_and_beyond_the_calendar_are_read_or_named(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    stamps = [1_735_689_600 * 10**9 + 1 + day * 86_400 * 10**9 for day in range(24)]
    far = [2**62 if day == 3 else 1_735_689_600 * 10**6 + day for day in range(24)]
    path = parquet(
        tmp_path,
        at=pa.array(stamps).cast(pa.timestamp("ns")),
        zone=pa.array(stamps).cast(pa.timestamp("ns", "UTC")),
        clock=pa.array([1 + day for day in range(24)], pa.time64("ns")),
        took=pa.array([10**9 * day + 1 for day in range(24)], pa.duration("ns")),
        far=pa.array(far).cast(pa.timestamp("us")),
        y=pa.array([day % 2 for day in range(24)]),
    )
    columns = {column.name: column for column in describe_table(path).columns}
    assert [columns[name].kind for name in ("at", "zone", "took")] == ["time", "time", "whole"]
    assert columns["far"].strange == ("a time beyond the year 9999",)
    task = Task(
        features=(4,), columns=("far",), times=("far",), target="y", classes=2, ignore=("*",)
    )
    with pytest.raises(DataError, match="row 4, column 'far'"):
        load(path, task=task)
