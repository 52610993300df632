"""Adapters: what needs `light` and `private`."""

from __future__ import annotations

import pytest

from covey.agent.training.models import build
from covey.extras.light.numpy_learner import layout_of_task
from covey.extras.private.private_sgd import check_layers
from covey.shared.errors import PublicError
from tests.agent.test_adapters import task_of


def test_learners_without_adapters_refuse_them() -> None:
    linear = task_of({"targets": ["fc"]}, model={"name": "linear", "adapters": {"targets": ["fc"]}})
    with pytest.raises(PublicError, match=r"numpy.*--learner torch"):
        layout_of_task(linear)
    task = task_of({"rank": 2})
    with pytest.raises(PublicError, match="adapters have no gradient of each example"):
        check_layers(build(task, 0))
