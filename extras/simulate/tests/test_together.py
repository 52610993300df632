"""Simulated agents that train as one batch get the figures that they get one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from covey.agent.data.dataset import dataset
from covey.agent.training.learner import Nets, TorchLocal
from covey.agent.training.models import initial
from covey.agent.training.together import ask, is_together, together
from covey.extras.simulate.batched import batched
from covey.shared.scenario.task import Model, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill, GradientCorrection, TrainingResult

pytestmark = pytest.mark.usefixtures("single_thread")

IMAGES = Task(features=(1, 16, 16), classes=4, model=Model(name="lenet5"))
TABLE = Task(features=(3,), classes=4, model=Model(name="mlp", options={"hidden": 5}))
VALUES = Task(features=(3,), model=Model(name="linear"))
SIZES = (23, 5, 40, 8)


def learners(task: Task, sizes: Sequence[int] = SIZES, **training: Any) -> list[TorchLocal]:
    """An agent with this many samples each; they share a module, as in a worker."""
    settings = Training.model_validate({"epochs": 2, "batch": 5, "lr": 0.1} | training)
    layout = initial(task, 3)[1]
    nets = Nets()
    made = []
    for index, size in enumerate(sizes):
        draws = generator(index, "samples")
        features = draws.normal(size=(size, *task.features)).astype(np.float32)
        targets: Any = draws.integers(0, 4, size)
        if task.classes is None:
            targets = draws.normal(size=size).astype(np.float32)
        data = dataset(features, targets, source="test")
        order = generator(index, "order")
        made.append(TorchLocal(data, task, layout, training=settings, rng=order, nets=nets))
    return made


def trained(task: Task, how: Any = None, **training: Any) -> list[list[TrainingResult]]:
    """The results one after the other, and as one batch. `how(index, start)` are arguments of `train`."""
    start = initial(task, 3)[0]

    def works(locals_: list[TorchLocal]) -> list[Any]:
        return [
            partial(local.train, start, Drill(**(how(index, start) if how else {})))
            for index, local in enumerate(locals_)
        ]

    alone = [work() for work in works(learners(task, **training))]
    return [alone, together(works(learners(task, **training)), batched)]


def assert_same(alone: TrainingResult, batch: TrainingResult) -> None:
    assert alone.steps == batch.steps
    assert batch.end.dtype == np.float32
    np.testing.assert_allclose(batch.end, alone.end, rtol=1e-4, atol=1e-6)
    assert batch.loss == pytest.approx(alone.loss, rel=1e-5)
    assert (alone.velocity is None) == (batch.velocity is None)
    if alone.velocity is not None and batch.velocity is not None:
        np.testing.assert_allclose(batch.velocity, alone.velocity, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("task", [IMAGES, TABLE, VALUES], ids=["lenet5", "mlp", "linear"])
def test_agents_of_unequal_sizes_train_to_the_models_that_they_reach_alone(task: Task) -> None:
    settings = {"momentum": 0.5, "weight_decay": 0.01}
    alone, batch = trained(task, **settings)
    assert [one.steps for one in batch] == [10, 2, 16, 4]
    for pair in zip(alone, batch, strict=True):
        assert_same(*pair)
    assert not np.array_equal(batch[0].end, batch[1].end)


def bent(index: int, start: Any) -> dict[str, Any]:
    """Everything that changes a training, different for each agent."""
    draws = generator(index, "bent")
    return {
        "correction": GradientCorrection(
            anchor=start + np.float32(0.1 * index),
            mu=0.3,
            drift=draws.normal(size=start.size).astype(np.float32),
            on=draws.random(start.size) < 0.5,
        ),
        "trained": draws.random(start.size) < 0.7,
        "velocity": draws.normal(size=start.size).astype(np.float32),
        "weights": draws.random(SIZES[index]).astype(np.float32),
        "steps": 3 + index,
    }


def test_what_bends_the_gradient_of_an_agent_bends_its_own_alone() -> None:
    for pair in zip(*trained(TABLE, bent, momentum=0.9), strict=True):
        assert_same(*pair)


def test_trainings_of_different_kinds_share_no_batch_and_keep_their_places() -> None:
    def how(index: int, start: Any) -> dict[str, Any]:
        return bent(index, start) if index % 2 else {"epochs": 1 + index}

    for pair in zip(*trained(TABLE, how, momentum=0.9), strict=True):
        assert_same(*pair)


def test_a_second_training_of_an_order_is_a_batch_of_its_own() -> None:
    start = initial(TABLE, 3)[0]

    def twice(local: TorchLocal) -> TrainingResult:
        return local.train(local.train(start).end)

    alone = [twice(local) for local in learners(TABLE)]
    sizes: list[int] = []

    def counted(requests: Any) -> Any:
        sizes.append(len(requests))
        return batched(requests)

    batch = together([partial(twice, local) for local in learners(TABLE)], counted)
    assert sizes == [4, 4]
    for pair in zip(alone, batch, strict=True):
        assert_same(*pair)


@pytest.mark.usefixtures("narrow_vgg16")
@pytest.mark.parametrize(
    "task",
    [
        Task(features=(3, 8, 8), classes=4, model=Model(name="celeba_cnn", options={"blocks": 1})),
        Task(features=(3, 32, 32), classes=4, model=Model(name="vgg16", options={"dropout": 0.5})),
        Task(features=(6, 2), classes=4, model=Model(name="gru", options={"hidden": 4})),
    ],
    ids=["batch norm", "dropout", "recurrent"],
)
def test_models_whose_layers_cannot_be_batched_train_alone_to_the_same_bytes(task: Task) -> None:
    start = initial(task, 3)[0]
    sizes = (6, 4)
    alone = [local.train(start, Drill(steps=1)).end for local in learners(task, sizes)]
    works = [partial(local.train, start, Drill(steps=1)) for local in learners(task, sizes)]
    batch = together(works, lambda _: pytest.fail("nothing to batch"))
    for one, other in zip(alone, batch, strict=True):
        assert one.tobytes() == other.end.tobytes()


def test_a_batch_that_does_not_fit_into_memory_is_trained_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    vmap = torch.vmap

    def small(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            sizes.append(len(arguments[1]))
            if sizes[-1] > 2:
                raise torch.OutOfMemoryError("a made-up card is full")
            return vmap(function)(*arguments)

        return call

    monkeypatch.setattr(torch, "vmap", small)
    for pair in zip(*trained(TABLE), strict=True):
        assert_same(*pair)
    assert sizes[0] == 4
    assert max(sizes[1:]) == 2


def test_a_report_names_the_batch_because_its_bytes_are_others() -> None:
    start = initial(TABLE, 3)[0]
    made = learners(TABLE)
    together([partial(local.train, start) for local in made], batched)
    assert {local.device for local in made} == {"cpu batched"}


def test_an_error_in_one_agents_work_is_its_own() -> None:
    answered: list[Any] = []

    def work(index: int) -> Any:
        try:
            assert is_together()
            return ask(index)
        except ValueError as error:
            return str(error)

    def answers(requests: Sequence[Any]) -> list[Any]:
        answered.extend(requests)
        return [ValueError("no") if request == 1 else request * 10 for request in requests]

    assert together([partial(work, index) for index in range(3)], answers) == [0, "no", 20]
    assert answered == [0, 1, 2]
    assert not is_together()


def test_an_error_of_the_whole_batch_reaches_each_agent() -> None:
    def answers(requests: Sequence[Any]) -> list[Any]:
        raise ValueError("no batch")

    with pytest.raises(ValueError, match="no batch"):
        together([partial(ask, 1), partial(ask, 2)], answers)
