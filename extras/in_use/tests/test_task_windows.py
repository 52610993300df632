"""Windows over the rows of a table: what needs `in_use`."""

from __future__ import annotations

from pathlib import Path

from covey.extras.in_use.unlabelled import load_unlabelled
from tests.agent.test_task_columns import written
from tests.agent.test_task_windows import task


def test_windows_to_predict_have_the_number_of_their_last_row(tmp_path: Path) -> None:
    path = written(tmp_path, "device,y,x", *[f"a,{i},{10 + i}" for i in range(5)], name="new.csv")
    samples = load_unlabelled(path, task())
    assert list(samples.rows) == [3, 5]
    assert samples.data.features[0].tolist() == [[10, 11, 12], [0, 1, 2]]
