"""Adapters: what needs `in_use`."""

from __future__ import annotations

from pathlib import Path

import torch

from covey.agent.training.models import build, initial
from covey.extras.in_use.kept_versions import Version
from covey.extras.in_use.model_file import read_model, save_model
from covey.extras.in_use.program import load, module_of
from covey.shared.scenario.task import Task
from tests.agent.test_adapters import IMAGES, LENET, task_of


def test_a_model_for_export_has_its_adapters_in_its_weights(tmp_path: Path) -> None:
    task = task_of({"rank": 2})
    start, layout = initial(task, 7, 1)  # whose adapters are not zero
    path = tmp_path / "model.safetensors"
    save_model(
        path, Version("run", 1, None), task.for_agents(), mixture=((1.0, start),), layout=layout
    )
    plain = load(path)[1].get_submodule("module")
    with_adapters = module_of(read_model(path))
    assert not [name for name, _ in plain.named_parameters() if "lora" in name]
    assert torch.allclose(plain(IMAGES), with_adapters(IMAGES), atol=1e-5)
    assert not torch.equal(plain(IMAGES), build(Task.model_validate(LENET), 7).eval()(IMAGES))
