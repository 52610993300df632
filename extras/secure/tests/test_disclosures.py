"""The table of what leaves a device covers each field that there is, and what it does not cover stays: what needs `secure`."""

from __future__ import annotations

import numpy as np

from covey.extras.secure.phases import HEAD
from covey.shared.candidate_names import REPORTED
from covey.shared.disclosures import FIGURES, NUMBERS_OF_EVALUATION, SUMS, Promise, cleared
from covey.shared.numerics.figures import answers, baseline_figures, figures_of, kind_of
from covey.shared.strategies.phase_names import EVALUATE, MODES
from tests.shared.test_disclosures import report

TRUTHS = {
    "classes": np.array([0, 1, 1, 2]),
    "values": np.array([0.5, 1.5, 2.0, 4.0], np.float32),
    "steps": np.arange(8, dtype=np.float32).reshape(4, 2),
    "labels": np.array([[True, False], [False, True], [True, True], [False, False]]),
    "anomalies": np.array([True, False, False, True]),
}


def test_each_figure_that_an_evaluation_can_produce_has_a_row() -> None:
    found: set[str] = {"diverged"}
    for truth in TRUTHS.values():
        kind = kind_of(truth)
        width = 3 if kind == "classes" else 2 if truth.ndim == 2 or kind == "anomalies" else 1
        outputs = np.linspace(0, 1, 4 * width, dtype=np.float32).reshape(4, width)
        found |= figures_of(truth, answers(outputs, kind)).keys()
        found |= baseline_figures(truth, truth).keys()
    assert found == set(FIGURES)
    assert set(NUMBERS_OF_EVALUATION) == {*MODES, *REPORTED, HEAD, SUMS}


def test_under_sums_an_evaluation_leaves_as_a_masked_vector_and_its_head_alone() -> None:
    numbers = {**{name: {"n": 4, "loss": 0.5} for name in NUMBERS_OF_EVALUATION}, HEAD: [1, 2]}
    assert cleared(report(numbers=numbers), EVALUATE, [Promise.SUMMED]).numbers == {HEAD: [1, 2]}
