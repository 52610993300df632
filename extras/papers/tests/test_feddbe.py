"""FedDBE on clients whose answers are known by hand, and both learners' terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.agent.training.learner import TorchLocal
from covey.coordinator.run.result import result_of
from covey.extras.judge.tests.test_neighbours import DOCUMENT, TASK, table
from covey.extras.light.numpy_learner import NumpyLocal, layout_of_task
from covey.extras.papers.feddbe import OWN as KEPT
from covey.extras.papers.feddbe import FedDbe, with_own
from covey.extras.simulate.tests.device_run import devices, scenes
from covey.shared.errors import PublicError
from covey.shared.numerics.figures import softmax
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.seeds import generator
from covey.shared.strategies.base import MODEL, Setup, Training
from covey.shared.strategies.client_half import LAST_MODEL, Debias, Drill, GradientCorrection, Job

pytestmark = pytest.mark.usefixtures("single_thread")

LAYOUT = layout_of_task(TASK)
START = generator(3, "start").normal(size=LAYOUT.size).astype(np.float32)
OWN = np.array([0.3, -0.2, 0.5], np.float32)
MEAN = np.array([0.5, 0.0, -0.5], np.float32)


def local(kind: type, path: Path, **training: Any) -> Any:
    data = load_local(str(path), None, TASK)
    settings = Training(**{"epochs": 2, "batch": 8, "lr": 0.1, **training})
    return kind(data, TASK, LAYOUT, settings, generator(1, "test"))


@pytest.mark.parametrize("kind", [NumpyLocal, TorchLocal])
def test_a_step_follows_the_gradient_of_both_terms(tmp_path: Path, kind: type) -> None:
    client = local(kind, table(tmp_path, 1), epochs=1, batch=64, lr=0.01)
    debias = Debias(OWN, MEAN, kappa=3.0)
    result = client.train(START, Drill(GradientCorrection(debias=debias)))
    assert (result.steps, client.examples) == (1, 64)
    labels = client.targets("train")

    def loss(model: np.ndarray[Any, Any], own: np.ndarray[Any, Any]) -> float:
        one, of_one, two, of_two = LAYOUT.named(model).values()
        features = np.maximum(client.inputs().astype(float) @ one.T + of_one, 0)
        chances = softmax((features + own) @ two.T + of_two)
        pull = 1.5 * np.mean((features.mean(axis=0) - MEAN) ** 2)
        return float(-np.log(chances[np.arange(64), labels]).mean() + pull)

    point = np.concatenate([START, OWN]).astype(np.float64)
    slopes = np.empty_like(point)
    for place in range(point.size):
        ahead, behind = point.copy(), point.copy()
        ahead[place] += 1e-5
        behind[place] -= 1e-5
        slopes[place] = (
            loss(ahead[: START.size], ahead[START.size :])
            - loss(behind[: START.size], behind[START.size :])
        ) / 2e-5
    end = np.concatenate([result.end, result.own])
    assert end - point == pytest.approx(-0.01 * slopes, abs=2e-6)


def test_both_learners_train_alike_with_both_terms(tmp_path: Path) -> None:
    found = []
    for kind in (NumpyLocal, TorchLocal):
        client = local(kind, table(tmp_path, 1), momentum=0.5)
        debias = Debias(OWN, MEAN, kappa=2.0)
        result = client.train(START, Drill(GradientCorrection(debias=debias)))
        found.append(np.concatenate([result.end, result.own, [result.loss]]))
        plain = client.train(START)
        assert plain.own is None, "the offset is gone after the training"
        assert client.loss(plain.end) < client.loss(START)
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_an_offset_continues_in_the_next_round_and_is_in_the_last_model(tmp_path: Path) -> None:
    job = Job("train", 1, "pi-1", 7, (START, MEAN), {}, 0, LAYOUT, Training())
    path = table(tmp_path, 1, bound=1.0)
    report, state = FedDbe().work(job, local(NumpyLocal, path), {})
    assert np.abs(state[KEPT]).max() > 0.01
    end = report.vectors[MODEL]
    assert state[LAST_MODEL] == pytest.approx(with_own(end, state[KEPT], LAYOUT))
    _, later = FedDbe().work(job, local(NumpyLocal, path, lr=1e-9), state)
    assert later[KEPT] == pytest.approx(state[KEPT], abs=1e-6)


def test_agents_whose_bounds_differ_are_served_better_than_by_one_model(tmp_path: Path) -> None:
    files = {f"pi-{i}": table(tmp_path / str(i), i, bound=i - 1) for i in range(3)}
    figures = {}
    for strategy in ({"name": "fedavg"}, {"name": "feddbe"}):
        scene = scenes(DOCUMENT)(strategy=strategy, rounds={"count": 3})
        run = devices(tmp_path / strategy["name"], scene, files)
        result = result_of(run, None).to_json()
        figures[strategy["name"]] = result["accuracy"]["server"]["accuracy"]["macro"]
        if strategy["name"] == "feddbe":
            assert run.state.consensus.shape == (3,)
            assert (run.state.consensus >= 0).all(), "means of what ReLU lets through"
    assert figures["feddbe"] > figures["fedavg"] + 0.1


def test_a_model_that_does_not_end_in_a_linear_layer_is_refused() -> None:
    layout = Layout((Tensor("conv.weight", (4, 1, 3)), Tensor("conv.bias", (4,))), 2)
    setup = Setup((np.zeros(layout.size, np.float32),), layout, 1, 3, 1.0, Training())
    with pytest.raises(PublicError, match=r"ends in a linear layer with a bias.*ends in conv"):
        FedDbe().init(setup)


def test_a_model_of_which_a_part_travels_is_refused() -> None:
    kept = Split.by_patterns(LAYOUT, [], ["fc1"], [])
    assert "leave out task.share, keep and freeze" in FedDbe().refuses(kept)
    assert not FedDbe().refuses(Split.by_patterns(LAYOUT, ["*"], [], []))


def test_the_offset_is_in_the_bias_of_the_served_model() -> None:
    named = LAYOUT.named(with_own(START, OWN, LAYOUT))
    before = LAYOUT.named(START)
    expected = before["fc2.bias"] + before["fc2.weight"] @ OWN
    assert named["fc2.bias"] == pytest.approx(expected)
    assert np.array_equal(named["fc2.weight"], before["fc2.weight"])
