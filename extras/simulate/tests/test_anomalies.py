"""Unusual rows of a table, without labels and with them: what needs `simulate`."""

from __future__ import annotations

from typing import Any

import pytest

from covey.coordinator.run.rules import rules_of
from covey.extras.simulate.tests.device_run import scenes
from covey.shared.errors import UserError
from tests.agent.test_anomalies import DOCUMENT

pytestmark = pytest.mark.usefixtures("single_thread")


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ({"name": "fedsgd"}, "threshold of anomalies"),
        ({"name": "ifca", "n_clusters": 2, "averaging": "gradient"}, "threshold of anomalies"),
        ({"name": "perfedavg"}, "threshold of anomalies"),
        ({"name": "robust", "n_clusters": 2, "averaging": "gradient"}, "threshold of anomalies"),
        ({"name": "robust", "n_clusters": 2, "features": "logreg"}, "the task has anomalies"),
        ({"name": "flux"}, "profiles"),
        ({"name": "feroma"}, "profiles"),
    ],
)
def test_methods_that_set_no_threshold_or_need_classes_refuse_anomalies(
    strategy: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        rules_of(scenes(DOCUMENT)(strategy=strategy))
