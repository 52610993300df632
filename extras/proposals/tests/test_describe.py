"""A table in figures, before a task exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.extras.proposals.describe import MAX_DISTINCT, describe_table
from covey.shared.errors import DataError
from covey.shared.storage import json_text
from tests.agent.test_task_columns import written

ROWS = [
    f"id-{i},{i % 3},{'' if i % 4 == 0 else i / 8},{('red', 'blue')[i % 2]},2026-01-{1 + i:02},"
    f"{1767268800 + i},,{('no', 'yes')[i % 2]}"
    for i in range(24)
]
HEADER = "id,rooms,size,colour,day,timestamp,note,outcome"


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_columns_have_kinds_and_figures(tmp_path: Path, name: str) -> None:
    found = describe_table(written(tmp_path, HEADER, *ROWS, name=name))
    assert found.rows == 24
    kinds = {column.name: column.kind for column in found.columns}
    assert kinds == {
        "id": "word",
        "rooms": "whole",
        "size": "number",
        "colour": "word",
        "day": "time",
        "timestamp": "time",
        "note": "empty",
        "outcome": "word",
    }
    size = found.column("size")
    assert (size.missing, size.distinct, size.smallest, size.largest) == (6, 18, 1 / 8, 23 / 8)
    assert found.column("rooms").values == ("0", "1", "2")
    assert found.column("note").missing == 24
    keys = [column.name for column in found.columns if column.is_key]
    assert keys == ["id"]
    assert found.targets == ("outcome", "rooms", "colour")
    json_text.dumps(found.to_json())


def test_a_usual_name_comes_first_among_the_targets(tmp_path: Path) -> None:
    found = describe_table(written(tmp_path, "Class,a,b", "x,1,2", "y,2,4", "x,3,8"))
    assert found.targets == ("Class", "b")


def test_a_column_of_many_values_is_counted_up_to_a_limit(tmp_path: Path) -> None:
    rows = [f"{i},{i % 2}" for i in range(MAX_DISTINCT + 50)]
    found = describe_table(written(tmp_path, "a,label", *rows))
    assert found.column("a").distinct == MAX_DISTINCT + 1
    assert len(found.column("a").values) == 50


def test_rows_of_another_length_are_counted_and_left_out(tmp_path: Path) -> None:
    found = describe_table(written(tmp_path, "a,b", "1,2", "3", "4,5"))
    assert (found.rows, found.faulty_rows) == (2, 1)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        describe_table(written(tmp_path, ""))
