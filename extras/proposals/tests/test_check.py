"""What `agent check` finds, and what would leave the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.agent.data import load
from covey.agent.data.check import load_local
from covey.agent.data.dataset import dataset
from covey.extras.proposals.check_report import show
from covey.extras.proposals.findings import ClassCount, inspect
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task
from tests.agent.test_task_columns import task as of_columns
from tests.agent.test_task_columns import written as with_columns

ROWS = "\n".join(f"{i},{i * 2},{'cat' if i % 3 else 'dog'}" for i in range(30))
TASK = Task(features=(2,), classes=("dog", "cat"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "pets.csv"
    path.write_text(f"a,b,label\n{ROWS}\n")
    return path


def test_local_data_is_loaded_fitted_and_given_a_test_part(table: Path) -> None:
    data = load_local(table, task=TASK)
    assert (len(data.targets), len(data.test_targets)) == (24, 6)
    assert data.labels == ("dog", "cat")
    assert np.bincount([*data.targets, *data.test_targets]).tolist() == [10, 20]
    assert np.array_equal(data.features, load_local(table, task=TASK).features)
    assert not np.array_equal(data.features, load_local(table, task=TASK, seed=1).features)


def test_local_data_without_a_task_is_loaded_as_it_is(table: Path) -> None:
    assert load_local(table, label="label").labels == ("cat", "dog")


def test_local_data_that_does_not_fit_raises(table: Path) -> None:
    with pytest.raises(DataError, match="2 feature columns instead of 3"):
        load_local(table, task=Task(features=(3,), classes=("dog", "cat")))


def test_a_finding_counts_classes_and_discloses_no_samples(table: Path) -> None:
    finding = inspect(load(table), TASK)
    assert finding.problems == ()
    assert finding.classes == (ClassCount("dog", 10, 0), ClassCount("cat", 20, 0))
    assert (finding.samples, finding.test_samples, finding.shape) == (30, 0, (2,))
    assert finding.value_range == (0.0, 58.0)
    assert finding.disclosure.to_json() == {
        "samples": 30,
        "test_samples": 0,
        "labels": ["dog", "cat"],
        "problem": None,
    }
    assert any("no test part" in note for note in finding.notes)


def test_a_misfit_is_a_problem_in_the_finding_and_is_disclosed(table: Path) -> None:
    finding = inspect(load(table), Task(features=(2,), classes=("dog", "bird")))
    assert len(finding.problems) == 1
    assert "class 'cat' is unknown" in finding.problems[0]
    public = "row 2: its class is unknown to the task; its classes are dog, bird"
    assert finding.disclosure.to_json() == {
        "samples": 0,
        "test_samples": 0,
        "labels": [],
        "problem": public,
    }
    assert finding.classes == (ClassCount("cat", 20, 0), ClassCount("dog", 10, 0))


def test_without_a_task_the_data_is_described_in_its_own_words(table: Path) -> None:
    assert inspect(load_local(table)).samples == 24
    assert {one.name for one in inspect(load_local(table)).classes} == {"cat", "dog"}


def test_notes_name_rare_classes_and_large_features(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("a,label\n1,0\n4000,0\n2,0\n")
    notes = " ".join(inspect(load(path), Task(features=(1,), classes=2)).notes)
    assert "class '0' has only 3 training samples" in notes
    assert "one class only ('0')" in notes
    assert "features reach 4000" in notes


def test_the_largest_feature_of_small_integers_is_found_below_zero() -> None:
    # |-128| does not fit into int8: taken there, it stays -128
    features = np.array([[-128], [0], [1], [2]], np.int8)
    data = dataset(features, np.array([0, 1, 0, 1]), source="sensor")
    assert data.features.dtype == np.int8
    finding = inspect(data, Task(features=(1,), classes=2))
    assert any("features reach 128" in note for note in finding.notes)


def test_many_whole_numbers_are_amounts_unless_a_task_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "pm.csv"
    path.write_text("a,y\n" + "".join(f"{i % 7},{i % 126}\n" for i in range(600)))
    assert inspect(load(path)).classes == ()
    finding = inspect(load(path), Task(features=(1,), classes=126))
    assert len(finding.classes) == 126
    [few] = [note for note in finding.notes if "fewer than 10 training samples" in note]
    assert few.startswith("126 classes have")
    assert few.endswith("and 118 more")


def test_a_table_of_words_and_missing_cells_is_described_without_a_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pm.csv"
    rows = [f"{('NW', 'SE')[i % 2]},{'NA' if i % 3 else i},{i * 0.5}\n" for i in range(60)]
    path.write_text("".join(["wind,rain,pm\n", *rows]))
    assert show(str(path), None, None, as_json=False)
    printed = capsys.readouterr().out
    assert "words in wind (" in printed
    assert "missing cells: 'rain'" in printed
    with pytest.raises(DataError, match="'NA' stands for a missing cell"):
        load(path)


def test_a_check_shows_which_rows_will_test(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(str(table), None, None, as_json=False)
    assert "no test part: 20 % of the samples, drawn on a seed" in capsys.readouterr().out


def test_a_regression_has_no_classes(tmp_path: Path) -> None:
    path = tmp_path / "line.csv"
    path.write_text("a,y\n1,2\n3,4\n")
    assert inspect(load(path), Task(features=(1,))).classes == ()


def test_a_finding_of_a_table_whose_columns_a_task_names_shows_its_range(tmp_path: Path) -> None:
    path = with_columns(tmp_path, "weight,label,age", "70,yes,30", "80,no,40")
    finding = inspect(load(path, task=of_columns()), of_columns())
    assert finding.value_range == (30.0, 80.0)
    assert not finding.problems
