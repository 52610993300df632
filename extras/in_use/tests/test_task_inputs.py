"""Missing cells, words and targets: what needs `in_use`."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.agent.data import load
from covey.agent.data.local import prepared
from covey.agent.data.survey import DataSurvey
from covey.extras.in_use.unlabelled import load_unlabelled
from covey.shared.errors import DataError
from tests.agent.test_task_columns import written
from tests.agent.test_task_inputs import HEADER, ROWS, task


def test_rows_to_predict_need_no_label_and_keep_their_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "weight,colour,age", "70,red,30", "80,blue,", name="new.csv")
    samples = load_unlabelled(path, task())
    assert prepared(samples.data, task()).features.tolist() == [
        [30, 1, 0, 0, 70],
        [40, 0, 0, 1, 80],
    ]
    assert list(samples.rows) == [1, 2]
    path = written(tmp_path, HEADER, *ROWS, name="new.csv")
    assert list(load_unlabelled(path, task(impute="drop", target="label")).rows) == [1]


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_a_column_that_a_device_may_lack_counts_as_missing_cells(tmp_path: Path, name: str) -> None:
    """Numbers get the value of the task, a word the input for other words; other columns are still required."""
    own = task(optional=("age", "colour"))
    path = written(tmp_path, "weight,label", "70,1", "80,0", "90,1", name=name)
    data = load(path, task=own)
    expected = [[40, 0, 0, 1, weight] for weight in (70, 80, 90)]
    assert prepared(data, own).features.tolist() == expected
    new = load_unlabelled(written(tmp_path, "weight", "70", "80", name=f"new-{name}"), own)
    assert len(new.rows) == 2
    sent = DataSurvey(data, task(optional=("age",), impute="mean")).statistics()
    assert sent["count"] == [0, 3]
    with pytest.raises(DataError, match="no column 'colour'"):
        load(path, task=task(optional=("age",)))
