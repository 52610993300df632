"""Agents that mix two super-classes, and the figures of how well a run finds the mixtures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.superclasses import by_superclass, figures, membership, write_data
from covey.agent.data import load, with_test
from covey.agent.data.named import load_named
from covey.agent.data.partition import client_dataset, fleet_data
from covey.coordinator.run.options import RunOptions
from covey.extras.simulate.driver import simulate
from covey.extras.simulate.tests.device_run import here
from tests.kit.scenes import DIGITS, Scenes

TARGETS = np.arange(2000) % 10
TESTS = np.arange(500) % 10
TRUTH = {"a": (0.7, 0.3), "b": (0.3, 0.7), "c": (0.3, 0.7)}


def test_the_membership_error_is_that_of_the_agents_that_both_know() -> None:
    found = {"a": (0.4, 0.6), "b": (0.6, 0.4), "stranger": (1.0, 0.0)}
    assert membership(found, TRUTH) == pytest.approx(0.02)
    assert membership(TRUTH, TRUTH) == pytest.approx(0)


def test_clusters_stand_for_the_superclasses_that_they_know_best_together() -> None:
    # each by itself, both super-classes would take cluster 1
    assert by_superclass([[0.2, 0.6], [0.9, 0.7]]) == [0.9, 0.6]
    assert by_superclass([[0.8, 0.6]]) == [0.8, 0.6]
    assert by_superclass([]) is None


@pytest.mark.processes
def test_a_run_on_the_file_of_groups_has_the_figures(tmp_path: Path) -> None:
    whole = with_test(load_named("digits"))
    np.savez(
        tmp_path / "whole.npz",
        x=whole.features,
        y=whole.targets,
        x_test=whole.test_features,
        y_test=whole.test_targets,
    )
    write_data(load(tmp_path / "whole.npz"), tmp_path / "mixed.npz", 1, agents=4)
    rule = {"name": "by_group", "populations": {"9to1 of 0": 2, "9to1 of 1": 2}}
    known = {f"agent-{i}": ([0.9, 0.1] if i < 2 else [0.1, 0.9]) for i in range(4)}
    scene = Scenes.of(
        "mixed",
        DIGITS,
        training={"epochs": 1, "batch": 10, "lr": 0.1},
        rounds={"count": 1, "participation": 1.0},
        fleet={"agents": 4, "data": "mixed.npz", "partition": rule, "workers": 1},
    )({"name": "fuzzy", "variant": "fedavg+clusteredFL", "known": known})
    data, split = fleet_data(scene, tmp_path)
    shares = [
        np.isin(client_dataset(data, split, i).targets, (0, 1, 8, 9)).mean() for i in range(4)
    ]
    assert np.allclose(shares, [0.9, 0.9, 0.1, 0.1], atol=0.01)
    simulate(scene, RunOptions(tmp_path / "run", data_root=tmp_path), here(), lambda row: None)
    found = figures(tmp_path / "run", load(tmp_path / "whole.npz"), 0.9)
    assert found["membership_mse"] == pytest.approx(0, abs=1e-12)
    assert 0.1 < (found["superclass_0_accuracy"] or 0) <= 1
