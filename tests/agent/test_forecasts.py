"""Windows whose targets are the values of the rows after them: from a table to figures by step and predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.agent.data.check import load_local
from covey.coordinator.fold.means import averages
from covey.shared.errors import DataError
from covey.shared.numerics.figures import errors, or_diverged, regression_figures
from covey.shared.scenario.task import Task

pytestmark = pytest.mark.usefixtures("single_thread")

DOCUMENT: dict[str, Any] = {
    "features": [2, 4],
    "columns": ["power", "heat"],
    "target": "power",
    "window": {"rows": 4, "stride": 1, "horizon": 2},
    "model": "linear",
}
TASK = Task.model_validate(DOCUMENT)


def table(folder: Path, rows: int, phase: float = 0.0) -> Path:
    """A wave of twelve rows, and a second column that is its square."""
    folder.mkdir(parents=True, exist_ok=True)
    waves = np.round(np.sin(np.arange(rows) * np.pi / 6 + phase), 6).tolist()
    lines = ["power,heat", *(f"{wave},{wave * wave:.6f}" for wave in waves)]
    path = folder / "rows.csv"
    path.write_text("\n".join(lines))
    return path


def test_the_targets_of_a_window_are_the_values_of_the_rows_after_it(tmp_path: Path) -> None:
    path = table(tmp_path, 12)
    powers = [float(line.split(",")[0]) for line in path.read_text().splitlines()[1:]]
    data = load_local(str(path), None, TASK)
    assert data.overlap == 5  # of windows and targets together
    assert data.features.shape[1:] == (2, 4)
    assert data.features[0, 0] == pytest.approx(powers[:4])
    assert data.targets[0] == pytest.approx(powers[4:6])
    assert data.test_targets[-1] == pytest.approx(powers[-2:])


def test_a_series_that_is_too_short_for_a_window_and_its_targets_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"window.rows is 4 and task.window.horizon 2"):
        load_local(str(table(tmp_path, 5)), None, TASK)


def test_data_with_another_number_of_targets_is_refused(tmp_path: Path) -> None:
    other = Task.model_validate({"features": [3], "model": "linear"})
    np.savez(tmp_path / "data.npz", x=np.ones((6, 3)), y=np.ones((6, 2)))
    with pytest.raises(DataError, match="a sample has 2 targets, the task expects 1"):
        load_local(str(tmp_path / "data.npz"), None, other)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"classes": 3}, "leave out classes"),
        ({"target": None}, "name it"),
        ({"window": {"rows": 4}}, "power"),  # only a forecast has its target among its columns
    ],
)
def test_a_task_of_forecasts_names_its_target_and_has_no_classes(
    change: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValidationError, match=why):
        Task.model_validate(DOCUMENT | change)


def test_figures_of_forecasts_are_known_by_hand() -> None:
    truth = np.array([[1, 2], [3, 6]], np.float32)
    outputs = np.array([[2, 2], [3, 2]], np.float64)
    figures = regression_figures(truth, outputs)
    assert (figures["n"], figures["mse"], figures["mae"]) == (2, 17 / 4, 5 / 4)
    assert figures["maes"] == [0.5, 2.0]
    assert errors(truth, outputs).tolist() == [0.5, 8.0]
    assert errors(truth, outputs, "mae").tolist() == [0.5, 2.0]
    assert or_diverged({**figures, "maes": [0.5, float("inf")]}) == {"n": 2, "diverged": True}
    both = {"a": {"server": figures}, "b": {"server": figures | {"maes": [1.5, 4.0], "rmse": 1}}}
    assert averages(both, {}, "test")["server"]["maes"] == [1.0, 3.0]
