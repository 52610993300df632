"""FedDist and FedDWS on clients whose answers are known by hand."""

from __future__ import annotations

import pytest

from covey.shared.strategies.base import Training
from covey.shared.strategies.feddist import FedDist
from covey.shared.strategies.feddws import FedDws
from tests.bowl import Bowl, flat
from tests.shared.planted import run


def test_feddist_goes_part_of_the_way_to_the_uniform_mean_and_feddws_to_the_weighted() -> None:
    locals_ = {"a": Bowl(flat(4.0), 10), "b": Bowl(flat(16.0), 30)}
    training = Training(batch=100, lr=0.5)  # ends: 2 and 8
    assert run(FedDist(epsilon=0.6), locals_, training, rounds=1).state.model == pytest.approx(
        [0.6 * 5]
    )
    assert run(FedDws(epsilon=0.6), locals_, training, rounds=1).state.model == pytest.approx(
        [0.6 * 6.5]
    )
