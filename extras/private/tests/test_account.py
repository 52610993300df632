"""The account against figures that others have published, and against the other accountants of the same library."""

from __future__ import annotations

import math

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld, rdp
from scipy.stats import norm

from covey.extras.private.private_sums import epsilon

DELTA = 1e-5


def exact_delta(multiplier: float, epsilon: float) -> float:
    """Balle and Wang 2018, theorem 5: the delta of one Gaussian mechanism of sensitivity 1."""
    high = norm.cdf(0.5 / multiplier - epsilon * multiplier)
    low = norm.cdf(-0.5 / multiplier - epsilon * multiplier)
    return float(high - math.exp(epsilon) * low)


def test_the_published_figure_of_dp_sgd_is_found_again() -> None:
    """Rate 0.01, noise 1.1, 10 000 steps, delta 1e-5: 5.63 by the RDP accountants of TensorFlow Privacy and Opacus."""
    accountant = rdp.RdpAccountant()
    accountant.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)), 10_000)
    assert accountant.get_epsilon(DELTA) == pytest.approx(5.632, abs=0.001)


@pytest.mark.parametrize(("multiplier", "rounds"), [(1.0, 1), (1.0, 10), (2.0, 50), (0.5, 3)])
def test_plain_gaussians_compose_by_the_formula(multiplier: float, rounds: int) -> None:
    found = epsilon([(multiplier, rounds)], DELTA)
    assert found is not None
    assert exact_delta(multiplier / math.sqrt(rounds), found) == pytest.approx(DELTA, rel=1e-3)


def test_signatures_and_rounds_compose_to_what_the_librarys_accountants_say() -> None:
    found = epsilon([(2.0, 20), (0.7, 1)], DELTA)
    assert found is not None
    tight = pld.PLDAccountant()
    loose = rdp.RdpAccountant()
    for accountant in (tight, loose):
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(2.0), 20))
        accountant.compose(GaussianDpEvent(0.7))
    assert found == pytest.approx(tight.get_epsilon(DELTA), rel=2e-3)
    assert found <= loose.get_epsilon(DELTA)


def test_nothing_released_is_epsilon_zero_and_a_release_without_noise_has_no_bound() -> None:
    assert epsilon([(1.0, 0), (0.0, 0)], DELTA) == 0.0
    assert epsilon([(0.0, 1)], DELTA) is None
    assert epsilon([(1.0, 5), (0.0, 1)], DELTA) is None
