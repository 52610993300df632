"""What the owner of data reads about it: notes on cells, words, times and windows."""

from __future__ import annotations

from pathlib import Path

from covey.agent.data import load
from covey.agent.data.check import read_local
from covey.extras.proposals.findings import inspect, note_on_testing
from covey.shared.scenario.task import Task
from tests.agent import test_pictures as pictures
from tests.agent import test_task_times as times
from tests.agent import test_task_windows as windows
from tests.agent.test_task_columns import written
from tests.agent.test_task_inputs import HEADER, ROWS, asking, task


def test_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    data = load(written(tmp_path, HEADER, *ROWS, "20,red,50,1"), task=task(impute="drop"))
    notes = inspect(data, task(impute="drop")).notes
    assert any("3 samples with missing cells" in note for note in notes)


def test_a_check_shows_missing_cells_unknown_words_and_what_would_be_sent(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER, *ROWS)
    finding = inspect(load(path, task=task()), task())
    assert finding.shape == (5,)
    assert finding.value_range == (30.0, 90.0)
    assert "missing cells: 'age' 1, 'colour' 1, 'weight' 1 (task.impute: values of the task)" in (
        finding.notes
    )
    assert any("'colour' that the task does not know: 'blue' 1" in note for note in finding.notes)
    asks = asking(impute="median")
    path = written(tmp_path, HEADER, *ROWS, *ROWS)
    sent = inspect(load(path, task=asks), asks).notes
    assert any(
        note.startswith("before round 0 this device sends: count per column of numbers")
        and "the words 'blue', 'green' of column 'colour'" in note
        for note in sent
    )


def test_a_column_that_a_device_may_lack_counts_as_missing_cells(tmp_path: Path) -> None:
    own = task(optional=("age", "colour"))
    data = load(written(tmp_path, "weight,label", "70,1", "80,0", "90,1"), task=own)
    assert "missing cells: 'age' 3, 'colour' 3 (task.impute: values of the task)" in (
        inspect(data, own).notes
    )


def test_words_that_stay_are_counted_and_not_named(tmp_path: Path) -> None:
    rows = [f"1,person {i},1,0" for i in range(20)]
    data = load(written(tmp_path, HEADER, *rows, "1,red,1,0", "1,red,1,1"), task=asking())
    notes = "\n".join(inspect(data, asking()).notes)
    assert "the words of column 'colour' stay here: 21 different words in 22 rows" in notes
    assert "person 3" not in notes


def test_a_note_names_the_rows_that_will_test(tmp_path: Path) -> None:
    path = times.in_no_order(tmp_path)
    assert "the latest rows" in note_on_testing(load(path, task=times.task(impute="drop")))


def test_a_note_names_the_windows_that_will_test(tmp_path: Path) -> None:
    own = windows.task(window={"rows": 3, "stride": 1, "group": "device"})
    rows = [f"{device},{i},0,{('idle', 'run')[i % 2]}" for device in "ab" for i in range(30)]
    data = load(written(tmp_path, windows.HEADER, *rows), task=own)
    assert "the latest windows of each series" in inspect(data, own).notes[-1]


def test_a_check_notes_pixels_that_are_much_darker_than_the_scale_expects(tmp_path: Path) -> None:
    pixels, names = pictures.shades(1)
    own = Task(**pictures.TASK)
    dim = pictures.as_csv(tmp_path / "dim.csv", pixels // 16, names)
    finding = inspect(read_local(dim, task=own), own)
    assert any("reach only 0.0588 after task.scale" in note for note in finding.notes)
    usual = inspect(read_local(pictures.as_csv(tmp_path / "a.csv", pixels, names), task=own), own)
    assert not any("task.scale" in note for note in usual.notes)
