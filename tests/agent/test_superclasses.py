"""What models score on each super-class: pooled test data, one row per model, refusals by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from covey.agent.data.partition import fleet_data
from covey.agent.training.models import initial
from covey.agent.training.superclasses import accuracies
from covey.shared.errors import UserError
from covey.shared.scenario.scenario import Scenario
from tests.agent.test_cli import run
from tests.kit.scenes import Scenes

FIRST = (0, 1, 8, 9)


scenario = Scenes.of(
    "s",
    {"features": [1, 8, 8], "classes": 10, "model": {"name": "linear"}},
    fleet={"agents": 4, "partition": {"name": "superclass_mixture", "first": FIRST}},
)


def stubborn(scene: Scenario, folder: Path, *classes: int) -> Path:
    """One model per class, which takes everything for that class."""
    vector, layout = initial(scene.task, 0)
    folder.mkdir(exist_ok=True)
    for k, label in enumerate(classes):
        arrays = layout.named(np.zeros_like(vector))
        arrays["fc.bias"][label] = 1.0
        save_file(arrays, folder / f"cluster-{k}.safetensors")
    return folder


def shares(targets: np.ndarray, label: int) -> list[float]:
    """The share of a label in the test data of each super-class."""
    vehicle = np.isin(targets, FIRST)
    return [float(np.mean(targets[vehicle] == label)), float(np.mean(targets[~vehicle] == label))]


@pytest.mark.parametrize("options", [{}, {"head": 2}, {"head": None}], ids=str)
def test_every_model_is_tested_on_the_pooled_test_data_of_each_superclass(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    scene = scenario(task={"model": {"name": "linear", "options": options}})
    data, split = fleet_data(scene)
    tested = np.unique(split.test_idx)
    assert len(tested) > len(split.test(0))
    found = accuracies(scene, stubborn(scene, tmp_path / "models", 8, 5), None)
    assert found == [shares(data.targets[tested], 8), shares(data.targets[tested], 5)]
    assert found[0][0] > 0.1 > found[0][1] == found[1][0] == 0.0


def test_a_data_set_with_a_test_part_is_tested_on_all_of_it(tmp_path: Path) -> None:
    y, y_test = (
        np.repeat(np.arange(10), 20),
        np.repeat(np.arange(10), [9, 1, 3, 3, 3, 20, 3, 3, 3, 3]),
    )
    x, x_test = (np.zeros((len(labels), 1, 8, 8), np.float32) for labels in (y, y_test))
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    scene = scenario(fleet={"data": "own.npz"})
    _, split = fleet_data(scene, tmp_path)
    assert len(split.test_idx) < len(y_test)
    found = accuracies(scene, stubborn(scene, tmp_path / "models", 0, 5), tmp_path)
    assert found == [[9 / 16, 0.0], [0.0, 20 / 35]]


def test_more_than_ten_models_stay_in_their_order(tmp_path: Path) -> None:
    scene = scenario()
    found = accuracies(scene, stubborn(scene, tmp_path / "models", *[5] * 10, 8), None)
    assert found[10][0] > 0 == found[2][0]


def test_a_superclass_without_test_data_gives_no_row(tmp_path: Path) -> None:
    y = np.repeat(np.arange(10), 20)
    x = np.zeros((len(y), 1, 8, 8), np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x[y == 0], y_test=y[y == 0])
    scene = scenario(fleet={"data": "own.npz"})
    assert accuracies(scene, stubborn(scene, tmp_path / "models", 0), tmp_path) == []


def test_federated_scaling_is_that_of_the_run(tmp_path: Path) -> None:
    scene = scenario(task={"standardise": "federated"})
    models = stubborn(scene, tmp_path / "models", 8)
    with pytest.raises(UserError, match="--scaling"):
        accuracies(scene, models, None)
    assert accuracies(scene, models, None, {"mean": [5.0], "std": [2.0]})[0][0] > 0.1


def test_models_that_cannot_be_tested_are_refused_with_the_reason(tmp_path: Path) -> None:
    scene = scenario()
    with pytest.raises(UserError, match=r"nothing: no cluster-0\.safetensors"):
        accuracies(scene, tmp_path / "nothing", None)
    models = stubborn(
        scenario(task={"model": {"name": "linear", "options": {"head": 2}}}), tmp_path / "models", 8
    )
    with pytest.raises(
        UserError, match=r"cluster-0\.safetensors: the tensors are not those of task\.model"
    ):
        accuracies(scene, models, None)
    with pytest.raises(UserError, match="only the rule superclass_mixture"):
        accuracies(scenario(fleet={"partition": {"name": "iid"}}), models, None)


def test_the_command_prints_a_row_of_accuracies_per_model(tmp_path: Path) -> None:
    scene = scenario()
    models = stubborn(scene, tmp_path / "models", 8, 5)
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(scene.model_dump(mode="json")))
    told = run("superclasses", tmp_path / "scenario.yaml", "--models", models)
    assert json.loads(told) == accuracies(scene, models, None)
