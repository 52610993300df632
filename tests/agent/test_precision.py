"""Local training in bfloat16: the master model stays float32, and who cannot compute like that refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from covey.agent.data.dataset import dataset
from covey.agent.training import compute_device
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.agent.training.objective import TaskLoss, in_precision, supervised
from covey.agent.training.sgd import ScaledSteps
from covey.shared.errors import PublicError
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Model, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from tests.kit.scenes import DIGITS, Scenes

pytestmark = pytest.mark.usefixtures("single_thread")

TASK = Task(features=(1, 8, 8), classes=4, model=Model(name="cnn4", options={"filters": 8}))
START, LAYOUT = initial(TASK, 1)


def local(kind: Any, precision: str, task: Task = TASK, device: str = "cpu") -> Any:
    """A learner on forty samples of four classes that differ in their brightness."""
    draws = generator(1, "samples")
    targets = np.arange(40) % 4
    features = draws.normal(size=(40, 1, 8, 8)) + targets.reshape(-1, 1, 1, 1)
    data = dataset(features.astype(np.float32), targets, source="test")
    training = Training.model_validate(
        {"epochs": 3, "batch": 8, "lr": 0.05, "precision": precision, "device": device}
    )
    layout = initial(task, 1)[1]
    return kind(data, task, layout, training, generator(1, "order"))


def test_bfloat16_trains_a_float32_model_to_nearly_the_same_loss() -> None:
    exact, rounded = (local(TorchLocal, precision) for precision in ("fp32", "bf16"))
    ends = [one.train(START) for one in (exact, rounded)]
    assert ends[1].end.dtype == np.float32
    assert not np.array_equal(ends[0].end, ends[1].end), "some layers were rounded"
    assert ends[1].loss == pytest.approx(ends[0].loss, rel=0.05)
    assert exact.loss(ends[1].end) < exact.loss(START)
    # steps far smaller than bfloat16 can tell apart are kept
    assert np.abs(ends[1].end - START).min() < 2**-9


def test_layers_compute_in_bfloat16_and_losses_in_float32() -> None:
    seen: list[torch.dtype] = []
    layer = torch.nn.Linear(3, 2)
    layer.register_forward_hook(lambda _, __, outputs: seen.append(outputs.dtype))
    objective = in_precision(supervised(layer, TaskLoss("classes")), "bf16", torch.device("cpu"))
    loss = objective(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64), None)
    assert (seen, loss.dtype) == ([torch.bfloat16], torch.float32)


def test_a_step_in_float16_whose_gradient_overflows_is_left_out() -> None:
    weight = torch.zeros(2)
    weight.grad = torch.zeros(2)
    steps: list[list[float]] = []
    scaled = ScaledSteps([weight], lambda: steps.append(weight.grad.tolist()), torch.device("cpu"))  # type: ignore[union-attr]
    wanted = weight.detach().requires_grad_()
    wanted.grad = weight.grad
    for slope in (1e-3, 1e38, 2e-3):
        weight.grad.zero_()
        scaled.take((wanted * slope).sum())
    np.testing.assert_allclose(steps, [[1e-3] * 2, [2e-3] * 2], rtol=1e-6)


def test_a_device_without_a_gpu_refuses_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_device, "available", lambda: {"cpu": True})
    with pytest.raises(PublicError, match=r"training\.precision is fp16.*bf16 or fp32"):
        local(TorchLocal, "fp16", device="auto").train(START)


def test_a_scenario_for_processors_refuses_float16() -> None:
    with pytest.raises(ValidationError, match="set device to auto"):
        scenes(training={"precision": "fp16"})


scenes = Scenes.of("precision", DIGITS, rounds={"count": 1})


def test_dp_sgd_is_for_float32() -> None:
    privacy = {"local": {"noise_multiplier": 1.0}}
    with pytest.raises(ValidationError, match="DP-SGD clips gradients in float32"):
        Scenario.model_validate(scenes.document(training={"precision": "bf16"}, privacy=privacy))
