"""Layers before all that trains compute once: what needs `private`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from covey.agent.training import learner
from covey.agent.training.learner import Nets, TorchLocal
from covey.agent.training.models import initial
from covey.extras.private.tests.test_private_sgd import data_of
from covey.shared.numerics.split import Split
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill
from tests.agent.test_frozen_layers import task_of


def trained(task: Task, passes: list[int], nets: Nets | None = None, **training: Any) -> Any:
    """A training's result, and how many samples went through the first layer."""
    start, layout = initial(task, 3)
    split = Split.by_patterns(layout, task.share, task.keep, task.freeze)
    settings = Training(**{"epochs": 3, "batch": 10, "lr": 0.1, **training})
    local = TorchLocal(
        data_of(task), task, layout, training=settings, rng=generator(1, "test"), nets=nets
    )

    def count(_: nn.Module, inputs: tuple[Tensor], __: Tensor) -> None:
        passes.append(len(inputs[0]))

    hook = local._net.module.get_submodule("conv1").register_forward_hook(count)
    try:
        return local.train(start, Drill(trained=split.trains)), split
    finally:
        hook.remove()


def test_frozen_layers_see_each_sample_once_and_later_orders_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[int] = []
    nets = Nets()
    kept, split = trained(task_of(), passes, nets)
    assert sum(passes) == 60 + 1  # the first sample shows how much memory they take
    trained(task_of(), passes, nets)
    assert sum(passes) == 60 + 2
    monkeypatch.setattr(learner, "FEATURES_BYTES", 1000)
    passes.clear()
    plain, _ = trained(task_of(), passes)
    assert sum(passes) == 3 * 60 + 1
    assert np.abs(kept.end - plain.end).max() < 1e-3  # of float16
    assert np.array_equal(split.rest_of(kept.end), split.rest_of(plain.end))
    assert not np.array_equal(split.share_of(kept.end), split.share_of(initial(task_of(), 3)[0]))


def test_images_that_change_in_training_go_through_all_layers() -> None:
    passes: list[int] = []
    trained(task_of(), passes, augment="shift")
    assert sum(passes) == 3 * 60
