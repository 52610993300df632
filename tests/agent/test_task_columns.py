"""A table whose feature columns the task names: matched by name, and refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.agent.data import load
from covey.agent.data.check import load_local
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task

COLUMNS = ("age", "weight")


def task(**keys: Any) -> Task:
    base: dict[str, Any] = {"features": (2,), "classes": ("no", "yes"), "columns": COLUMNS}
    return Task(**(base | keys))


def written(folder: Path, header: str, *rows: str, name: str = "data.csv") -> Path:
    """A CSV table, or the same as Parquet where the name ends in .parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n")
    if path.suffix == ".parquet":
        from pyarrow import csv, parquet

        parquet.write_table(csv.read_csv(path), path)
    return path


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_columns_in_another_order_are_matched_by_name(tmp_path: Path, name: str) -> None:
    one = written(tmp_path / "a", "age,weight,label", "30,70,yes", "40,80,no", name=name)
    other = written(tmp_path / "b", "label,weight,age", "yes,70,30", "no,80,40", name=name)
    data = load_local(one, task=task())
    swapped = load_local(other, task=task())
    assert np.array_equal(data.features, swapped.features)
    assert np.array_equal(data.targets, swapped.targets)
    assert load(one, task=task()).features.tolist() == [[30, 70], [40, 80]]


def test_missing_and_unknown_columns_are_named(tmp_path: Path) -> None:
    short = written(tmp_path, "age,label", "30,yes", "40,no")
    with pytest.raises(DataError, match=r"no column 'weight', which the task names") as caught:
        load(short, task=task())
    assert "'weight'" in caught.value.public  # the task itself names it
    wide = written(tmp_path, "age,weight,secret,label", "30,70,1,yes", "40,80,2,no")
    with pytest.raises(DataError, match=r"column 'secret' not in task\.columns") as caught:
        load(wide, task=task())
    assert caught.value.public.startswith("the table has 1 unknown column")
    assert "secret" not in caught.value.public


@pytest.mark.parametrize("ignore", [("id", "note"), ("*",)])
def test_columns_to_ignore_may_hold_anything(tmp_path: Path, ignore: tuple[str, ...]) -> None:
    path = written(tmp_path, "id,age,note,weight,label", "x7,30,,70,yes", "x8,40,?,80,no")
    data = load(path, task=task(ignore=ignore))
    assert data.features.tolist() == [[30, 70], [40, 80]]


def test_ignored_columns_without_task_columns_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "id,age,weight,label", "x7,30,70,yes", "x8,40,80,no")
    data = load(path, task=Task(features=(2,), classes=("no", "yes"), ignore=("id",)))
    assert data.features.tolist() == [[30, 70], [40, 80]]


def test_the_label_is_the_devices_choice_or_the_tasks_target_or_the_only_column_left(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, "age,sick,weight", "30,1,70", "40,0,80")
    assert load(path, task=task()).targets.tolist() == [1, 0]
    two = written(tmp_path, "age,sick,ill,weight", "30,1,0,70", "40,0,1,80")
    by_task = task(target="sick", ignore=("ill",))
    assert load(two, task=by_task).targets.tolist() == [1, 0]
    by_device = task(ignore=("sick",))
    assert load(two, "ill", task=by_device).targets.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"no label column: set task\.target"):
        load(two, task=task())
    with pytest.raises(DataError, match="no label column 'gone'"):
        load(two, task=task(target="gone"))


def test_train_and_test_tables_may_have_their_columns_in_different_orders(tmp_path: Path) -> None:
    written(tmp_path, "age,weight,label", "30,70,yes", "40,80,no", name="train.csv")
    written(tmp_path, "weight,label,age", "71,yes,31", name="test.csv")
    data = load(tmp_path, task=task())
    assert data.test_features.tolist() == [[31, 71]]


def test_data_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((4, 2)), y=np.arange(4) % 2)
    with pytest.raises(DataError, match="give a CSV or Parquet file"):
        load_local(path, task=task())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"features": (3,)}, r"the columns give 2 inputs; set features to \[2\]"),
        ({"columns": ("age", "age")}, "occur more than once"),
        ({"target": "age"}, r"target: \['age'\] are in columns too"),
        ({"ignore": ("age",)}, r"ignore: \['age'\] are in columns too"),
        ({"scale": 2.0}, "one factor for all columns"),
        ({"columns": ("age\x1b", "weight")}, "control characters"),
        ({"columns": ("", "weight")}, "at least 1 character"),
    ],
)
def test_a_task_whose_columns_do_not_go_together_is_refused(
    keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        task(**keys)


def test_a_task_without_columns_is_sent_as_before_there_were_any() -> None:
    plain = Task(features=(2,), classes=2)
    assert set(plain.for_agents()) == {"features", "classes", "model", "scale", "standardise"}
    assert task().for_agents()["columns"] == ["age", "weight"]
    assert task().digest != task(columns=("weight", "age")).digest


# -- refused cells ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_one_message_names_the_first_refused_cells_and_counts_all(
    tmp_path: Path, name: str
) -> None:
    rows = [f"{i},{'' if i % 2 else i},{i % 2}" for i in range(30)]
    path = written(tmp_path, "age,weight,label", *rows, name=name)
    with pytest.raises(DataError) as caught:
        load(path)
    text = str(caught.value)
    assert "15 faults, the first 10:" in text
    assert text.count("column 'weight': the cell is empty") == 10
    assert "row 2" in text
    assert "row 20" in text
    assert "row 22" not in text
    assert "in all: 15 in column 'weight'" in text
    assert caught.value.public == "15 faults in the table, the first: row 2, column 2 is empty"


def test_faults_of_all_kinds_are_named_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,label", "1,oops,x", "2", "nan,4,", "5,6,y")
    with pytest.raises(DataError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("4 faults:")
    assert [line.split(":")[0].strip() for line in lines[1:5]] == [
        "row 1 (line 2), column 'b'",
        "row 2 (line 3)",
        "row 3 (line 4)",
        "row 3 (line 4), column 'a'",
    ]
    assert lines[5].strip().startswith("correct words among numbers")
    assert lines[6].strip() == "correct the row"
    assert "oops" not in caught.value.public


def test_a_long_cell_is_cut_in_the_message(tmp_path: Path) -> None:
    path = written(tmp_path, "a,label", "x" * 500 + ",1", "2,0")
    with pytest.raises(DataError) as caught:
        load(path)
    assert len(str(caught.value)) < 400


# -- everything in one message -------------------------------------------------------------------------------


def test_columns_cells_and_labels_are_refused_in_one_message(tmp_path: Path) -> None:
    path = written(tmp_path, "age,heigth,mass,label", "30,1,2,yes", "old,1,2,yes", "40,3,4,perhaps")
    with pytest.raises(DataError) as raised:
        load(path, task=task(classes=("no", "yes")))
    text = str(raised.value)
    assert "3 kinds of faults" in text
    assert "no column 'weight', which the task names" in text
    assert "columns 'heigth', 'mass' not in task.columns" in text
    assert "row 2 (line 3), column 'age': 'old' is not a number" in text
    assert "row 3, column 'label': 'perhaps' is not a class of the task" in text
    assert text.count(str(path)) == 1
    public = raised.value.public
    assert "2 unknown columns" in public
    assert not any(word in public for word in ("old", "perhaps", "mass"))


def test_labels_without_other_faults_are_compared_later(tmp_path: Path) -> None:
    path = written(tmp_path, "age,weight,label", "30,70,yes", "40,80,perhaps", "50,90,never")
    with pytest.raises(DataError, match="2 classes are unknown to the task") as raised:
        load_local(path, task=task(classes=("no", "yes")))
    assert "'never' (1 sample, the first in row 3)" in str(raised.value)
    assert "'perhaps'" in str(raised.value)


def test_a_table_without_any_column_of_the_task_names_all_of_them(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,label", "30,70,yes", "40,80,no")
    with pytest.raises(DataError, match="2 kinds of faults") as raised:
        load(path, task=task())
    assert "no columns 'age', 'weight'" in str(raised.value)
    assert "columns 'a', 'b' not in task.columns" in str(raised.value)


def test_faults_of_a_training_and_a_test_table_are_named_together(tmp_path: Path) -> None:
    train = written(tmp_path, "age,weight,label", "30,x,yes", "40,80,no", name="train.csv")
    test = written(tmp_path, "age,weight,label", "30,70,yes", "?,80,no", name="test.csv")
    with pytest.raises(DataError) as raised:
        load(tmp_path, task=task())
    assert f"{train}: row 1 (line 2), column 'weight': 'x' is not a number" in str(raised.value)
    assert f"{test}: row 2 (line 3), column 'age': '?' is not a number" in str(raised.value)
    assert "in the test table: row 2, column 1" in raised.value.public
    written(tmp_path, "age,weight,label", "30,70,yes", "40,80,no", name="test.csv")
    with pytest.raises(DataError) as alone:
        load(tmp_path, task=task())
    assert "test.csv" not in str(alone.value)
