"""Matching units: the function stays, the order is found again."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch.nn.utils import vector_to_parameters

from covey.agent.training.models import build, initial
from covey.shared.errors import UserError
from covey.shared.numerics.matching import align, layers_of, match_units, permute
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.scenario.task import Model, Task

TASKS = [
    Task(features=(1, 16, 16), classes=4, model=Model(name="lenet5")),
    Task(features=(1, 8, 8), classes=4, model=Model(name="femnist_cnn", options={"hidden": 12})),
    Task(
        features=(2, 32), classes=3, model=Model(name="cnn1d", options={"filters": 4, "hidden": 6})
    ),
    Task(features=(6,), classes=4, model=Model(name="mlp", options={"hidden": [7, 5]})),
]
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.model.name)


def shuffled(model: Vector, layout: Layout, seed: int = 0) -> Vector:
    draw = np.random.default_rng(seed)
    return permute(
        model, [draw.permutation(layer.units) for layer in layers_of(layout)[:-1]], layout
    )


def logits(task: Task, model: Vector) -> torch.Tensor:
    module = build(task, 0).eval()
    vector_to_parameters(torch.from_numpy(model.copy()), module.parameters())
    with torch.no_grad():
        out: torch.Tensor = module(
            torch.from_numpy(np.random.default_rng(1).normal(size=(5, *task.features))).float()
        )
    return out


@every_task
def test_reordered_units_compute_the_same(task: Task) -> None:
    model, layout = initial(task, 3)
    moved = shuffled(model, layout)
    assert not np.array_equal(moved, model)
    assert torch.allclose(logits(task, moved), logits(task, model), atol=1e-5)


@every_task
def test_matching_finds_the_order_again(task: Task) -> None:
    model, layout = initial(task, 3)
    assert np.array_equal(align(shuffled(model, layout), model, layout), model)


@every_task
def test_matching_finds_the_order_again_from_a_model_that_has_moved_on(task: Task) -> None:
    anchor, layout = initial(task, 3)
    trained = anchor + np.random.default_rng(2).normal(0, 0.01, anchor.size).astype(np.float32)
    assert np.array_equal(align(shuffled(trained, layout), anchor, layout), trained)


def test_matching_is_the_best_of_all_orders() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        rows, anchor = (draw.normal(size=(5, 3)).astype(np.float32) for _ in range(2))
        costs = {
            order: float(np.sum((rows[list(order)] - anchor) ** 2))
            for order in permutations(range(5))
        }
        assert costs[tuple(match_units(rows, anchor).tolist())] == pytest.approx(
            min(costs.values())
        )


def test_the_argument_is_not_changed() -> None:
    model, layout = initial(TASKS[-1], 3)
    model.flags.writeable = False
    before = model.copy()
    align(model, shuffled(model, layout), layout)
    assert np.array_equal(model, before)


@pytest.mark.parametrize(
    ("name", "features"),
    [("resnet9", (3, 32, 32)), ("celeba_cnn", (3, 16, 16))],
    ids=["group norm", "batch norm"],
)
def test_matching_refuses_a_model_that_is_no_plain_chain_by_name(
    name: str, features: tuple[int, ...]
) -> None:
    _, layout = initial(Task(features=features, classes=4, model=Model(name=name)), 0)
    with pytest.raises(UserError, match="plain chain"):
        layers_of(layout)


def test_widths_that_do_not_fit_are_refused() -> None:
    branch = (Tensor("fc1.weight", (4, 3)), Tensor("fc2.weight", (2, 5)))
    with pytest.raises(UserError, match="fc2: it takes 5 inputs after a layer of 4 units"):
        layers_of(Layout(branch, 2))


def test_layers_without_bias_are_matched_by_their_weights() -> None:
    layout = Layout((Tensor("fc1.weight", (4, 3)), Tensor("fc2.weight", (2, 4))), 2)
    model = np.random.default_rng(0).normal(size=layout.size).astype(np.float32)
    assert np.array_equal(align(shuffled(model, layout), model, layout), model)
