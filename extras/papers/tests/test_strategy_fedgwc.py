"""FedGWC: rewards, interactions and divisions that are known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from covey.extras.papers.fedgwc import (
    FedGwc,
    FedGwcState,
    affinity,
    davies_bouldin,
    rewards,
    spectral,
)
from covey.shared.strategies.base import Phase, Reports
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.reading import folded
from tests.shared.planted import SGD, run, unequal

START = np.zeros(3, np.float32)


def reports(losses: dict[str, list[float]]) -> Reports:
    return [
        (client, Report({"model": START}, 10, {"losses": own}))
        for client, own in sorted(losses.items())
    ]


def test_one_cluster_is_fedavg() -> None:
    same_as = run(FedAvg(), unequal(), SGD, rounds=1)
    done = run(FedGwc(), unequal(), SGD, rounds=1)
    assert done.state.models[0] == pytest.approx(same_as.state.model, abs=0.2)
    assert len(done.state.models) == 1


def test_losses_near_the_mean_are_rewarded() -> None:
    """Mean 2, variance 2/3: a and c are sqrt(1.5) deviations away."""
    found = rewards(reports({"a": [1.0], "b": [2.0], "c": [3.0]}))
    far = np.exp(-0.75)
    total = 1 + 2 * far
    assert list(found.values()) == pytest.approx([far / total, 1 / total, far / total])


def test_the_share_of_the_drawn_moves_the_interaction_matrix() -> None:
    clients = "abcd"
    state = FedGwcState(START, (START,), dict.fromkeys(clients, 0), epochs=1)
    done = folded(FedGwc(), state, Phase(), reports=reports({"a": [1.0], "b": [3.0]}))
    # both are one deviation away: half of all rewards each, and half of the agents were drawn
    assert done.interaction == {one: dict.fromkeys("ab", 0.5 / 16 + 0.25) for one in "ab"}


def test_agents_that_see_others_alike_are_alike() -> None:
    """Entries of the two agents themselves do not count."""
    interaction = np.array([[9, 9, 1, 0], [5, 9, 1, 0], [1, 1, 0, 2], [0, 0, 7, 0]]) / 9
    found = affinity(interaction, gamma=4.0)
    assert found[0, 1] == pytest.approx(1)
    assert found[2, 3] == pytest.approx(np.exp(-4 * (1 / 81 + 1 / 81)))
    assert np.array_equal(found, found.T)
    assert np.diag(found).tolist() == [0, 0, 0, 0]


def test_a_cluster_divides_once_its_interactions_have_settled() -> None:
    """Two groups that reward and see their own members alone."""
    clients = [f"c{i}" for i in range(8)]
    seen = {
        one: {other: 0.25 if (i - j) % 2 == 0 else 0.0 for j, other in enumerate(clients)}
        for i, one in enumerate(clients)
    }
    state = FedGwcState(
        START,
        (START,),
        dict.fromkeys(clients, 0),
        interaction=seen,
        change={"0": 0.0},
        rest={"0": 7},
    )
    method = FedGwc(settled=0.01)
    done = folded(method, state, Phase(), reports=reports({"c0": [1.0]}))
    assert len(done.models) == 2
    assert {one: k for one, k in done.assign.items() if one != "c0"} == {
        one: i % 2 for i, one in enumerate(clients) if i
    }
    still = folded(FedGwc(settled=1e-9), state, Phase(), reports=reports({"c0": [1.0]}))
    assert len(still.models) == 1


def test_the_number_of_clusters_has_the_smallest_davies_bouldin_index() -> None:
    blocks = np.asarray(np.kron(np.eye(3), np.ones((4, 4))) + 0.001, np.float64)
    labels = spectral(blocks, 5, seed=1)
    assert labels is not None
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert spectral(blocks, 5, seed=1, below=0.0) is None


def test_the_davies_bouldin_index_is_known_by_hand() -> None:
    rows = np.array([[0.0], [2.0], [10.0], [14.0]])
    assert davies_bouldin(rows, np.array([0, 0, 1, 1])) == pytest.approx((1 + 2) / 11)
    assert davies_bouldin(rows, np.zeros(4, np.int64)) == float("inf")
