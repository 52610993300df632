"""Fleets with data of their own are what they are called."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.kin import people, suits
from benchmarks.kin_fleets import AHEAD, PAST, PEOPLE, STRETCH
from tests.agent.real_data import data_root, real

Array = npt.NDArray[Any]


def agents_of(fleet: str, data_root: Path | None = None) -> tuple[list[Any], tuple[int, ...]]:
    owned, truth = people(fleet, 1, "natural", data_root)
    return [*owned.values()], truth


def test_three_functions_answer_otherwise_to_the_same_inputs() -> None:
    agents, truth = agents_of("values")
    assert Counter(truth) == {0: 8, 1: 8, 2: 8}

    def slopes(agent: Any) -> Array:
        found, *_ = np.linalg.lstsq(agent.features, agent.targets, rcond=None)
        return np.asarray(found / np.linalg.norm(found))

    alike = np.array([slopes(agent) for agent in agents])
    products = alike @ alike.T
    same = np.equal.outer(truth, truth)
    assert products[same].mean() > 0.8
    assert products[~same].mean() < 0.6


def test_recordings_are_dealt_evenly_and_no_window_shares_rows_with_one_that_tests() -> None:
    agents, truth = agents_of("dealt", data_root("har"))
    assert len(agents) == PEOPLE.agents
    assert not truth
    counts = np.array([np.bincount(own.targets, minlength=6) for own in agents])
    assert (np.ptp(counts, axis=0) <= 5 * STRETCH).all()
    for own in agents:
        halves = [
            {half.tobytes() for window in part for half in np.split(window, 2, axis=1)}
            for part in (own.features, own.test_features)
        ]
        assert not set.intersection(*halves)


def test_a_forecast_is_of_the_acceleration_after_its_window() -> None:
    data = real("har")
    agents, _ = agents_of("ahead", data_root("har"))
    walks = data.features[data.targets < 3, 6]
    spread = walks[:, ::2].astype(np.float64)
    mean, std = spread.mean(), spread.std()
    own = agents[0]
    first = np.flatnonzero(
        np.isclose((spread[:, 0] - mean) / std, own.features[0, 0, 0], atol=1e-4)
    )
    ahead = (spread[first, PAST + AHEAD - 1] - mean) / std
    assert np.isclose(ahead, own.targets[0], atol=1e-4).any()


def test_a_regression_has_no_row_with_a_prior() -> None:
    assert not suits("values", "fedavg, prior")
    assert suits("people", "fedavg, prior")
    assert suits("even", "fedavg, prior")
