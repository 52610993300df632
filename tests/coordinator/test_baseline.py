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
    assert "accuracy 90.90" in sentence
    assert "the mean target" in tables.baseline(figures(2.5, 2.5, "rmse"))
    assert tables.baseline(figures(0.91, 0.909)) == tables.baseline(figures(2.4, 2.5, "rmse")) == ""
    assert tables.baseline({"accuracy": {}}) == ""


# -- the models that agents use ----------------------------------------------------------------------------------------


def with_modes(uses: Any = None, measure: str = "accuracy", **modes: float) -> dict[str, Any]:
    """A result of four agents with these macro averages."""
    accuracy = {
        mode: {"agents": 4, measure: {"macro": value, "micro": value}}
        for mode, value in modes.items()
    }
    return {"accuracy": accuracy, "agents": 4, "uses": uses or {}}


def test_a_run_states_in_words_what_its_agents_use_and_who_uses_no_model() -> None:
    uses = {
        "pi-1": {"served": 0.6, "home-20": 0.4},
        "pi-2": {"home-20": 0.8, "near": 0.2},
        "pi-3": {"none": 1.0},
        "pi-4": {"served": 1.0},
    }
    found = tables.used(with_modes(uses, server=0.5))
    assert found == (
        "the agents use, on average: 40 % served, 30 % after 20 epochs at home, 25 % constant, 5 % neighbours; 1 of 4 agents "
        "use no model, because none is better than the constant there: pi-3"
    )
    assert tables.used(with_modes(server=0.5)) == ""
