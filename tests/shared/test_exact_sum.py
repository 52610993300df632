"""Sums that do not depend on the order of their terms, on shards, or on the shape of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.shared.numerics.exact_sum import LARGEST, ExactMean, ExactSum, nearest, weighted_moved
from covey.shared.numerics.vectors import Vector, mean
from tests.night import examples

Term = tuple[Vector, float]

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
weights = st.one_of(st.integers(0, 100_000).map(float), st.floats(-1e9, 1e9))
vectors = st.lists(finite, min_size=3, max_size=3).map(lambda row: np.array(row, np.float32))
terms_of_length_3 = st.lists(st.tuples(vectors, weights), min_size=1, max_size=12)


def total_of(terms: Sequence[Term]) -> ExactSum:
    total = ExactSum(3)
    for vector, weight in terms:
        total.add(vector, weight)
    return total


def in_a_random_tree(terms: Sequence[Term], source: np.random.Generator) -> ExactSum:
    """The sum of the terms in random order, over random shards that are merged in a random tree."""
    shards = [ExactSum(3) for _ in range(source.integers(1, 7))]
    for place in source.permutation(len(terms)):
        vector, weight = terms[place]
        shard = shards[source.integers(len(shards))]
        shard.add(vector, weight)
    while len(shards) > 1:
        merged = shards.pop(source.integers(len(shards)))
        into = shards[source.integers(len(shards))]
        into.merge(merged)
    return shards[0]


def parts_as_bytes(total: ExactSum) -> dict[int, bytes]:
    return {exponent: part.tobytes() for exponent, part in total.parts().items()}


@settings(max_examples=examples(33), deadline=None)
@given(terms=terms_of_length_3, seed=st.integers(0, 2**32))
def test_the_sum_has_the_same_bytes_in_any_order_on_any_shards_and_in_any_tree(
    terms: list[Term], seed: int
) -> None:
    in_order = total_of(terms)
    in_tree = in_a_random_tree(terms, np.random.default_rng(seed))
    assert in_tree.value().tobytes() == in_order.value().tobytes()
    assert parts_as_bytes(in_tree) == parts_as_bytes(in_order)


def test_hundreds_of_orders_shards_and_trees_of_a_cohort_give_the_same_bytes() -> None:
    source = np.random.default_rng(4)
    cohort: list[Term] = []
    for _ in range(20):
        vector = source.normal(scale=0.05, size=3).astype(np.float32)
        cohort.append((vector, float(source.uniform())))
    expected = total_of(cohort).value().tobytes()
    plain = set()
    for seed in range(300):
        shuffling = np.random.default_rng(seed)
        assert in_a_random_tree(cohort, shuffling).value().tobytes() == expected
        ordinary = np.zeros(3)
        for place in shuffling.permutation(len(cohort)):
            vector, weight = cohort[place]
            ordinary += vector * np.float64(weight)
        plain.add(ordinary.tobytes())
    assert len(plain) > 1, "an ordinary sum must depend on these orders, or the test shows nothing"


@settings(max_examples=examples(33), deadline=None)
@given(terms=terms_of_length_3)
def test_the_error_of_a_sum_is_that_of_one_rounding_of_each_term(terms: list[Term]) -> None:
    value = total_of(terms).value()
    for place in range(3):
        exact = Fraction(0)
        allowed = Fraction(0)
        for vector, weight in terms:
            largest = float(np.abs(vector).max()) * abs(weight)
            exact += Fraction(float(vector[place]) * weight)
            allowed += Fraction(1, 2**65) + Fraction(largest) / 2**41 * (largest < 2.0**-24)
        last_place = Fraction(float(np.spacing(abs(value[place]))))
        assert abs(Fraction(float(value[place])) - exact) <= allowed + last_place


@settings(max_examples=examples(16), deadline=None)
@given(terms=terms_of_length_3)
def test_the_parts_of_a_sum_make_the_same_sum_in_another_process(terms: list[Term]) -> None:
    first = total_of(terms[:1])
    rest = total_of(terms[1:])
    received = ExactSum.from_parts(3, rest.parts())
    first.merge(received)
    assert parts_as_bytes(first) == parts_as_bytes(total_of(terms))


def test_thousands_of_terms_carry_and_stay_exact() -> None:
    source = np.random.default_rng(1)
    vector = source.normal(size=50).astype(np.float32)
    total = ExactSum(50)
    for _ in range(5000):
        total.add(vector, 60_000.0)
    assert np.array_equal(total.value(), vector.astype(np.float64) * 60_000 * 5000)


def test_terms_that_cancel_leave_the_small_one() -> None:
    total = ExactSum(1)
    total.add(np.array([1.0], np.float32), 1e30)
    total.add(np.array([2.0**-40], np.float32), 1.0)
    total.add(np.array([-1.0], np.float32), 1e30)
    assert total.value()[0] == 2.0**-40


@pytest.mark.parametrize("weight", [1.0, 1e-30, 1e-200])
def test_a_mean_of_weights_of_any_size_is_the_plain_mean(weight: float) -> None:
    source = np.random.default_rng(2)
    pairs = []
    weighted = ExactMean(1000)
    for number in range(1, 8):
        vector = source.normal(scale=0.05, size=1000).astype(np.float32)
        pairs.append((vector, float(number)))
        weighted.add(vector, number * weight)
    np.testing.assert_allclose(weighted.mean(), mean(pairs), rtol=2e-7)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0, 1.5])
def test_a_way_to_the_mean_starts_at_the_start_and_is_rounded_once(share: float) -> None:
    start, first, second = (np.array(v, np.float32) for v in ([8, -4], [0, 3], [4, 6]))
    total = ExactMean(2)
    total.add(first, 3.0)
    total.add(second, 1.0)
    expected = [8 + share * (1 - 8), -4 + share * (3.75 + 4)]
    assert total.moved(start, share).tolist() == expected
    assert weighted_moved([(first, 3.0), (second, 1.0)], start, share).tolist() == expected


def test_a_merged_mean_has_the_bytes_of_one_that_saw_everything() -> None:
    source = np.random.default_rng(3)
    everything = ExactMean(100)
    shards = [ExactMean(100), ExactMean(100)]
    for number in range(40):
        vector = source.normal(size=100).astype(np.float32)
        weight = float(source.integers(1, 600))
        everything.add(vector, weight)
        shards[number % 2].add(vector, weight)
    first, second = shards
    second.merge(first)
    assert second.mean().tobytes() == everything.mean().tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_term_that_is_not_finite_is_refused_and_changes_nothing(value: float) -> None:
    total = ExactSum(2)
    total.add(np.array([1.0, 2.0], np.float32), 1.0)
    with pytest.raises(ValueError, match="cannot add a term"):
        total.add(np.array([1.0, value], np.float32), 1.0)
    with pytest.raises(ValueError, match="cannot add a term"):
        total.add(np.array([1.0, 1.0], np.float32), LARGEST)
    assert total.value().tolist() == [1.0, 2.0]


def test_parts_that_are_not_units_of_a_grid_are_refused() -> None:
    good = total_of([(np.array([1.0, 2.0, 3.0], np.float32), 0.3)]).parts()
    for exponent, part in good.items():
        with pytest.raises(ValueError, match="expected float64"):
            ExactSum.from_parts(3, {exponent + 1: part})
        with pytest.raises(ValueError, match="expected float64"):
            ExactSum.from_parts(2, {exponent: part})
        with pytest.raises(ValueError, match="not units"):
            ExactSum.from_parts(3, {exponent: part + 2.0 ** (exponent - 1)})
        with pytest.raises(ValueError, match="not units"):
            ExactSum.from_parts(3, {exponent: np.full(3, np.nan)})


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive sum of weights"):
        ExactMean(3).mean()
    with pytest.raises(ValueError, match="not negative"):
        ExactMean(3).add(np.zeros(3, np.float32), -1.0)
    with pytest.raises(ValueError, match="shape"):
        ExactMean(3).add(np.zeros(4, np.float32), 1.0)


def test_a_value_next_to_a_large_one_is_rounded_to_a_multiple_of_two_to_the_minus_64() -> None:
    values = np.array([2.0**-24, 1.5 * 2.0**-65, 0.99 * 2.0**-65, 1e-21], np.float32)
    total = ExactSum(4)
    total.add(values, 1.0)
    assert total.value().tolist() == [2.0**-24, 2.0**-64, 0.0, 0.0]


def test_small_values_among_themselves_keep_41_digits_of_the_largest() -> None:
    values = np.array([0.99 * 2.0**-24, 1e-17, 1e-19], np.float32)
    total = ExactSum(3)
    total.add(values, 1.0)
    errors = np.abs(total.value() - values.astype(np.float64))
    assert (errors <= 2.0**-41 * values[0]).all()
    assert total.value()[2] != 0.0


def test_more_terms_than_float64_has_room_for_are_carried_in_time() -> None:
    weight = 2.0**16 - 2.0**-24  # an odd number of units of the coarsest grid, just below 2^40
    number = 2**13 + 2**10 + 1
    one = np.ones(1, np.float32)
    total = ExactSum(1)
    for _ in range(number):
        total.add(one, weight)
    exact = sum((Fraction(float(part[0])) for part in total.parts().values()), Fraction(0))
    assert exact == number * Fraction(weight)


def test_of_two_multiples_that_are_equally_near_the_upper_one_is_taken() -> None:
    halves = np.array([0.5, 1.5, -0.5, -1.5], np.float64)
    assert nearest(halves, 0).tolist() == [1.0, 2.0, 0.0, -1.0]
