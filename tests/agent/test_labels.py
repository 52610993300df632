"""Several labels, each of which a row has or not: from a table to figures and predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.agent.data.check import disclosed, load_local
from covey.agent.data.fit import fit
from covey.agent.data.load import load
from covey.shared.errors import DataError
from covey.shared.numerics.figures import answers, baseline_figures, errors, figures_of
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator

pytestmark = pytest.mark.usefixtures("single_thread")

DOCUMENT: dict[str, Any] = {
    "features": [2],
    "columns": ["x", "y"],
    "target": ["right", "high", "far"],
    "model": "linear",
}
TASK = Task.model_validate(DOCUMENT)


def table(folder: Path, count: int, seed: int = 0) -> Path:
    """Points, and whether each is right of the middle, above it, and both."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["right,x,y,high,far"]
    for x, y in generator(seed, "points").normal(size=(count, 2)):
        lines.append(f"{int(x > 0)},{x:.4f},{y:.4f},{str(y > 0).lower()},{int(x > 0 and y > 0)}")
    path = folder / "points.csv"
    path.write_text("\n".join(lines))
    return path


def test_a_row_has_each_label_that_its_cells_name(tmp_path: Path) -> None:
    data = fit(load(table(tmp_path, 40), task=TASK), TASK)
    assert data.targets.dtype == np.bool_
    x, y = data.features.T
    expected = np.column_stack([x > 0, y > 0, (x > 0) & (y > 0)])
    assert (data.targets == expected).all()
    assert disclosed(data, TASK).labels == ("right", "high", "far")


def test_each_combination_of_labels_has_its_share_in_the_test_part(tmp_path: Path) -> None:
    data = load_local(str(table(tmp_path, 100)), None, TASK)
    every = np.concatenate([data.targets, data.test_targets])
    for labels in np.unique(every, axis=0):
        share = (every == labels).all(axis=1).sum() / 5
        assert abs((data.test_targets == labels).all(axis=1).sum() - share) <= 1


def test_windows_have_the_labels_of_their_last_row(tmp_path: Path) -> None:
    path = table(tmp_path, 9)
    last = path.read_text().splitlines()[3].split(",")
    task = Task.model_validate(DOCUMENT | {"features": [2, 3], "window": {"rows": 3}})
    data = load(path, task=task)
    assert [data.labels[one] for one in data.targets[0]] == [last[0], last[3], last[4]]


@pytest.mark.parametrize("cell", ["2", "0.5", "yes"])
def test_a_cell_that_is_no_label_keeps_the_data_out(tmp_path: Path, cell: str) -> None:
    path = table(tmp_path, 5)
    path.write_text(path.read_text() + f"\n{cell},0,0,1,1")
    with pytest.raises(DataError, match=r"row 6: a target is not a label; expected 0 or 1"):
        fit(load(path, task=TASK), TASK)


def test_one_name_on_the_command_line_cannot_replace_several_targets(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--label right names one column"):
        load_local(str(table(tmp_path, 5)), "right", TASK)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"classes": 3}, "leave classes out"),
        ({"target": ["right"]}, "at least 2"),
        ({"target": ["right", "x"]}, "'x'.* are in columns too"),
        (
            {"window": {"rows": 3, "label": "majority"}, "features": [2, 3]},
            "majority is for classes",
        ),
    ],
)
def test_a_list_of_targets_has_limits(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Task.model_validate(DOCUMENT | change)


def test_labels_are_the_classes_and_f1_is_the_measure() -> None:
    assert (TASK.classes, TASK.measure, TASK.outputs) == (TASK.target, "f1", 3)
    assert Task.model_validate(TASK.for_agents()).digest == TASK.digest


def test_figures_of_labels_are_known_by_hand() -> None:
    truth = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]], np.bool_)
    found = np.array([[0.9, 0.8, 0.1], [0.2, 0.9, 0.1], [0.4, 0.6, 0.1]])
    figures = figures_of(truth, found)
    assert figures["accuracy"] == pytest.approx(7 / 9)
    assert figures["f1"] == pytest.approx((2 / 3 + 4 / 5) / 2), "the third label never occurs"
    assert figures["recall"] == pytest.approx((1 / 2 + 1) / 2)
    assert figures["auc"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    own = np.where(truth, found, 1 - found)
    assert figures["loss"] == pytest.approx(-np.log(own).mean())
    assert errors(truth, found).tolist() == pytest.approx([1 / 3, 1 / 3, 0])
    assert errors(truth, found, "auc") == pytest.approx(-np.log(own).mean(axis=1))
    assert answers(np.zeros((1, 3), np.float32), "labels").tolist() == [[0.5] * 3]
    assert baseline_figures(truth, truth)["f1"] == pytest.approx(4 / 5)
