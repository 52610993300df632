"""Local training in bfloat16: what needs `light`."""

from __future__ import annotations

import pytest

from covey.agent.training.models import initial
from covey.extras.light.numpy_learner import NumpyLocal
from covey.shared.errors import PublicError
from covey.shared.scenario.task import Model, Task
from tests.agent.test_precision import local

pytestmark = pytest.mark.usefixtures("single_thread")


def test_numpy_refuses_another_precision() -> None:
    task = Task(features=(1, 8, 8), classes=4, model=Model(name="linear"))
    device = local(NumpyLocal, "bf16", task)
    with pytest.raises(PublicError, match=r"training\.precision is bf16.*--learner torch"):
        device.train(initial(task, 1)[0])
