"""FedALA on clients whose answers are known by hand."""

from __future__ import annotations

import pytest

from covey.extras.papers import fedala
from covey.extras.papers.fedala import WEIGHTS, FedAla
from covey.shared.strategies.base import Training
from covey.shared.strategies.fedavg import FedAvg
from tests.bowl import Bowl, flat
from tests.shared.planted import SGD, run, same, unequal

# the head of a bowl's model is its last value; one step goes a tenth of the way
STEPS = Training(epochs=1, batch=100, lr=0.1)
APART = {"a": Bowl(flat(0, 4)), "b": Bowl(flat(0, -4))}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that reach their ends in the first steps."""
    monkeypatch.setattr(fedala, "RATE", 50.0)


def test_the_first_round_is_fedavgs() -> None:
    same(run(FedAla(), unequal(), SGD, rounds=1), run(FedAvg(), unequal(), SGD, rounds=1))


def test_an_agent_keeps_its_own_head_if_the_common_one_is_worse(quick: None) -> None:
    """Heads pull in opposite directions: the weights fall to 0, and the head continues at home."""
    done = run(FedAla(), APART, STEPS, rounds=4)
    assert done.state.model == pytest.approx([0, 0], abs=1e-6)
    assert done.client_states["a"][WEIGHTS] == pytest.approx([0])
    ((_, own),) = done.personal("a")
    assert own == pytest.approx([0, 4 * (1 - 0.9**4)], rel=1e-5)


def test_an_agent_takes_the_common_head_if_it_is_better(quick: None) -> None:
    """Alike clients of which one has more samples: the smaller one's weights stay at 1."""
    alike = {"a": Bowl(flat(0, 4), 10), "b": Bowl(flat(0, 4), 90)}
    done = run(FedAla(), alike, STEPS, rounds=3)
    assert done.client_states["a"][WEIGHTS] == pytest.approx([1])
    same(done, run(FedAvg(), alike, STEPS, rounds=3))


def test_a_client_that_never_trained_uses_the_common_model() -> None:
    done = run(FedAla(), APART, STEPS, rounds=1, drop=lambda phase, round_, client: client == "b")
    ((_, model),) = done.personal("b")
    assert model.tolist() == done.state.model.tolist()
