"""Missing cells, words and targets: from the rows of a file to the inputs of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.agent.data import load
from covey.agent.data.check import load_local
from covey.agent.data.local import prepared
from covey.agent.data.scaling import in_units_of_the_data, standardised_targets
from covey.agent.data.survey import DataSurvey
from covey.shared.errors import DataError, PublicError
from covey.shared.scenario.fleet_statistics import resolved
from covey.shared.scenario.task import Task
from tests.agent.test_task_columns import written

ROWS = ("30,red,70,1", ",blue,80,0", "50,,90,1", "60,green,,0")
HEADER = "age,colour,weight,label"


def task(**keys: Any) -> Task:
    base: dict[str, Any] = {
        "features": (5,),
        "classes": 2,
        "columns": ("age", "colour", "weight"),
        "categories": {"colour": ("red", "green")},
        "impute": {"age": 40.0, "weight": 75.0},
    }
    return Task(**(base | keys))


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_missing_numbers_are_filled_in_and_words_become_inputs(tmp_path: Path, name: str) -> None:
    data = prepared(load(written(tmp_path, HEADER, *ROWS, name=name), task=task()), task())
    assert data.columns is None
    assert data.features.dtype == np.float32
    assert data.features.tolist() == [
        [30, 1, 0, 0, 70],
        [40, 0, 0, 1, 80],  # blue is a word that the task does not know
        [50, 0, 0, 1, 90],  # no colour at all
        [60, 0, 1, 0, 75],
    ]


def test_a_flag_is_an_input_that_is_1_where_the_number_is_missing(tmp_path: Path) -> None:
    flagged = task(features=(6,), flags=("age",))
    data = prepared(load(written(tmp_path, HEADER, *ROWS), task=flagged), flagged)
    assert data.features[:, :2].tolist() == [[30, 0], [40, 1], [50, 0], [60, 0]]
    with pytest.raises(ValidationError, match="flags: \\['colour'\\] are not numbers"):
        task(features=(6,), flags=("colour",))


def test_columns_that_impute_does_not_name_must_be_complete(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER, *ROWS)
    with pytest.raises(DataError, match=r"row 4 \(line 5\), column 'weight': the cell is empty"):
        load(path, task=task(impute={"age": 40.0}))
    with pytest.raises(DataError, match="3 faults"):
        load(path, task=task(impute="none"))


def test_rows_with_missing_cells_are_left_out_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER, *ROWS, "20,red,50,1")
    data = load(path, task=task(impute="drop"))
    assert prepared(data, task(impute="drop")).features.tolist() == [
        [30, 1, 0, 0, 70],
        [20, 1, 0, 0, 50],
    ]
    assert data.targets.tolist() == [1, 1]
    assert data.columns is not None
    assert data.columns.left_out == 3
    with pytest.raises(DataError, match="every sample has a missing cell"):
        load(written(tmp_path, HEADER, *ROWS[1:]), task=task(impute="drop"))


def test_words_of_a_test_part_that_training_rows_lack_are_kept(tmp_path: Path) -> None:
    written(tmp_path, HEADER, "1,red,1,0", "2,red,2,1", name="train.csv")
    written(tmp_path, HEADER, "1,green,1,0", name="test.csv")
    data = prepared(load(tmp_path, task=task()), task())
    assert data.test_features.tolist() == [[1, 0, 1, 0, 1]]


def test_numbers_can_be_words(tmp_path: Path) -> None:
    """Before: a column of codes with a missing cell is one of floats in Parquet, and 3.0 was another word than 3."""
    own = task(columns=("code",), categories={"code": ("3",)}, features=(2,), impute="drop")
    for name in ("data.csv", "data.parquet"):
        path = written(tmp_path, "code,label", "3,0", ",1", "4,1", "3,1", name=name)
        features = prepared(load(path, task=own), own).features
        assert features.tolist() == [[1, 0], [0, 1], [1, 0]]


# -- statistics of the fleet ------------------------------------------------------------------------------------------


def asking(**keys: Any) -> Task:
    found: dict[str, Any] = {
        "impute": "mean",
        "categories": {"colour": 2},
        "standardise": "federated",
    }
    return task(**(found | keys))


def test_an_agent_reports_sums_over_the_cells_that_are_there(tmp_path: Path) -> None:
    data = load(written(tmp_path, HEADER, *ROWS, *ROWS, "1,,1,0"), task=asking())
    numbers = DataSurvey(data, asking()).statistics()
    assert numbers == {
        "count": [7, 7],
        "sum": [281.0, 481.0],
        "square": [2 * (30.0**2 + 50**2 + 60**2) + 1, 2 * (70.0**2 + 80**2 + 90**2) + 1],
        "words": {"colour": ["blue", "green"]},  # as many as the fleet has room for
    }


def test_a_word_that_occurs_once_is_not_sent(tmp_path: Path) -> None:
    rows = [f"1,{'lilac' if i < 1 else 'red'},1,0" for i in range(20)]
    data = load(written(tmp_path, HEADER, *rows), task=asking())
    assert DataSurvey(data, asking()).statistics()["words"] == {"colour": ["red"]}


def test_words_that_hardly_repeat_are_not_sent_whatever_the_task_asks(tmp_path: Path) -> None:
    rows = [f"1,person {i},1,0" for i in range(20)]
    data = load(written(tmp_path, HEADER, *rows, "1,red,1,0", "1,red,1,1"), task=asking())
    assert DataSurvey(data, asking()).statistics()["words"] == {"colour": []}


def test_quantiles_stand_for_tenths_and_few_values_for_their_median_alone(tmp_path: Path) -> None:
    median = asking(impute="median", standardise="none")
    few = load(written(tmp_path, HEADER, *ROWS), task=median)
    numbers = DataSurvey(few, median).statistics()
    assert numbers["quantiles"] == [[50.0], [80.0]]
    assert "sum" not in numbers
    rows = [f"{i},red,,{i % 2}" for i in range(101)]
    many = load(written(tmp_path, HEADER, *rows), task=median)
    numbers = DataSurvey(many, median).statistics()
    assert numbers["count"] == [101, 0]
    assert numbers["quantiles"][0] == pytest.approx([5, 15, 25, 35, 45, 55, 65, 75, 85, 95])
    assert numbers["quantiles"][1] == []


def test_words_that_are_too_long_or_unprintable_are_not_sent(tmp_path: Path) -> None:
    rows = ["1,red,1,0", f"1,{'x' * 65},1,1", "1,a\x1b[1m,1,1"] * 2
    data = load(written(tmp_path, HEADER, *rows), task=asking())
    assert DataSurvey(data, asking()).statistics()["words"] == {"colour": ["red"]}


def test_a_resolved_task_has_values_in_place_of_questions() -> None:
    statistics = {
        "mean": [1.0, 0.0, 0.0, 0.0, 2.0],
        "std": [2.0, 1.0, 1.0, 1.0, 3.0],
        "impute": {"age": 40.0, "weight": 75.0},
        "categories": {"colour": ["red"]},
    }
    found = resolved(asking(), statistics)
    assert found.asks_fleet_for == ()
    assert found.features == (5,)  # room for two words, and one input for all others
    assert found.table_columns[1].words == ("red",)
    assert resolved(found, None) is found
    assert Task.model_validate(found.for_agents()) == found


@pytest.mark.parametrize(
    ("statistics", "words"),
    [
        ({}, "no statistics for standardise, impute, categories"),
        ({"mean": [0.0], "std": [1.0]}, "1 means"),
        ({"mean": "x", "std": "y"}, "do not fit the task"),
        ({"impute": {"height": 1.0}}, "height"),
        ({"impute": {"age": float("inf")}}, "impute"),
        ({"categories": {"colour": ["red", "green", "blue"]}}, "room for 2"),
        ({"categories": {"age": ["1"]}}, "name 'age'"),
        ({"categories": ["red"]}, "no words by column"),
        ({"target": {"mean": 0.0, "std": 0.0}}, "target_scale"),
    ],
)
def test_statistics_that_do_not_fit_the_task_are_refused_by_the_agent(
    statistics: dict[str, Any], words: str
) -> None:
    with pytest.raises(PublicError, match=words):
        resolved(asking(), statistics)


def test_cells_without_a_value_for_them_are_refused(tmp_path: Path) -> None:
    data = load(written(tmp_path, HEADER, *ROWS), task=asking())
    with pytest.raises(PublicError, match="missing cells in column 'age'"):
        prepared(data, asking())


# -- the target -------------------------------------------------------------------------------------------------------


def test_a_target_is_standardised_for_training_and_brought_back(tmp_path: Path) -> None:
    own = Task(features=(1,), target_scale={"mean": 20.0, "std": 4.0})
    values = np.array([20, 24, 12], np.float32)
    inside = standardised_targets(values, own)
    assert inside.tolist() == [0, 1, -2]
    assert in_units_of_the_data(inside[:, None], own).tolist() == [[20], [24], [12]]
    plain = replace_scale(own)
    assert standardised_targets(values, plain) is values
    path = written(tmp_path, "a,y", "1,20.5", "2,24")
    numbers = DataSurvey(load_local(path, task=own), asking_target()).statistics()
    assert numbers["target"]["count"] == 1


def replace_scale(own: Task) -> Task:
    return own.model_copy(update={"target_scale": "none"})


def asking_target() -> Task:
    return Task(features=(1,), target_scale="federated")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"categories": {"age": 2, "size": 3}}, r"categories: \['size'\] are not in columns"),
        ({"categories": {"colour": ()}}, "no values"),
        ({"categories": {"colour": ("red", "red")}}, "occur more than once"),
        ({"categories": {"colour": 0}}, "greater than or equal to 1"),
        ({"categories": {"colour": {"values": ["a", "b"], "room": 1}}}, "raise room"),
        ({"impute": {"size": 1.0}}, r"impute: \['size'\] are not in columns"),
        ({"target_scale": "federated"}, "for a regression"),
        ({"columns": (), "categories": {}, "impute": "mean"}, "impute works on named columns"),
        ({"features": (4,)}, r"set features to \[5\]"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        task(**keys)


def test_one_row_keeps_its_inputs_whatever_the_other_rows_are(tmp_path: Path) -> None:
    """The indices of words depend on a file; the inputs must not."""
    one = load(written(tmp_path, HEADER, *ROWS), task=task())
    other = load(written(tmp_path, HEADER, *reversed(ROWS), name="b.csv"), task=task())
    backwards = replace(other, features=other.features[::-1])
    assert np.array_equal(prepared(one, task()).features, prepared(backwards, task()).features)


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"impute": "drop"}, "nothing replaces 'age'"), ({"optional": ("agee",)}, "agee")],
)
def test_a_column_may_be_lacking_only_if_something_replaces_it(
    keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        task(**({"optional": ("age",)} | keys))
