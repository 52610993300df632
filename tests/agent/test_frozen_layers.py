"""Layers before all that trains compute once: epochs of the head need no more passes, and the result stays about the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from covey.agent.training.architectures import Net
from covey.agent.training.flat_module import frozen_layers
from covey.agent.training.models import build, layout_of
from covey.shared.scenario.task import Task

HEAD = {"share": ["fc2", "fc3"]}


def task_of(**changes: Any) -> Task:
    task = {"features": [1, 16, 16], "classes": 4, "model": {"name": "lenet5"}}
    return Task.model_validate({**task, **HEAD, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"share": []},
        {"share": ["conv1", "fc3"]},
        {"share": [], "keep": ["fc3"]},
        {"model": {"name": "lenet5", "options": {"head": 2}}},
    ],
)
def test_a_model_without_frozen_layers_at_its_beginning_has_none(changes: dict[str, Any]) -> None:
    task = task_of(**changes)
    module = build(task, 0)
    assert frozen_layers(module, task, layout_of(module)) is None


def test_layers_that_draw_random_numbers_belong_to_the_head() -> None:
    module = Net(
        flatten=nn.Flatten(), fc1=nn.Linear(256, 8), drop=nn.Dropout(0.5), fc2=nn.Linear(8, 4)
    )
    found = frozen_layers(module, task_of(share=["fc2"]), layout_of(module))
    assert found is not None
    assert [type(layer) for layer in found.body] == [nn.Flatten, nn.Linear]
    x = torch.ones(2, 1, 16, 16)
    module.eval()
    assert torch.equal(found.head(found.body(x)), module(x))
