"""SCAFFOLD on clients whose answers are known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from covey.shared.strategies.base import Training
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.scaffold import OWN, Scaffold
from tests.bowl import Bowl, flat
from tests.shared.planted import ONE, SGD, run, same, unequal

TWO_CURVATURES = {"a": Bowl(flat(4.0), 30), "b": Bowl(flat(8.0), 10, curvature=4.0)}
MANY_STEPS = Training(epochs=10, batch=100, lr=0.1)
# 3/4 * (w - 4) + 1/4 * 4 * (w - 8) = 0: each bowl counts with its samples and its curvature
MINIMUM = (3 * 4 + 4 * 8) / (3 + 4)


def test_fedavg_is_biased_by_many_local_steps_and_scaffold_is_not() -> None:
    biased = run(FedAvg(), TWO_CURVATURES, MANY_STEPS, rounds=40).state.model
    assert abs(biased[0] - MINIMUM) > 0.3
    corrected = run(Scaffold(), TWO_CURVATURES, MANY_STEPS, rounds=40).state.model
    assert corrected == pytest.approx([MINIMUM], abs=1e-3)


def test_the_first_round_is_fedavgs() -> None:
    same(run(Scaffold(), unequal(), SGD, rounds=1), run(FedAvg(), unequal(), SGD, rounds=1))


def test_variates_become_the_mean_gradients_of_the_steps() -> None:
    """One step from 0: gradients are -4 and -32, and c is their mean by samples."""
    done = run(Scaffold(), TWO_CURVATURES, ONE, rounds=1)
    assert done.state.control == pytest.approx([0.75 * -4 + 0.25 * -32])
    assert done.client_states["a"][OWN] == pytest.approx([-4.0])
    assert done.client_states["b"][OWN] == pytest.approx([-32.0])


def test_with_momentum_the_variates_are_still_mean_gradients() -> None:
    """A flat slope gives the same gradient in every step, whatever the momentum."""
    slope = {"a": Bowl(flat(1e6), curvature=1e-6)}
    training = Training(epochs=5, batch=100, lr=0.1, momentum=0.5)
    assert run(Scaffold(), slope, training, rounds=1).client_states["a"][OWN] == pytest.approx(
        [-1.0], rel=1e-3
    )


def test_a_client_that_was_not_drawn_keeps_its_variate() -> None:
    done = run(
        Scaffold(),
        TWO_CURVATURES,
        ONE,
        rounds=2,
        drop=lambda phase, round_, client: (round_, client) == (1, "b"),
    )
    assert done.client_states["b"][OWN] == pytest.approx([-32.0])
    assert not np.array_equal(done.client_states["a"][OWN], [-4.0])
