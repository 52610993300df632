"""How much each candidate counts in what a device uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.extras.judge.mixture import (
    FEWEST,
    ChosenMixture,
    FleetWeights,
    Judged,
    chosen,
    fitted,
    fitted_alone,
    fleet_weights,
)
from covey.shared.candidate_names import NEAR, NONE, SERVED, in_words

Case = tuple[dict[str, npt.NDArray[np.float64]], npt.NDArray[Any], npt.NDArray[np.int64]]
KINDS = ("classes", "values", "labels", "forecasts")


def case(seed: int, kind: str, n: int, count: int) -> Case:
    """Answers of some candidates, of which each is nearer to the truth than the one before it, to targets in units."""
    draw = np.random.default_rng(seed)
    units = np.sort(draw.integers(0, max(n // 2, 1), n))
    noise = [draw.standard_normal((n, 3)) for _ in range(count)]
    if kind == "classes":
        truth: npt.NDArray[Any] = draw.integers(0, 3, n)
        scores = [2 * place * np.eye(3)[truth] / count + one for place, one in enumerate(noise)]
        found = [np.exp(one) / np.exp(one).sum(axis=1, keepdims=True) for one in scores]
    elif kind == "labels":
        truth = draw.random((n, 3)) < 0.4
        found = [
            1 / (1 + np.exp(-(place * (truth - 0.5) + one))) for place, one in enumerate(noise)
        ]
    else:
        steps = 3 if kind == "forecasts" else 1
        values = draw.standard_normal((n, steps)).astype(np.float32)
        found = [values + one[:, :steps] / (place + 1) for place, one in enumerate(noise)]
        truth = values if steps > 1 else values[:, 0]
    names = (NONE, SERVED, NEAR, "home-1", "home-5", "home-20")[:count]
    return dict(zip(names, found, strict=True)), truth, units


cases = st.builds(
    case, st.integers(0, 10_000), st.sampled_from(KINDS), st.integers(1, 80), st.integers(1, 6)
)


def total(judged: Judged, weights: dict[str, float]) -> float:
    return float(judged.losses(weights).sum())


@given(cases)
def test_on_its_own_rows_a_mixture_is_as_good_as_the_best_single_candidate(given_: Case) -> None:
    judged = Judged.of(*given_)
    best = min(total(judged, {name: 1.0}) for name in judged.names)
    assert total(judged, fitted_alone(judged)) <= best * (1 + 1e-4) + 1e-6


@given(cases, st.booleans())
def test_weights_are_on_the_simplex_and_the_same_each_time(given_: Case, knows: bool) -> None:
    fleet = {SERVED: 0.7, "home-5": 0.3} if knows else None
    judged = Judged.of(*given_)
    weights = fitted(judged, fleet)
    assert set(weights) == set(judged.names)
    assert min(weights.values()) >= 0
    assert sum(weights.values()) == pytest.approx(1)
    assert fitted(Judged.of(*given_), fleet) == weights
    used = chosen(judged, judged.names, FleetWeights(fleet, gains=True) if fleet else None).weights
    assert 1 <= len(used) <= 3
    assert sum(used.values()) == pytest.approx(1)


@given(cases)
def test_the_order_of_candidates_changes_nothing(given_: Case) -> None:
    answers, truth, units = given_
    there = fitted(Judged.of(answers, truth, units))
    back = fitted(Judged.of(dict(reversed(answers.items())), truth, units))
    assert back == pytest.approx(there, abs=2e-3)


def repeated(given_: Case, counts: npt.NDArray[np.int64]) -> Judged:
    """Each sample as often as its count; copies are one unit."""
    answers, truth, _ = given_
    rows = np.repeat(np.arange(len(truth)), counts)
    return Judged.of({name: one[rows] for name, one in answers.items()}, truth[rows], rows)


@given(cases, st.integers(2, 9), st.integers(0, 99))
def test_samples_of_a_class_that_are_repeated_choose_as_with_weights(
    given_: Case, times: int, seed: int
) -> None:
    answers, truth, _ = given_
    n = len(truth)
    of_class = (
        truth == 0 if truth.dtype.kind == "i" else np.random.default_rng(seed).random(n) < 0.2
    )
    counts = np.where(of_class, times, 1)
    once = repeated(given_, np.ones(n, np.int64))
    weights = counts * n / counts.sum()
    width = len(once.shares) // n
    weighted = replace(once, shares=np.repeat(weights, width) / width)
    many = repeated(given_, counts)
    names = [name for name in answers if name != NONE] or [NONE]
    assert fitted(many.only(names)) == pytest.approx(fitted(weighted.only(names)), abs=1e-3)
    best = {names[-1]: 1.0}
    apart = (once.losses({NONE: 1.0}) - once.losses(best)).reshape(n, width).mean(axis=1)
    gain, error = many.gain(best)
    assert gain == pytest.approx(np.average(apart, weights=weights), abs=1e-9)
    if n > 1:
        variance = np.sum((weights * (apart - gain)) ** 2) / n / (n - 1)
        assert error == pytest.approx(np.sqrt(variance), abs=1e-9)


@given(cases, st.integers(2, 6))
def test_a_log_that_is_appended_again_changes_nothing(given_: Case, times: int) -> None:
    once, many = (repeated(given_, np.full(len(given_[1]), count)) for count in (1, times))
    assert fitted(many) == pytest.approx(fitted(once), abs=1e-3)
    one, other = (chosen(judged, judged.names) for judged in (once, many))
    assert one.units == other.units
    assert (other.gain, other.error) == pytest.approx((one.gain, one.error), abs=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_two_candidates_that_err_elsewhere_are_mixed_and_a_bad_one_is_not(kind: str) -> None:
    answers, truth, units = case(3, kind, 400, 6)
    best = answers["home-20"]
    mirrored = 2 * truth.reshape(best.shape) - best if kind in ("values", "forecasts") else best
    judged = Judged.of({**answers, "soup": mirrored}, truth, units)
    weights = fitted(judged)
    assert {"home-20", "soup"} == set(sorted(weights, key=lambda name: -weights[name])[:2])
    if kind in ("values", "forecasts"):
        assert weights["home-20"] == pytest.approx(weights["soup"], abs=0.02)
        assert total(judged, fitted_alone(judged)) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_that_answer_alike_share_what_the_prior_gives_them(kind: str) -> None:
    answers, truth, units = case(1, kind, 50, 1)
    alike = {SERVED: answers[NONE], "home-1": answers[NONE]}
    exact, zeros = np.zeros(50, np.float32), np.zeros((50, 1))
    for judged in (
        Judged.of(alike, truth, units),
        Judged.of(dict.fromkeys(alike, zeros), exact, units),
    ):
        assert fitted(judged) == pytest.approx({SERVED: 0.5, "home-1": 0.5}, abs=1e-4)
    nothing = Judged.of({k: a[:0] for k, a in alike.items()}, truth[:0], units[:0])
    assert fitted(nothing) == {SERVED: 0.5, "home-1": 0.5}


# -- the prior ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_few_units_leave_the_weights_near_the_prior_and_many_do_not(kind: str) -> None:
    fleet = {NONE: 0.5, SERVED: 0.5}
    few = fitted(Judged.of(*case(1, kind, 4, 4)), fleet)
    many = fitted(Judged.of(*case(1, kind, 4000, 4)), fleet)
    assert few[NONE] + few[SERVED] > 0.5
    assert many["home-1"] > 0.5


def test_a_prior_of_values_is_as_many_units_with_the_answers_of_its_mixture() -> None:
    answers, truth, _ = case(5, "values", 60, 4)
    names, fleet = list(answers), dict(zip(answers, (0.1, 0.2, 0.3, 0.4), strict=True))
    mixed = np.sum([fleet[name] * answers[name] for name in names], axis=0)
    found = fitted(Judged.of(answers, truth, np.arange(60)), fleet)
    # 20 further units, each made of all samples: their answers, with the prior's for a target
    twice = {name: np.concatenate([one, one]) for name, one in answers.items()}
    targets = np.concatenate([truth, mixed.ravel()]).astype(np.float64)
    judged = Judged.of(twice, targets, np.arange(120))
    shares = np.repeat([1.0, 20 / 60], 60)
    weights = np.array([found[name] for name in names])

    def cost(w: npt.NDArray[np.float64]) -> float:
        return float(shares @ (judged.found @ w) ** 2)

    for one in np.eye(4):
        assert cost(weights) <= cost(0.999 * weights + 0.001 * one) + 1e-6


def test_the_mean_of_the_fleet_is_over_those_that_have_a_candidate() -> None:
    of_agents = [{NONE: 0.2, SERVED: 0.8}, {NONE: 0.0, SERVED: 0.6, "trees": 0.4}]
    found = fleet_weights(of_agents)
    expected = {NONE: 0.1 / 1.2, SERVED: 0.7 / 1.2, "trees": 0.4 / 1.2}
    assert found == pytest.approx(expected, abs=1e-5)
    assert fleet_weights([]) == {}
    assert list(fleet_weights(reversed(of_agents))) == list(found)


# -- what is used ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_no_better_than_the_constant_is_not_used(kind: str) -> None:
    answers, truth, units = case(2, kind, 200, 5)
    constant = np.full_like(answers[NONE], np.mean(truth) if kind != "classes" else 1 / 3)
    noise = {name: np.roll(one, 1, axis=0) for name, one in answers.items()}
    judged = Judged.of({**noise, NONE: constant}, truth, units)
    assert chosen(judged, judged.names).uses_none
    assert chosen(
        judged, judged.names, FleetWeights({SERVED: 1.0}, gains=True), single=True
    ).uses_none
    good = Judged.of({**answers, NONE: constant}, truth, units)
    assert not chosen(good, good.names).uses_none


def test_values_that_are_far_off_have_no_weight_and_spoil_nothing() -> None:
    answers, truth, units = case(1, "values", 200, 4)
    constant = np.full_like(answers[NONE], truth.mean())
    wild = {NONE: constant, SERVED: answers[SERVED] * 1e9, "home-1": answers["home-1"]}
    used = chosen(
        Judged.of(wild, truth, units), list(wild), FleetWeights({SERVED: 1.0}, gains=True)
    )
    assert used.weights == {"home-1": 1.0} or SERVED not in used.weights
    broken = {**wild, SERVED: np.full_like(constant, np.nan)}
    assert SERVED not in chosen(Judged.of(broken, truth, units), list(broken)).weights


def test_an_agent_with_few_units_uses_the_weights_of_the_fleet() -> None:
    answers, truth, _ = case(1, "classes", FEWEST - 1, 6)
    fleet = FleetWeights({SERVED: 0.5, "home-20": 0.3, "home-5": 0.1, "trees": 0.1}, gains=True)
    names = [name for name in answers if name != NONE]
    few = Judged.of({name: answers[name] for name in names}, truth, np.arange(FEWEST - 1))
    expected = {SERVED: 5 / 9, "home-20": 3 / 9, "home-5": 1 / 9}
    assert chosen(few, names, fleet).weights == pytest.approx(expected, abs=1e-5)
    assert chosen(None, names, fleet).weights == pytest.approx(expected, abs=1e-5)
    for judged in (None, few):
        assert chosen(judged, names, fleet, single=True).weights == {SERVED: 1.0}
    assert chosen(None, names) == ChosenMixture({SERVED: 1.0})
    assert chosen(None, names, replace(fleet, gains=False)) == ChosenMixture({SERVED: 1.0})


@pytest.mark.parametrize(("right", "uses_none"), [(0.6, False), (0.0, True)])
def test_few_units_overrule_the_fleet_only_where_the_constant_is_clearly_better(
    right: float, uses_none: bool
) -> None:
    truth = np.arange(10) % 2
    shares = np.where(np.arange(10) < 10 * right, 0.8, 0.2)
    served = np.where(np.eye(2)[truth] > 0, shares[:, None], 1 - shares[:, None])
    few = Judged.of({NONE: np.full((10, 2), 0.5), SERVED: served}, truth, np.arange(10))
    fleet = FleetWeights({SERVED: 1.0}, gains=True)
    assert chosen(few, few.names, fleet).uses_none == uses_none


def more_certain(seed: int, n: int) -> Judged:
    """The served model, and one that is more certain of everything and wrong a little more often."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, 2, n)
    answers = {NONE: np.full((n, 2), 0.5)}
    for name, share, right in ((SERVED, 0.65, 0.92), ("home-20", 0.9, 0.88)):
        says = np.where(draw.random(n) < right, truth, 1 - truth)
        answers[name] = np.where(np.eye(2)[says] > 0, share, 1 - share)
    return Judged.of(answers, truth, np.arange(n))


def test_a_candidate_that_is_only_more_certain_is_not_used_in_place_of_the_served_one() -> None:
    fleet = [more_certain(seed, 60) for seed in range(20)]
    weights = [fitted(one) for one in fleet]
    assert np.mean([one["home-20"] for one in weights]) > 0.5, "by the likelihood alone it would be"
    votes = [vote for one, w in zip(fleet, weights, strict=True) if (vote := one.vote(w))]
    known = FleetWeights.of(weights, votes)
    assert not known.gains
    used = [chosen(one, one.names, known).weights for one in fleet]
    assert sum(one == {SERVED: 1.0} for one in used) > 15


def test_a_device_that_gains_clearly_does_not_wait_for_the_fleet() -> None:
    judged = Judged.of(*case(1, "classes", 200, 6))
    for fleet in (None, FleetWeights({SERVED: 1.0}, gains=False)):
        assert chosen(judged, judged.names, fleet).weights.get("home-20", 0) > 0.2


def test_one_agent_has_one_vote_on_whether_mixtures_are_better() -> None:
    honest = [(-0.01, 1e-5)] * 9
    assert not FleetWeights.of([{SERVED: 1.0}], [*honest, (1e9, 1e-9)]).gains
    assert FleetWeights.of([{SERVED: 1.0}], [(0.01, 1e-5)] * 9).gains
    assert not FleetWeights.of([], []).gains


def test_alone_the_best_candidate_is_used() -> None:
    answers, truth, units = case(1, "values", 200, 5)
    judged = Judged.of(answers, truth, units)
    assert chosen(
        judged, judged.names, FleetWeights({SERVED: 1.0}, gains=True), single=True
    ).weights == {"home-5": 1.0}


def test_people_read_what_is_used() -> None:
    weights = {"near": 0.1, SERVED: 0.6, "home-20": 0.295, "home-1": 0.005}
    assert in_words(weights) == (
        "60 % served, 30 % after 20 epochs at home, 10 % neighbours, 0 % after 1 epoch at home"
    )
