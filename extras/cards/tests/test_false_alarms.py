"""Samples that belong together, such as copies, are no shift."""

from __future__ import annotations

import numpy as np
import pytest

from covey.extras.cards import kinship
from covey.shared.numerics.units import Ties

CLASSES, VALUES, FLEETS = 5, 20, 20


def alarms(*, with_units: bool, repeats: int) -> int:
    """Of twenty fleets without any shift, those in which a test fires."""
    found = 0
    for seed in range(FLEETS):
        draw = np.random.default_rng(seed)
        centres = draw.standard_normal((CLASSES, VALUES))
        cards = []
        for agent in range(12):
            labels = np.repeat(draw.integers(0, CLASSES, 60), repeats)
            noise = np.repeat(draw.standard_normal((60, VALUES)), repeats, axis=0)
            inputs = centres[labels] + noise
            units = Ties.of(inputs).units(labels) if with_units else np.arange(len(labels))
            cards.append(
                kinship.card([inputs], labels, CLASSES, units=units, seed=seed, client=agent)
            )
        found += kinship.shifts(cards, seed, flips=499).any
    return found


@pytest.mark.parametrize("repeats", [1, 3, 10])
def test_repeated_samples_are_no_shift(repeats: int) -> None:
    assert alarms(with_units=True, repeats=repeats) <= 1


def test_samples_that_count_each_by_itself_raise_false_alarms() -> None:
    assert alarms(with_units=False, repeats=3) >= 18
