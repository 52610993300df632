"""Built-in models without torch: the layout and the very bytes that torch draws, and what no trial of them can show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from covey.agent.training.models import build, layout_of, model_of, tensors_of
from covey.agent.training.trial import Trial, tried
from covey.extras.light.sketch import drawn, sketched, starts_of
from covey.shared.models.built_in import BUILDERS
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task

IMAGES = [3, 32, 32]
MODELS: list[tuple[str, list[int], dict[str, Any]]] = [
    ("linear", [7], {}),
    ("linear", [1, 28, 28], {"head": 3}),
    ("mlp", [1, 28, 28], {}),
    ("mlp", [5], {"hidden": [8, 4], "head": 2}),
    ("lenet5", [1, 28, 28], {}),
    ("lenet5", [3, 17, 20], {"head": 4}),
    ("cnn1d", [9, 128], {}),
    ("cnn1d", [1, 5], {"filters": 3, "hidden": 2}),
    ("gru", [9, 128], {}),
    ("gru", [2, 3], {"hidden": 5, "head": 2}),
    ("autoencoder", [12], {}),
    ("autoencoder", [3, 4], {"hidden": [5, 2]}),
    ("cnn4", IMAGES, {"filters": 8}),
    ("mobilenet", IMAGES, {"width": 0.25}),
    ("mobilenet", [3, 64, 70], {"width": 0.3}),
    ("resnet9", IMAGES, {}),
    ("femnist_cnn", [1, 28, 28], {"hidden": 24}),
    ("celeba_cnn", [3, 21, 20], {}),
    ("celeba_cnn", IMAGES, {"blocks": 2, "bn_mode": "batch"}),
    ("vgg16", IMAGES, {"dropout": 0.5}),
]


def task_of(name: str, features: list[int], options: dict[str, Any]) -> Task:
    is_detector = name == "autoencoder"
    asked: dict[str, Any] = {"anomalies": {}} if is_detector else {"classes": 10}
    return Task.model_validate(
        {"features": features, "model": {"name": name, "options": options}, **asked}
    )


def torchs_bytes(task: Task, seed: int) -> bytes:
    module = build(task, seed)
    tensors = tensors_of(module)
    layout = layout_of(module)
    return layout.vector(
        {one.name: tensors[one.name].detach().numpy() for one in layout.tensors}
    ).tobytes()


@pytest.mark.usefixtures("narrow_vgg16")
@pytest.mark.parametrize(("name", "features", "options"), MODELS, ids=str)
def test_a_built_in_model_begins_with_the_bytes_of_torch(
    name: str, features: list[int], options: dict[str, Any]
) -> None:
    task = task_of(name, features, options)
    found = sketched(task)
    assert found is not None
    _, layout, _ = found
    assert layout == layout_of(build(task, 0))
    for seed in range(1 if layout.size > 1e6 else 3):
        vector = drawn(task, seed)
        assert vector is not None
        assert vector.dtype == np.float32
        assert vector.tobytes() == torchs_bytes(task, seed)


def test_each_built_in_model_is_compared_with_torch() -> None:
    assert {name for name, _, _ in MODELS} == set(BUILDERS)


@pytest.mark.usefixtures("narrow_vgg16")
@pytest.mark.parametrize(("name", "features", "options"), MODELS, ids=str)
def test_a_built_in_model_behaves_as_the_trial_that_is_left_out_would_show(
    name: str, features: list[int], options: dict[str, Any]
) -> None:
    task = task_of(name, features, options)
    with torch.random.fork_rng(devices=[]):
        shown = tried(build(task, 0), task)
    used, _ = model_of(task)
    assert (used.takes_one, used.mixes) == (shown.takes_one, shown.mixes)


def test_a_built_in_model_with_batch_norm_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Trial(takes_one=False, mixes=True, unmoved=())
    monkeypatch.setattr("covey.agent.training.models.tried", lambda *_: seen)
    assert model_of(task_of("celeba_cnn", [1, 9, 11], {}))[0] is seen
    assert model_of(task_of("lenet5", [1, 19, 23], {}))[0] is not seen


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        ({"name": "mlp", "options": {"hidden": "wide"}}, 10),
        ({"name": "mlp", "options": {"hidden": 0}}, 10),
        ({"name": "mlp", "options": {"width": 3}}, 10),
        ({"name": "mlp", "options": {"head": "two"}}, 10),
        ({"name": "vgg16", "options": {}}, 10),
        ({"name": "celeba_cnn", "options": {}}, 1),
        ({"name": "mlp", "adapters": {"rank": 2}}, 10),
    ],
    ids=str,
)
def test_what_may_fail_is_left_to_torch(model: dict[str, Any], batch: int) -> None:
    scenario = Scenario.model_validate(
        {
            "name": "s",
            "task": {"features": [1, 28, 28], "classes": 10, "model": model},
            "training": {"batch": batch},
            "strategy": {"name": "fedavg"},
            "rounds": {"count": 1},
        }
    )
    assert starts_of(scenario) is None
