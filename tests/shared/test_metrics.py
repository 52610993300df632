"""Metrics: by hand, and against scikit-learn where it defines the same thing."""

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


def test_a_matching_names_a_row_for_each_column_and_takes_none_twice() -> None:
    assert matching([[5, 2], [0, 0], [1, 9]]) == (
        2,
        1,
    )  # the first column would rather have row 1 too
    with pytest.raises(ValueError, match="for each column"):
        matching([[1, 2]])
