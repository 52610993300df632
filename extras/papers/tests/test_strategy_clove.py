"""CLoVE on clients whose answers are known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from covey.extras.papers.clove import Clove, matched
from covey.shared.strategies.ifca import Ifca
from tests.bowl import flat
from tests.shared.planted import ONE, alternating, run, two_groups


def test_groups_come_apart_where_one_model_is_the_best_for_all() -> None:
    """Both models lie on one side of both groups: each client of IFCA takes the same one."""
    people = two_groups(spread=0.0)
    ahead, behind = np.array(flat(0, 8), np.float32), np.array(flat(0, 20), np.float32)
    together = run(Ifca(n_clusters=2, initial="random"), people, ONE, ahead, behind, rounds=1)
    assert set(together.state.assign.values()) == {0}
    apart = run(Clove(n_clusters=2), people, ONE, ahead, behind, rounds=1)
    found = apart.state.assign
    assert len(set(found.values())) == 2
    assert all((found[one] == found["c00"]) == (k == 0) for one, k in alternating(people).items())


def test_each_cluster_ends_at_its_own_minimum() -> None:
    done = run(Clove(n_clusters=2), two_groups(spread=0.0), ONE, rounds=8)
    ends = sorted(float(model[0]) for model in done.state.models)
    assert ends == pytest.approx([-5, 5], abs=0.2)


def test_clusters_are_matched_to_models_at_the_least_sum_of_losses() -> None:
    """The first model is the best for all four: the second one is less of a loss for the last two."""
    losses = {"a": [1.0, 3.0], "b": [1.0, 3.1], "c": [2.0, 2.5], "d": [2.0, 2.4]}
    assert matched(losses, seed=1) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_alike_clients_and_a_single_one_train_one_model() -> None:
    assert matched({"a": [2.0, 1.0], "b": [2.0, 1.0], "c": [2.0, 1.0]}, seed=1) == dict.fromkeys(
        "abc", 1
    )
    assert matched({"a": [2.0, 1.0, 3.0]}, seed=1) == {"a": 1}


def test_a_client_that_never_trained_takes_the_model_with_its_lowest_loss() -> None:
    people = two_groups(spread=0.0)
    done = run(
        Clove(n_clusters=2),
        people,
        ONE,
        rounds=6,
        drop=lambda phase, round_, client: client == "c01",
    )
    ((_, model),) = done.personal("c01")
    assert model[0] < 0


def test_a_loss_that_is_not_finite_is_a_large_one() -> None:
    losses = {"a": [1e100, 1.0], "b": [1e100, 1.0], "c": [1.0, 1e100], "d": [1.0, 1e100]}
    assert matched(losses, seed=1) == {"a": 1, "b": 1, "c": 0, "d": 0}
