"""Ditto on clients whose answers are known by hand."""

from __future__ import annotations

import pytest

from covey.shared.strategies.base import Training
from covey.shared.strategies.ditto import Ditto
from covey.shared.strategies.fedavg import FedAvg
from tests.bowl import Bowl, flat
from tests.shared.planted import ONE, run, unequal


def test_dittos_global_model_is_fedavgs_whatever_the_pull() -> None:
    training = Training(epochs=2, batch=8, lr=0.1)
    ours, plain = (
        run(s, unequal(), training, rounds=3).state.model for s in (Ditto(lam=0.7), FedAvg())
    )
    assert ours.tolist() == plain.tolist()


def test_dittos_personal_model_lies_between_the_own_minimum_and_the_global_model() -> None:
    locals_ = {
        "a": Bowl(flat(4, 0)),
        "b": Bowl(flat(-4, 0)),
    }  # alike many samples: the global model ends at 0
    done = run(Ditto(lam=3.0), locals_, Training(epochs=50, batch=10, lr=0.1), rounds=10)
    assert done.state.model == pytest.approx([0, 0], abs=1e-4)
    ((_, own),) = done.personal("a")
    assert own == pytest.approx([4 / (1 + 3), 0], abs=1e-3)


def test_a_client_of_ditto_that_never_trained_uses_the_global_model() -> None:
    done = run(
        Ditto(),
        {"a": Bowl(flat(4, 0)), "b": Bowl(flat(-4, 0))},
        Training(lr=0.1),
        rounds=1,
        participation=0.5,
    )
    stranger = next(client for client in ("a", "b") if client not in done.phases[0][1])
    ((_, model),) = done.personal(stranger)
    assert model.tolist() == done.state.model.tolist()


def test_dittos_personal_model_continues_from_its_last_state_in_the_second_round() -> None:
    """The global model stays at 0. Half of the way to 4 is 2; from there the gradient is -2 + 0.5 * 2 and the step 0.5."""
    clients = {"a": Bowl(flat(4, 0)), "b": Bowl(flat(-4, 0))}
    done = run(Ditto(lam=0.5), clients, ONE, rounds=2)
    ((_, own),) = done.personal("a")
    assert own == pytest.approx([2.5, 0])
