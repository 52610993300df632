"""Metrics: by hand, and against scikit-learn where it defines the same thing."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from covey.shared.numerics.metrics import (
    accuracy,
    adjusted_rand,
    macro,
    macro_f1,
    matching,
    membership_mse,
    micro,
    mutual_information,
    purity,
)

labels = st.integers(1, 30).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n) for _ in range(2)])
)


def test_accuracy_is_the_share_of_right_classes() -> None:
    assert accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == 0.75


def test_f1_averages_over_classes_in_truth_or_predictions_and_is_0_where_undefined() -> None:
    # class 0: 2*1/(1+2); class 1: 0 hits of 1; class 2 was never true: 0; class 3 occurs nowhere and does not count
    assert macro_f1(np.array([0, 1, 0]), np.array([0, 2, 0])) == pytest.approx((1 + 0 + 0) / 3)
    assert macro_f1(np.array([0, 1]), np.array([0, 0])) == pytest.approx((2 / 3 + 0) / 2)


@given(labels)
def test_accuracy_and_f1_agree_with_scikit_learn(pair: tuple[list[int], list[int]]) -> None:
    truth, predicted = map(np.array, pair)
    assert accuracy(truth, predicted) == pytest.approx(reference.accuracy_score(truth, predicted))
    expected = reference.f1_score(truth, predicted, average="macro", zero_division=0)
    assert macro_f1(truth, predicted) == pytest.approx(expected)


def test_micro_weighs_clients_by_data_and_macro_does_not() -> None:
    assert micro([1.0, 0.0], [30, 10]) == 0.75
    assert macro([1.0, 0.0]) == 0.5


@given(labels)
def test_cluster_recovery_agrees_with_scikit_learn(pair: tuple[list[int], list[int]]) -> None:
    found, truth = pair
    assert adjusted_rand(found, truth) == pytest.approx(
        reference.adjusted_rand_score(truth, found), abs=1e-12
    )
    # scikit-learn calls the empty mutual information of a trivial partition 0 or 1 by version: only ours is specified
    if len(set(found)) > 1 or len(set(truth)) > 1:
        expected = reference.normalized_mutual_info_score(truth, found)
        assert mutual_information(found, truth) == pytest.approx(expected, abs=1e-9)


def test_cluster_recovery_of_five_clients_by_hand() -> None:
    found, truth = ["a", "a", "a", "b", "b"], [0, 0, 1, 1, 1]
    # pairs together in both: {1,2} and {4,5}; 4 in each partition; 10 in all: (2 - 1.6) / (4 - 1.6)
    assert adjusted_rand(found, truth) == pytest.approx(0.4 / 2.4)
    assert purity(found, truth) == 4 / 5
    entropy = -(0.6 * np.log(0.6) + 0.4 * np.log(0.4))
    joint = -(2 * 0.4 * np.log(0.4) + 0.2 * np.log(0.2))
    assert mutual_information(found, truth) == pytest.approx((2 * entropy - joint) / entropy)


def test_trivial_partitions_that_agree_score_1() -> None:
    for trivial in ([0, 0, 0], [0, 1, 2]):
        assert adjusted_rand(trivial, trivial) == 1.0
        assert mutual_information(trivial, trivial) == pytest.approx(1.0)
    assert mutual_information([0, 0], [5, 5]) == 1.0
    assert adjusted_rand([0, 0, 0], [0, 1, 2]) == 0.0


def test_names_of_clusters_do_not_matter() -> None:
    assert adjusted_rand(["x", "y", "y"], [1, 0, 0]) == 1.0
    assert purity(["x", "y", "y"], [1, 0, 0]) == 1.0


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="one prediction per sample"):
        accuracy(np.array([1]), np.array([1, 2]))
    with pytest.raises(ValueError, match="one prediction per sample"):
        macro_f1(np.array([]), np.array([]))
    with pytest.raises(ValueError, match="positive amount"):
        micro([1.0], [0])
    with pytest.raises(ValueError, match="empty partitions"):
        purity([], [])


@pytest.mark.parametrize(
    ("estimate", "at_7_3", "at_9_1"),
    [
        (lambda p: (0.5, 0.5), 0.08, 0.32),
        (lambda p: (float(p[0] > p[1]), float(p[1] > p[0])), 0.18, 0.02),
        (lambda p: (0.6, 0.4) if p[0] > p[1] else (0.4, 0.6), 0.02, 0.18),
    ],
    ids=["uniform", "hard majority", "always 0.6 to 0.4"],
)
def test_membership_error_has_the_reference_values(
    estimate: Any, at_7_3: float, at_9_1: float
) -> None:
    for major, expected in ((0.7, at_7_3), (0.9, at_9_1)):
        truth = [(major, 1 - major)] * 3 + [(1 - major, major)] * 2
        assert membership_mse([estimate(p) for p in truth], truth)[:2] == pytest.approx(
            (expected, expected / 2)
        )


def test_membership_error_permutes_cluster_ids_once_for_all_clients() -> None:
    truth = np.random.default_rng(0).dirichlet(np.ones(4), 9)
    error = membership_mse(shuffled := truth[:, [2, 0, 3, 1]], truth)
    assert error[:2] == pytest.approx((0, 0))
    assert np.array_equal(shuffled[:, error.permutation], truth)
    noisy = np.random.default_rng(1).dirichlet(np.ones(4), 9)
    best = min(
        float(np.mean(np.sum((noisy[:, list(o)] - truth) ** 2, axis=1)))
        for o in permutations(range(4))
    )
    assert membership_mse(noisy, truth)[0] == pytest.approx(best)
    turned = [truth[0], truth[1][::-1]]  # no single permutation corrects both
    assert membership_mse(turned, truth[:2])[0] > 0.01


def test_a_matching_names_a_row_for_each_column_and_takes_none_twice() -> None:
    assert matching([[5, 2], [0, 0], [1, 9]]) == (
        2,
        1,
    )  # the first column would rather have row 1 too
    with pytest.raises(ValueError, match="for each column"):
        matching([[1, 2]])


def test_memberships_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2\).*\(1, 3\)"):
        membership_mse([(0.5, 0.5)], [(0.2, 0.3, 0.5)])
