"""Windows whose targets are the values of the rows after them: what needs `light`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.agent.training.learner import TorchLocal
from covey.extras.light.numpy_learner import NumpyLocal, layout_of_task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Local
from tests.agent.test_forecasts import TASK, table

pytestmark = pytest.mark.usefixtures("single_thread")


def learner(kind: type, path: Path, rng: np.random.Generator, **training: Any) -> Local:
    data = load_local(str(path), None, TASK)
    settings = Training(epochs=3, batch=8, lr=0.2, **training)
    local: Local = kind(data, TASK, layout_of_task(TASK), settings, rng)
    return local


def test_both_learners_train_on_forecasts_alike(tmp_path: Path) -> None:
    path = table(tmp_path, 60)
    start = np.full(layout_of_task(TASK).size, 0.1, np.float32)
    ends = []
    for kind in (TorchLocal, NumpyLocal):
        local = learner(kind, path, generator(1, "test"))
        result = local.train(start)
        assert local.loss(result.end) < local.loss(start)
        ends.append(result.end)
        assert local.gradient(start) == pytest.approx(
            learner(NumpyLocal, path, generator(1, "test")).gradient(start), abs=1e-5
        )
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)
