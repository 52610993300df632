"""Adapters: what needs `private`."""

from __future__ import annotations

import numpy as np

from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.extras.private.tests.test_private_sgd import data_of
from covey.shared.numerics.split import Split
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill
from tests.agent.test_adapters import task_of


def test_training_changes_nothing_that_is_frozen_and_lowers_the_loss() -> None:
    task = task_of({"rank": 2}, share=["*.lora_b", "fc3"])
    start, layout = initial(task, 3)
    split = Split.by_patterns(layout, task.share, task.keep, task.freeze)
    local = TorchLocal(
        data_of(task),
        task,
        layout,
        training=Training(epochs=5, batch=10, lr=0.1),
        rng=generator(1, "test"),
    )
    end = local.train(start, Drill(trained=split.trains)).end
    assert np.array_equal(split.rest_of(end), split.rest_of(start))
    assert not np.array_equal(split.share_of(end), split.share_of(start))
    assert local.loss(end) < local.loss(start)
