"""Windows over the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.agent.data import load, with_test
from covey.agent.data.local import prepared
from covey.agent.data.windows import earlier_and_latest
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task
from tests.agent.test_task_columns import written


def task(rows: int = 3, **keys: Any) -> Task:
    base: dict[str, Any] = {
        "features": (2, rows),
        "classes": ("idle", "run"),
        "columns": ("x", "y"),
        "target": "state",
        "window": {"rows": rows, "stride": 2, "group": "device"},
    }
    return Task(**(base | keys))


HEADER = "device,x,y,state"
ROWS = [
    "a,0,10,idle",
    "b,100,0,run",  # another series in between
    "a,1,11,run",
    "a,2,12,idle",
    "a,3,13,idle",
    "a,4,14,run",
    "b,101,0,run",
    "b,102,0,idle",
    "a,5,15,run",  # fills no window
]


def test_rows_of_one_series_become_windows_with_channels_first(tmp_path: Path) -> None:
    data = load(written(tmp_path, HEADER, *ROWS), task=task())
    assert data.features.tolist() == [
        [[0, 1, 2], [10, 11, 12]],
        [[2, 3, 4], [12, 13, 14]],
        [[100, 101, 102], [0, 0, 0]],
    ]
    assert data.groups is not None
    assert data.groups.tolist() == ["a", "a", "b"]
    assert data.labels == ("idle", "run")
    assert data.targets.tolist() == [0, 1, 0]  # of the last rows


def test_the_label_may_be_the_most_frequent_one(tmp_path: Path) -> None:
    own = task(window={"rows": 3, "stride": 2, "group": "device", "label": "majority"})
    data = load(written(tmp_path, HEADER, *ROWS), task=own)
    assert [data.labels[target] for target in data.targets] == ["idle", "idle", "run"]
    tied = task(2, window={"rows": 2, "group": "device", "label": "majority"})
    data = load(written(tmp_path, HEADER, *ROWS), task=tied)
    assert [data.labels[target] for target in data.targets][:2] == ["run", "idle"]  # the latest


def test_without_a_group_the_file_is_one_series_and_windows_do_not_overlap(tmp_path: Path) -> None:
    own = task(window={"rows": 3}, ignore=("device",))
    data = load(written(tmp_path, HEADER, *ROWS), task=own)
    assert data.features[:, 0].tolist() == [[0, 100, 1], [2, 3, 4], [101, 102, 5]]


def test_missing_cells_and_words_of_windows_become_inputs(tmp_path: Path) -> None:
    own = task(
        features=(4, 3),
        columns=("x", "mode"),
        categories={"mode": ("on", "off")},
        impute={"x": 7.0},
        window={"rows": 3},
        ignore=("*",),
    )
    path = written(tmp_path, "x,mode,state", "1,on,idle", ",off,run", "3,,run", *["4,on,run"] * 6)
    data = prepared(load(path, task=own), own)
    assert data.features[0].tolist() == [[1, 7, 3], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    dropped = load(path, task=own.model_copy(update={"impute": "drop"}))
    assert dropped.columns is not None
    assert (len(dropped.targets), dropped.columns.left_out) == (2, 1)


def test_the_latest_windows_test_and_no_row_is_in_both_parts(tmp_path: Path) -> None:
    own = task(window={"rows": 3, "stride": 1, "group": "device"})
    rows = [f"{device},{i},0,{('idle', 'run')[i % 2]}" for device in "ab" for i in range(30)]
    data = with_test(load(written(tmp_path, HEADER, *rows), task=own))
    trained = data.features[:, 0].max()
    tested = data.test_features[:, 0].min()
    assert trained < tested
    assert len(data.test_targets) == 12


def test_series_that_are_too_short_to_be_cut_train() -> None:
    train, test = earlier_and_latest(np.array(["a"] * 9 + ["b"] * 2), 1, 0.2)
    assert (train.tolist(), test.tolist()) == ([*range(6), 9, 10], [7, 8])
    train, test = earlier_and_latest(np.array(["a", "b"]), 5, 0.2)
    assert (train.tolist(), test.tolist()) == ([0], [1])


@pytest.mark.parametrize("rows", [5, 6, 7])
def test_a_table_whose_windows_all_share_rows_with_the_tested_ones_is_refused(
    tmp_path: Path, rows: int
) -> None:
    lines = [f"a,{i},0,{('idle', 'run')[i % 2]}" for i in range(rows)]
    own = task(4, window={"rows": 4, "stride": 1, "group": "device"})
    with pytest.raises(DataError, match=f"{rows - 3} windows, and all of them share rows"):
        with_test(load(written(tmp_path, HEADER, *lines), task=own))


def test_no_row_of_a_short_table_both_trains_and_tests() -> None:
    """Of eight rows the first window of four trains, and the last one tests."""
    groups = np.array(["a"] * 5)
    train, test = earlier_and_latest(groups, 3, 0.2)
    assert (train.tolist(), test.tolist()) == ([0], [4])


def test_a_table_without_a_window_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER, *ROWS)
    with pytest.raises(DataError, match=r"the longest series has 6 rows, task\.window\.rows is 9"):
        load(path, task=task(9))
    with pytest.raises(DataError, match="no column 'device'"):
        load(written(tmp_path, "x,y,state", "1,2,idle", "1,2,run"), task=task())
    nameless = [*ROWS, ",1,1,idle"]
    with pytest.raises(DataError, match="column 'device': the cell is empty"):
        load(written(tmp_path, HEADER, *nameless), task=task())


def test_windows_that_take_too_much_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"a,{i},0,idle" for i in range(500)]
    monkeypatch.setenv("COVEY_MAX_DATA_BYTES", "100000")
    own = task(200, window={"rows": 200, "stride": 1, "group": "device"})
    with pytest.raises(DataError, match="unpacks to more than 100000 bytes"):
        load(written(tmp_path, HEADER, *rows), task=own)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"features": (2,)}, r"set features to \[2, 3\]"),
        ({"window": {"rows": 1}}, "greater than or equal to 2"),
        ({"window": {"rows": 3, "group": "x"}}, r"window.group: \['x'\] are in columns too"),
        ({"classes": None, "window": {"rows": 3, "label": "majority"}}, "majority is for classes"),
        ({"columns": ()}, "window works on named columns"),
    ],
)
def test_a_window_that_does_not_go_with_the_task_is_refused(
    keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        task(**keys)


# -- a whole run ------------------------------------------------------------------------------------------------------
