"""A run's figures next to the answer that needs no model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.report import tables
from covey.coordinator.report.figure_pictures import CURVES
from covey.coordinator.report.html_report import shown_modes
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


# -- the models that agents use ----------------------------------------------------------------------------------------


def with_modes(at_home: int = 0, measure: str = "accuracy", **modes: float) -> dict[str, Any]:
    """A result of four agents with these macro averages."""
    accuracy = {
        mode: {"agents": 4, measure: {"macro": value, "micro": value}}
        for mode, value in modes.items()
    }
    return {"accuracy": accuracy, "agents": 4, "at_home": [f"pi-{n}" for n in range(at_home)]}


def test_an_agent_that_chooses_nothing_uses_the_served_model(tmp_path: Path) -> None:
    result = result_of(small_run.in_process(tmp_path, small_run.scenario("fedavg")), None)
    assert result.accuracy["delivered"] == result.accuracy["server"]
    assert "at_home" not in result.to_json()


def test_a_run_names_how_much_better_the_agents_own_models_are() -> None:
    found = tables.own_models(with_modes(measure="rmse", server=9.04, tuned=2.78, last=2.39))
    assert found.startswith(
        "the agents' own models are 3.8 times better than the served one: RMSE 2.39 (E-last) against 9.04 (macro)"
    )
    assert "evaluation.deliver: best lets" in found
    assert "5 % better" in tables.own_models(with_modes(measure="rmse", server=2.1, tuned=2.0))
    found = tables.own_models(with_modes(3, server=0.5, tuned=0.9, last=0.8, delivered=0.85))
    assert "are 40.0 points better" in found
    assert found.endswith(
        "3 of 4 agents use the served model after fine-tuning: accuracy 85.00 (E-delivered)"
    )


def test_own_models_that_are_not_better_are_not_worth_a_sentence() -> None:
    assert tables.own_models(with_modes(server=0.9, tuned=0.904, last=0.8, delivered=0.9)) == ""
    assert tables.own_models(with_modes(measure="rmse", server=2.0, tuned=2.1)) == ""
    assert tables.own_models({"accuracy": {}}) == ""
    found = tables.own_models(with_modes(1, server=0.9, tuned=0.8, delivered=0.91))
    assert found.startswith("1 of 4 agents use")


def test_a_page_leaves_e_delivered_out_where_all_agents_use_the_served_model() -> None:
    result = {**with_modes(server=0.9, tuned=0.8, delivered=0.9), "never_trained": []}
    assert list(shown_modes(result)) == ["server", "tuned"]
    assert list(shown_modes({**result, "at_home": ["pi-1"]})) == ["server", "delivered", "tuned"]
    assert "delivered" not in CURVES
