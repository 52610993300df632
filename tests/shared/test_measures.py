"""Measures: figures of a regression, R2 from sums, what is better."""

from __future__ import annotations

import numpy as np
import pytest

from covey.shared.numerics.figures import regression_figures
from covey.shared.numerics.measures import (
    ACCURACY,
    MEASURES,
    RMSE,
    derived,
    main_measure,
    pooled_r2,
)

DRAW = np.random.default_rng(7)


def agent(size: int, offset: float) -> tuple[np.ndarray, np.ndarray]:
    """Targets and predictions (size,) of one agent."""
    targets = DRAW.normal(offset, 2.0, size).astype(np.float32)
    noise = DRAW.normal(0.0, 1.0, size)
    return targets, targets + noise


def test_pooled_r2_from_sums_is_the_r2_of_all_samples_together() -> None:
    agents = [agent(7, 100.0), agent(30, -3.0), agent(1, 5.0)]
    rows = [regression_figures(truth, predicted[:, None]) for truth, predicted in agents]
    truth = np.concatenate([one for one, _ in agents]).astype(np.float64)
    predicted = np.concatenate([one for _, one in agents])
    sse = np.sum((predicted - truth) ** 2)
    sst = np.sum((truth - truth.mean()) ** 2)
    pooled = pooled_r2(rows, [row["n"] for row in rows])
    assert pooled == pytest.approx(1 - sse / sst)
    own = [derived(row).get("r2") for row in rows]
    assert own[2] is None  # one sample has no variance
    assert own[0] is not None
    assert own[0] < 1 - sse / sst  # the agents' offsets explain most of the pooled variance


def test_r2_is_undefined_if_all_targets_are_equal() -> None:
    truth = np.full(10, 0.1, np.float32)
    row = regression_figures(truth, np.zeros((10, 1)))
    assert derived(row) == {"rmse": pytest.approx(0.1)}
    assert pooled_r2([row], [10]) is None


def test_pooled_r2_needs_the_sums_of_every_agent() -> None:
    row = {"n": 10, "mse": 1.0, "mean": 0.0, "variance": 2.0}
    assert pooled_r2([row], [10]) == 0.5
    assert pooled_r2([row, {"n": 10, "mse": 1.0}], [10, 10]) is None


def test_errors_are_better_when_they_are_lower() -> None:
    assert [name for name, one in MEASURES.items() if one.lower_is_better] == [
        "loss",
        "mse",
        "rmse",
        "mae",
    ]
    assert RMSE.reaches(3.0, 3.0)
    assert not RMSE.reaches(3.1, 3.0)
    assert ACCURACY.reaches(0.8, 0.75)
    assert RMSE.is_better(1, 2)
    assert ACCURACY.is_better(0.2, 0.1)
    assert main_measure(regression=True) == RMSE


def test_losses_have_the_same_number_of_decimals() -> None:
    loss = MEASURES["loss"]
    assert [loss.text(figure) for figure in (1.2, 0.08471, 0.5)] == ["1.2000", "0.0847", "0.5000"]


def test_figures_are_shown_in_their_units() -> None:
    assert (ACCURACY.text(0.8123), ACCURACY.title) == ("81.23", "accuracy in %")
    assert (RMSE.text(12.3456), RMSE.title) == ("12.35", "RMSE in units of the target")


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (0.12344, "0.1234"),
        (5290.4, "5290"),
        (10_660.2, "10 660"),
        (9_999.9, "10 000"),
        (-5.8e6, "-5 800 000"),
        (1e-7, "1e-07"),
    ],
)
def test_a_large_figure_is_shown_without_an_exponent(figure: float, text: str) -> None:
    assert RMSE.text(figure) == text.replace(" ", "\u00a0")
