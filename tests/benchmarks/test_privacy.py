"""Accuracy against epsilon: the training of all agents at once against one agent by hand, and the tables of the docs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import privacy
from benchmarks.privacy import (
    DELTA,
    Agents,
    Cell,
    cells,
    measured,
    multiplier_for,
    sampled_epsilon,
    scenario,
    tables,
)
from covey.coordinator.fold.private_sums import epsilon

ROOT = Path(__file__).parents[2]
SMALL = {key: replace(setting, agents=12, rounds=2) for key, setting in privacy.SETTINGS.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "SETTINGS", SMALL)
    privacy.fleet_of.cache_clear()


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def test_a_private_step_clips_each_examples_gradient(small: None) -> None:
    plan = scenario(Cell("digits", "local", "fedavg", None, 1))
    plan = plan.model_copy(
        update={"training": plan.training.model_copy(update={"epochs": 1, "batch": 10**6})}
    )
    agents = Agents(plan, None)
    agents.rows = [
        rows[:8] for rows in agents.rows
    ]  # a batch is larger than any: everybody is always in it
    start = np.random.default_rng(0).normal(0, 0.1, agents.layout.size).astype(np.float32)
    ends = agents.train_privately([start] * 12, 0, 0.5, 0.0)
    weights = np.concatenate([start[:640].reshape(10, 64), start[640:, None]], axis=1).astype(
        np.float64
    )
    for rows, end in zip(agents.rows, ends, strict=True):
        total = np.zeros_like(weights)
        for row in rows:
            error = softmax(weights @ agents.inputs[row]) - np.eye(10)[agents.targets[row]]
            gradient = np.outer(error, agents.inputs[row])
            total += gradient * min(1.0, 0.5 / np.linalg.norm(gradient))
        wanted = weights - plan.training.lr * total / 10**6
        found = np.concatenate([end[:640].reshape(10, 64), end[640:, None]], axis=1)
        assert np.allclose(found, wanted, atol=1e-6)


@pytest.mark.usefixtures("small")
def test_a_cell_repeats_and_its_epsilon_is_that_of_the_account() -> None:
    cell = Cell("digits", "client", "fedclust", 2.0, 1, 0.1)
    one, other = measured(cell, None), measured(cell, None)
    assert one["accuracy"] == other["accuracy"]
    assert one["epsilon"] == epsilon([(2.0, 2), (0.1, 1)], DELTA)


@pytest.mark.usefixtures("small")
def test_a_local_cell_stays_below_its_target() -> None:
    found = measured(Cell("digits", "local", "fedavg", 2.0, 1), None)
    assert 1.9 < found["epsilon"] <= 2.0


def test_the_noise_for_a_target_is_the_least_that_is_enough() -> None:
    noise = multiplier_for(4.0, 0.1, 100)
    assert sampled_epsilon(noise, 0.1, 100) <= 4.0 < sampled_epsilon(0.98 * noise, 0.1, 100)


def test_the_tables_of_the_docs_are_those_of_the_record() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "privacy.json").read_text())
    known = {cell.key for data in privacy.TASKS for cell in cells(data, [1, 2, 3])}
    assert rows.keys() <= known
    book = (ROOT / "benchmarks" / "results" / "privacy.md").read_text()
    assert tables(list(rows.values())).strip() in book
