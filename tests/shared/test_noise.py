"""Noise: normal numbers that only a holder of the key can repeat."""

from __future__ import annotations

import numpy as np
from scipy import stats

from covey.shared.numerics.vectors import BLOCK
from covey.shared.privacy.settings import Noise, new_key


def test_the_same_key_gives_the_same_numbers_and_another_key_others() -> None:
    key = new_key()
    assert np.array_equal(Noise(key).normal(101), Noise(key).normal(101))
    assert not np.array_equal(Noise(key).normal(101), Noise(new_key()).normal(101))


def test_two_draws_from_one_stream_differ() -> None:
    stream = Noise.simulated(1, "test")
    assert not np.array_equal(stream.normal(50), stream.normal(50))


def test_secret_noise_never_repeats() -> None:
    assert not np.array_equal(Noise.secret().normal(50), Noise.secret().normal(50))


def test_the_numbers_are_standard_normal_also_beyond_one_block() -> None:
    drawn = Noise.simulated(3, "test").normal(BLOCK + 1001)
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    assert abs(np.corrcoef(drawn[:1000], drawn[1000:2000])[0, 1]) < 0.1
    assert len(np.unique(drawn)) == drawn.size


def test_uniform_numbers_lie_in_the_unit_interval() -> None:
    drawn = Noise.simulated(4, "test").uniform(20_000)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    assert stats.kstest(drawn, "uniform").pvalue > 0.01
