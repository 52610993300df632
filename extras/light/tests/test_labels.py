"""Several labels, each of which a row has or not: what needs `light`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.agent.training.learner import TorchLocal
from covey.extras.light.numpy_learner import NumpyLocal, layout_of_task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Local
from tests.agent.test_labels import TASK, table

pytestmark = pytest.mark.usefixtures("single_thread")


def test_both_learners_train_on_labels_alike(tmp_path: Path) -> None:
    path = str(table(tmp_path, 60))
    start = np.full(layout_of_task(TASK).size, 0.1, np.float32)
    settings = Training(epochs=3, batch=8, lr=0.5)
    found: list[Local] = [
        kind(
            load_local(path, None, TASK), TASK, layout_of_task(TASK), settings, generator(1, "test")
        )
        for kind in (TorchLocal, NumpyLocal)
    ]
    gradients = [local.gradient(start) for local in found]
    ends = [local.train(start).end for local in found]
    assert gradients[0] == pytest.approx(gradients[1], abs=1e-5)
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)
    assert found[1].loss(ends[1]) < found[1].loss(start) < 2 * math.log(2)
