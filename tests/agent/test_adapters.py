"""Adapters: a frozen model gets low-rank matrices that train and travel, and a program without them computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from covey.agent.training.models import adapted, build, initial, layout_of, merged
from covey.shared.errors import PublicError
from covey.shared.numerics.split import Split
from covey.shared.scenario.adapters import Adapters
from covey.shared.scenario.task import Task

IMAGES = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(1))
LENET: dict[str, Any] = {"features": [1, 16, 16], "classes": 4, "model": {"name": "lenet5"}}


def task_of(adapters: dict[str, Any], **changes: Any) -> Task:
    model = {"name": "lenet5", "adapters": adapters}
    return Task.model_validate({**LENET, "model": model, **changes})


def with_random_b(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            if name.endswith("lora_b"):
                tensor.normal_(generator=torch.Generator().manual_seed(2))
    return module.eval()


def test_a_model_computes_the_same_until_its_adapters_train() -> None:
    plain = build(Task.model_validate(LENET), 3).eval()
    own = build(task_of({"rank": 2}), 3).eval()
    assert torch.equal(plain(IMAGES), own(IMAGES))
    assert not torch.allclose(plain(IMAGES), with_random_b(own)(IMAGES))


def test_an_adapter_adds_alpha_over_rank_times_the_product_to_the_weight() -> None:
    """For a linear layer, and for convolutions with stride, padding and dilation."""
    layers: list[tuple[Any, torch.Tensor]] = [
        (nn.Linear(6, 3), torch.randn(4, 6)),
        (nn.Conv2d(3, 5, 3, stride=2, padding=1, dilation=2), torch.randn(2, 3, 9, 9)),
        (nn.Conv1d(3, 5, 4, padding=2), torch.randn(2, 3, 9)),
    ]
    for layer, x in layers:
        module = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(2))
        module(x)
        weight = layer.weight.detach().clone()
        with_random_b(adapted(module, Adapters(rank=2, alpha=6)))
        product = layer.lora_b.flatten(1) @ layer.lora_a.flatten(1)
        expected = weight + 6 / 2 * product.view_as(weight)
        outputs = module(x)
        plain = merged(module)
        assert torch.allclose(layer.weight, expected, atol=1e-5)
        assert torch.allclose(plain(x), outputs, atol=1e-3)
        assert not [name for name, _ in plain.named_parameters() if "lora" in name]


def test_the_head_and_grouped_convolutions_get_none_unless_a_pattern_names_them() -> None:
    names = {entry.name for entry in layout_of(build(task_of({}), 0)).tensors}
    assert {name.partition(".")[0] for name in names if "lora" in name} == {
        "conv1",
        "conv2",
        "fc1",
        "fc2",
    }
    named = layout_of(build(task_of({"targets": ["fc3"]}), 0))
    assert [entry.name for entry in named.tensors if "lora" in entry.name] == [
        "fc3.lora_a",
        "fc3.lora_b",
    ]
    with pytest.raises(PublicError, match=r"names no layer for an adapter; .* conv1, conv2, fc1"):
        build(task_of({"targets": ["encoder.*"]}), 0)
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(PublicError, match="names no layer"):
        adapted(grouped, Adapters())


def test_adapters_alone_travel_and_a_is_frozen_and_common() -> None:
    task = task_of({"rank": 2})
    assert task.share == ("*.lora_b",)
    start, layout = initial(task, 7)
    split = Split.by_patterns(layout, task.share, task.keep, task.freeze)
    assert {entry.name.rpartition(".")[2] for entry in split.tensors("share")} == {"lora_b"}
    again, _ = initial(task, 7)
    assert np.array_equal(start, again)
    own = task_of({}, share=["*.lora_b", "fc3"])
    assert own.share == ("*.lora_b", "fc3")


def test_initial_models_of_a_method_with_several_differ_in_their_adapters() -> None:
    task = task_of({"rank": 2})
    starts = [initial(task, 7, number) for number in range(3)]
    layout = starts[0][1]
    split = Split.by_patterns(layout, task.share, task.keep, task.freeze)
    first, second, third = (split.share_of(model) for model, _ in starts)
    assert not first.any()
    assert second.any()
    assert not np.array_equal(second, third)
