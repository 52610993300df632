"""Caps, clipping and the rules that stand in for the mean: what each gives, and what liars cannot do to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.shared.numerics import vectors
from covey.shared.numerics.averages import (
    MEAN,
    Average,
    clipped,
    expected,
    fair_weights,
    geometric_median,
    krum_order,
    lower_median,
    most_samples,
    squared_distances,
    step_norm,
)
from covey.shared.seeds import generator
from covey.shared.strategies.sums import MODEL, SumsAtHand, Term
from tests.bowl import flat

RULES = ("trimmed_mean", "median", "krum", "multi_krum", "geometric_median")


def honest(count: int, size: int = 50) -> list[vectors.Vector]:
    """Vectors around one point, a tenth apart."""
    draw = generator(7, "honest")
    middle = draw.normal(0, 1, size)
    return [(middle + draw.normal(0, 0.1, size)).astype(np.float32) for _ in range(count)]


def test_the_default_average_is_the_weighted_mean_byte_for_byte() -> None:
    pairs = [(vector, float(weight)) for weight, vector in enumerate(honest(5))]
    assert MEAN.mean(pairs).tobytes() == vectors.mean(pairs).tobytes()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scale", [10.0, 1e4, 1e17])
def test_a_fifth_of_liars_moves_no_rule_beyond_the_honest(rule: str, scale: float) -> None:
    own = honest(8)
    lies = [(-scale * vector).astype(np.float32) for vector in own[:2]]
    found = Average(rule).mean([(vector, 1.0) for vector in [*lies, *own]])  # type: ignore[arg-type]
    middle = vectors.mean([(vector, 1.0) for vector in own])
    farthest = max(step_norm(vector, middle) for vector in own)
    assert step_norm(found, middle) < 1.5 * farthest
    plain = vectors.mean([(vector, 1.0) for vector in [*lies, *own]])
    assert step_norm(plain, middle) > 3 * farthest


@pytest.mark.parametrize("rule", RULES)
def test_claimed_examples_have_no_say_in_a_rule(rule: str) -> None:
    own = honest(6)
    claims = [1e12, *[1.0] * 5]
    average = Average(rule)  # type: ignore[arg-type]
    claimed = average.mean(list(zip(own, claims, strict=True)))
    assert claimed.tobytes() == average.mean([(vector, 1.0) for vector in own]).tobytes()


def test_rules_give_the_textbook_answers() -> None:
    pairs = [(flat(value, -value), 1.0) for value in (1.0, 2.0, 3.0, 4.0, 100.0)]
    assert Average("median").mean(pairs).tolist() == [3.0, -3.0]
    assert Average("median").mean(pairs[:4]).tolist() == [2.5, -2.5]
    assert Average("trimmed_mean", trim=0.2).mean(pairs).tolist() == [3.0, -3.0]
    assert Average("trimmed_mean", trim=0.0).mean(pairs).tolist() == [22.0, -22.0]
    assert Average("krum").mean(pairs).tolist() == [2.0, -2.0]
    assert Average("multi_krum").mean(pairs).tolist() == [2.5, -2.5]


def test_the_geometric_median_of_a_line_is_its_middle_point() -> None:
    pairs = [(flat(0.0, value), 1.0) for value in (0.0, 1.0, 2.0, 10.0, 50.0)]
    found = Average("geometric_median").mean(pairs)
    assert found.tolist() == pytest.approx([0.0, 2.0], abs=1e-2)


@pytest.mark.parametrize("rule", RULES)
def test_a_vector_without_weight_does_not_count_and_two_are_averaged_alike(rule: str) -> None:
    average = Average(rule)  # type: ignore[arg-type]
    pairs = [(flat(0.0), 1.0), (flat(4.0), 3.0), (flat(1e9), 0.0)]
    assert average.mean(pairs).tolist() == [2.0]
    with pytest.raises(ValueError, match="positive weight"):
        average.mean([(flat(1.0), 0.0)])


def test_shares_let_a_report_count_in_part() -> None:
    pairs = [(flat(value), 1.0) for value in (0.0, 0.0, 10.0, 10.0)]
    for rule in ("trimmed_mean", "median", "geometric_median"):
        average = Average(rule)
        low = average.mean(pairs, shares=[1.0, 1.0, 0.01, 0.01])
        high = average.mean(pairs, shares=[0.01, 0.01, 1.0, 1.0])
        assert low.item() == pytest.approx(0.0, abs=0.1), rule
        assert high.item() == pytest.approx(10.0, abs=0.1), rule
    with pytest.raises(ValueError, match="several groups"):
        Average("krum").mean(pairs, shares=[1.0] * 4)


def sums_at_hand(average: Average, *pairs: tuple[float, float]) -> SumsAtHand:
    """The sum of (value, weight)."""
    sums = SumsAtHand(average)
    for value, weight in pairs:
        sums.add((Term("0", weight),), {MODEL: flat(value)})
    return sums


def test_a_rule_takes_the_place_of_the_mean_on_the_way_to_it() -> None:
    sums = sums_at_hand(Average("median"), (1.0, 5.0), (2.0, 0.5), (1000.0, 0.5))
    assert sums.moved("0", flat(10.0), 1.5).tolist() == [10.0 + 1.5 * (2.0 - 10.0)]
    start = flat(10.0)
    assert sums_at_hand(Average("median")).moved("0", start, 1.5) is start


def test_a_rule_counts_the_shares_of_reports_that_are_in_several_sums() -> None:
    """Nine tenths of the first and third reports belong elsewhere: the trim takes them, not the second."""
    values, shares = (0.0, 1.0, 9.0, 10.0), (1.0, 1.0, 0.1, 0.1)
    rule = Average("trimmed_mean", trim=0.3)
    sums = SumsAtHand(rule)
    for value, share in zip(values, shares, strict=True):
        sums.add((Term("0", 1.0, share=share),), {MODEL: flat(value)})
    pairs = [(flat(value), 1.0) for value in values]
    found = sums.mean("0", otherwise=flat(0.0)).item()
    assert found == rule.mean(pairs, shares).item()
    assert found != rule.mean(pairs).item()


def test_the_lower_median_of_two_is_the_smaller() -> None:
    assert lower_median([5.0, 1e12]) == 5.0
    assert lower_median([3.0, 1.0, 2.0]) == 2.0
    with pytest.raises(ValueError, match="no values"):
        lower_median([])


def test_claims_are_capped_by_the_median() -> None:
    assert most_samples([100, 200, 10**12], 10.0) == 2000
    assert most_samples([100, 10**12], 10.0) == 1000
    assert most_samples([0, 0], 10.0) is None
    assert most_samples([100], None) is None


@given(
    weights=st.lists(st.floats(0, 1e15), min_size=1, max_size=40),
    share=st.sampled_from([0.05, 0.2, 0.5]),
    data=st.data(),
)
def test_no_weight_is_more_than_a_share_or_twice_an_equal_one(
    weights: list[float], share: float, data: st.DataObject
) -> None:
    fair = fair_weights(weights, share)
    positive = [weight for weight in fair if weight > 0]
    if positive:
        most = max(share, 2 / len(positive))
        assert max(fair) <= most * math.fsum(fair) * (1 + 1e-9)
    assert fair_weights(fair, share) == pytest.approx(fair), "once is enough"
    limit = max(fair)
    assert fair == [min(weight, limit) for weight in weights]
    order = data.draw(st.permutations(range(len(weights))))
    assert fair_weights([weights[i] for i in order], share) == [fair[i] for i in order]


def test_weights_within_their_shares_stay_as_they_are() -> None:
    assert fair_weights([10.0] * 10 + [1.0] * 10, 0.2) == [10.0] * 10 + [1.0] * 10
    assert fair_weights([1e12, 1.0], 0.2) == [1e12, 1.0], "of two, neither is the liar"
    assert fair_weights([1e12, *[1.0] * 19], 0.2) == [pytest.approx(4.75), *[1.0] * 19]
    assert fair_weights([1e12, 1.0, 1.0], 0.2) == [pytest.approx(4.0), 1.0, 1.0]
    assert fair_weights([1e12, 1.0, 1.0], None) == [1e12, 1.0, 1.0]


def test_a_mean_and_the_way_to_it_have_fair_weights() -> None:
    pairs = [(flat(value), weight) for value, weight in ((0.0, 1.0), (0.0, 1.0), (3.0, 1e12))]
    assert Average(share=0.2).mean(pairs).tolist() == [2.0]
    assert Average().mean(pairs).tolist() == [3.0]
    sums = sums_at_hand(Average(share=0.2), (0.0, 0.1), (0.0, 0.1), (3.0, 9.8))
    assert sums.moved("0", flat(1.0), 10.0).item() == pytest.approx(1.0 + 10.0 * (2.0 - 1.0))


def test_a_clipped_step_keeps_its_direction_and_a_short_one_its_bytes() -> None:
    base, vector = flat(1.0, 1.0), flat(4.0, 5.0)
    assert step_norm(vector, base) == 5.0
    assert clipped(vector, base, 5.0) is vector
    assert clipped(vector, base, 1.0).tolist() == pytest.approx([1.6, 1.8])
    assert clipped(flat(3.0, 4.0), None, 1.0).tolist() == pytest.approx([0.6, 0.8])
    assert step_norm(clipped(flat(3e38, -3e38), base, 2.0), base) == pytest.approx(2.0, rel=1e-6)


def test_distances_between_near_vectors_survive_a_far_one() -> None:
    near = [flat(1.0, 2.0), flat(1.0, 2.001), flat(3e38, 3e38)]
    assert squared_distances(near)[0, 1] == pytest.approx(1e-6, rel=1e-3)
    assert krum_order([*near, flat(1.0, 2.002)], 0.25)[-1] == 2


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=9), st.sampled_from(RULES))
def test_an_average_stays_within_its_values_and_is_the_same_twice(
    values: list[float], rule: str
) -> None:
    average = Average(rule)  # type: ignore[arg-type]
    pairs = [(flat(value), 1.0) for value in values]
    found = average.mean(pairs)
    assert found.tobytes() == average.mean(pairs).tobytes()
    slack = 1e-6 * max(map(abs, values)) + 1e-30
    assert min(values) - slack <= found.item() <= max(values) + slack
    assert math.isfinite(found.item())


def test_krum_sums_the_distances_to_n_minus_f_minus_2_neighbours_and_no_more() -> None:
    """Five reports, one liar expected: two neighbours. With three, the third report would be first."""
    places = krum_order([flat(x) for x in (0, 1, 2.1, 4, 100)], liars=0.2)
    assert places[0] == 1


@pytest.mark.parametrize(("count", "liars"), [(5, 1), (6, 2), (7, 2), (11, 3), (15, 3)])
def test_a_fifth_of_the_reports_is_rounded_up(count: int, liars: int) -> None:
    assert expected(0.2, count, most=count) == liars


def test_the_geometric_median_is_where_unit_vectors_to_the_reports_cancel() -> None:
    """The condition of the least sum of distances; a weight of 2 counts as two equal reports."""
    points = [flat(0, 0), flat(4, 0), flat(0, 3), flat(5, 6)]
    weights = np.array([1.0, 1.5, 1.0, 0.5])
    centre = geometric_median(points, weights)
    pulls = [
        w * (x - centre) / np.linalg.norm(x - centre) for x, w in zip(points, weights, strict=True)
    ]
    assert np.abs(np.sum(pulls, axis=0)).max() < 1e-3
