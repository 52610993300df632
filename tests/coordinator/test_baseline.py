"""A run's figures next to the answer that needs no model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.report import tables
from covey.coordinator.run.result import result_of
from covey.shared.numerics.figures import baseline_figures
from tests.kit import small_run


def test_the_baseline_answers_with_the_most_frequent_class_of_the_training_data() -> None:
    train, truth = np.array([2, 2, 0]), np.array([2, 0, 2, 1])
    found = baseline_figures(train, truth)
    assert (found["n"], found["correct"], found["accuracy"]) == (4, 2, 0.5)
    assert found["f1"] == pytest.approx(2 / 3 / 3)  # of class 2 alone


def test_the_baseline_of_values_is_the_mean_of_the_training_targets() -> None:
    train, truth = np.array([1, 3], np.float32), np.array([2, 4], np.float32)
    assert baseline_figures(train, truth)["mse"] == 2.0


def test_every_evaluated_agent_has_a_baseline(tmp_path: Path) -> None:
    """Each of the small agents holds two classes: its most frequent one is right in half of its samples or more."""
    result = result_of(small_run.in_process(tmp_path, small_run.scenario("fedavg")), None)
    found = result.accuracy["baseline"]
    assert found["agents"] == small_run.AGENTS
    assert 0.5 <= found["accuracy"]["macro"] < 0.8


def figures(served: float, constant: float, measure: str = "accuracy") -> dict[str, Any]:
    modes = {"server": served, "baseline": constant}
    return {
        "accuracy": {
            mode: {"agents": 3, measure: {"macro": value, "micro": value}}
            for mode, value in modes.items()
        }
    }


def test_a_report_names_a_model_that_is_not_better_than_one_answer() -> None:
    sentence = tables.baseline(figures(0.895, 0.909))
    assert "not better than no model: the most frequent class" in sentence
    assert "accuracy 90.90 (macro)" in sentence
    assert "the mean target" in tables.baseline(figures(2.5, 2.5, "rmse"))
    assert tables.baseline(figures(0.91, 0.909)) == tables.baseline(figures(2.4, 2.5, "rmse")) == ""
    assert tables.baseline({"accuracy": {}}) == ""
