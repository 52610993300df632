"""The nearest training samples of a device, by what the last layer of a model reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.agent.data.local import DataOfLocal
from covey.agent.training.learner import TorchLocal
from covey.coordinator.run.result import result_of
from covey.extras.judge.candidates import remembered
from covey.extras.light.numpy_learner import NumpyLocal, layout_of_task
from covey.extras.simulate.tests.device_run import devices, scenes
from covey.shared.numerics.figures import errors, figures_of
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training

pytestmark = pytest.mark.usefixtures("single_thread")

DOCUMENT: dict[str, Any] = {
    "features": [2],
    "classes": ["low", "high"],
    "columns": ["x", "y"],
    "target": "level",
    "model": {"name": "mlp", "options": {"hidden": 3}},
}
TASK = Task.model_validate(DOCUMENT)


def table(folder: Path, seed: int, *, bound: float = 0.0, is_turned: bool = False) -> Path:
    """Points, which are high right of a bound, or left of it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["x,y,level"]
    for x, y in generator(seed, "points").normal(size=(80, 2)):
        lines.append(f"{x:.4f},{y:.4f},{'high' if (x > bound) != is_turned else 'low'}")
    path = folder / "points.csv"
    path.write_text("\n".join(lines))
    return path


def test_neighbours_count_by_their_distance() -> None:
    memory = np.array([[0.0], [1.0], [5.0]])
    targets = np.eye(3)
    found = remembered(memory, targets, np.array([[0.0], [4.0]]), 2)
    near = 1 / (1 + np.exp(-1))
    assert found[0].tolist() == pytest.approx([near, 1 - near, 0])
    far = 1 / (1 + np.exp(-2))
    assert found[1].tolist() == pytest.approx([0, 1 - far, far])
    distant = remembered(memory, targets, np.array([[1e6]]), 9)
    assert distant.sum() == pytest.approx(1), "weights that all vanish still have a mean"
    assert distant[0, 2] > 0.97


def test_features_are_what_the_last_layer_reads_in_both_learners(tmp_path: Path) -> None:
    layout = layout_of_task(TASK)
    model = generator(1, "model").normal(size=layout.size).astype(np.float32)
    named = layout.named(model)
    found = []
    for kind in (TorchLocal, NumpyLocal):
        data = load_local(str(table(tmp_path, 1)), None, TASK)
        local: DataOfLocal = kind(data, TASK, layout, Training(), generator(1, "test"))
        inputs = local.inputs()
        hidden = np.maximum(inputs @ named["fc1.weight"].T + named["fc1.bias"], 0)
        found.append(local.features(model, "train"))
        assert found[-1] == pytest.approx(hidden, abs=1e-5)
    assert found[0].dtype == np.float64


def test_a_device_that_differs_from_the_others_gains_from_its_own_samples(tmp_path: Path) -> None:
    files = {f"pi-{i}": table(tmp_path / str(i), i, is_turned=i == 3) for i in range(4)}
    scene = scenes(DOCUMENT)(strategy={"name": "fedavg"}, evaluation={"deliver": {}})
    run = devices(tmp_path / "run", scene, files)
    figures = result_of(run, None).to_json()["accuracy"]
    turned = run.members.evaluation["pi-3"]
    assert turned["server"]["accuracy"] < 0.5
    assert turned["delivered"]["accuracy"] > 0.8
    assert figures["delivered"]["agents"] == 4
    assert figures["delivered"]["accuracy"]["macro"] > figures["server"]["accuracy"]["macro"] + 0.1


@pytest.mark.parametrize("truth", [np.array([1, 1]), np.array([[False, True]] * 2)])
def test_a_mean_of_answers_that_rounds_to_more_than_one_has_no_negative_loss(
    truth: np.ndarray[Any, Any],
) -> None:
    """Before: a coordinator refused the whole evaluation of an agent whose every answer was certain."""
    above = np.array([[0.0, np.nextafter(1.0, 2.0)]] * 2)
    assert figures_of(truth, above)["loss"] == 0
    assert errors(truth, above, "loss").tolist() == [0, 0]
