"""Figures for rare classes, and what a task's measure decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from covey.coordinator.report import tables
from covey.coordinator.run.early_stop import measure_of
from covey.coordinator.run.result import result_of
from covey.shared.numerics.figures import classification_figures, errors
from covey.shared.numerics.metrics import macro_auc, macro_recall
from covey.shared.scenario.task import Task
from tests.kit import small_run

TRUTH = np.array([0, 0, 0, 0, 1])
# sure of the frequent class: the rare sample is ranked above three of the four others, and ties with none
PROBABILITIES = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.55, 0.45], [0.6, 0.4]])


def test_recall_counts_every_class_once_and_auc_ranks() -> None:
    found = classification_figures(TRUTH, PROBABILITIES)
    assert found["accuracy"] == 0.8
    assert found["recall"] == (1 + 0) / 2
    assert found["auc"] == 3 / 4
    assert macro_recall(np.array([0, 1, 2, 2]), np.array([0, 0, 2, 1])) == (1 + 0 + 0.5) / 3


def test_a_tie_counts_half_and_one_class_alone_has_no_area() -> None:
    same = np.full((5, 2), 0.5)
    assert macro_auc(TRUTH, same) == 0.5
    assert macro_auc(np.zeros(3, int), same[:3]) is None
    assert "auc" not in classification_figures(np.zeros(3, int), PROBABILITIES[:3])


def test_of_three_classes_the_area_is_the_mean_of_one_against_the_rest() -> None:
    truth = np.array([0, 1, 2])
    scores = np.array([[0.6, 0.2, 0.2], [0.5, 0.3, 0.2], [0.7, 0.2, 0.1]])
    assert macro_auc(truth, scores) == pytest.approx((1 / 2 + 1 + 0) / 3)


def test_errors_follow_the_measure() -> None:
    wrong = [0, 0, 0, 0, 1]
    assert errors(TRUTH, PROBABILITIES).tolist() == wrong
    balanced = errors(TRUTH, PROBABILITIES, "recall")
    assert balanced.mean() == pytest.approx(1 - macro_recall(TRUTH, PROBABILITIES.argmax(axis=1)))
    found = classification_figures(TRUTH, PROBABILITIES)
    assert errors(TRUTH, PROBABILITIES, "auc").mean() == pytest.approx(found["loss"])
    values, outputs = np.array([1, 2], np.float32), np.array([[2.0], [5.0]])
    assert errors(values, outputs).tolist() == [1, 9]
    assert errors(values, outputs, "mae").tolist() == [1, 3]


def test_the_best_version_and_the_table_follow_the_measure_of_the_task(tmp_path: Path) -> None:
    plain = small_run.scenario("fedavg")
    scene = plain.model_copy(update={"task": plain.task.model_copy(update={"measure": "recall"})})
    assert measure_of(plain).name == "accuracy"
    assert measure_of(scene).name == "recall"
    found = result_of(small_run.in_process(tmp_path, scene), None).to_json()
    assert found["measure"] == "recall"
    assert "macro recall in %" in tables.results([found]).title
    shown = tables.results([found]).rows[0]
    assert f"{100 * found['accuracy']['server']['recall']['macro']:.2f}" in shown[1]
    assert "measure" not in plain.task.for_agents()


def test_a_measure_of_another_kind_of_task_is_refused() -> None:
    with pytest.raises(ValidationError, match="measure is rmse, and the task has accuracy, f1"):
        Task.model_validate({"features": [2], "classes": 2, "measure": "rmse"})
