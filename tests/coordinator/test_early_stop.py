"""When the rounds end early, and which models are the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.coordinator.disk.versions import best_version
from covey.coordinator.fold.means import Means
from covey.coordinator.run.early_stop import (
    EvaluationFigure,
    best_figure,
    best_of,
    mean_of,
    note,
    reason,
    stop_reason,
    value_after,
)
from covey.coordinator.run.result import result_of
from covey.shared.numerics.measures import MEASURES
from covey.shared.scenario.rounds import Stop
from tests.kit import small_run

ACCURACY = MEASURES["accuracy"]
LOSS = MEASURES["loss"]


def history(*values: float) -> list[EvaluationFigure]:
    return [EvaluationFigure(round_, value) for round_, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("values", "settings", "stops"),
    [
        ((0.5, 0.9), {"target": 0.9}, True),
        ((0.5, 0.89), {"target": 0.9}, False),
        ((), {"target": 0.9, "patience": 1}, False),
        ((0.5, 0.6, 0.6, 0.6), {"patience": 2}, True),
        ((0.5, 0.6, 0.6, 0.61), {"patience": 2}, False),
        ((0.5, 0.6, 0.6, 0.61), {"patience": 2, "min_delta": 0.02}, True),
        ((0.5, 0.51, 0.52, 0.53), {"patience": 2, "min_delta": 0.02}, False),
        ((0.5, 0.4, 0.3), {"patience": 3}, False),
    ],
)
def test_a_target_or_a_plateau_ends_the_rounds(
    values: tuple[float, ...], settings: dict[str, Any], stops: bool
) -> None:
    assert bool(stop_reason(Stop(**settings), ACCURACY, history(*values))) == stops


def test_a_loss_improves_downwards() -> None:
    stop = Stop(metric="loss", target=0.2, patience=2)
    falling = history(0.5, 0.4, 0.3)
    assert stop_reason(stop, LOSS, falling) == ""
    assert "target reached" in stop_reason(stop, LOSS, history(0.5, 0.2))
    assert "no improvement of loss in 2 evaluations" in stop_reason(
        stop, LOSS, history(0.3, 0.4, 0.3)
    )
    assert best_of(history(0.3, 0.2, 0.2), LOSS) == EvaluationFigure(2, 0.2)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"rounds": {"stop": {}}}, "no condition"),
        ({"rounds": {"stop": {"target": 0.9}}}, "evaluation.every"),
        (
            {"rounds": {"stop": {"target": 0.9, "metric": "rmse"}}, "evaluation": {"every": 1}},
            "the task has accuracy",
        ),
        ({"rounds": {"stop": {"target": 90}}, "evaluation": {"every": 1}}, "as a share"),
    ],
)
def test_a_condition_that_can_never_hold_is_refused(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        small_run.scenario("fedavg", **sections)


def test_one_agent_decides_neither_the_best_round_nor_the_stop() -> None:
    """Before: figures of 10^12 test samples made the liar's round the best."""
    honest = {1: 0.4, 2: 0.5, 3: 0.6}
    scene = small_run.scenario("fedavg", rounds={"stop": {"target": 0.55}}, evaluation={"every": 1})
    saved: list[list[float]] = []
    for number, accuracy in honest.items():
        figures = {f"a{i}": {"server": {"n": 10, "accuracy": accuracy}} for i in range(3)}
        claimed = 1.0 if number == 2 else 0.0
        figures["liar"] = {"server": {"n": 10**12, "accuracy": claimed}}
        figures["late"] = {"server": {"n": 10, "accuracy": 0.9}}
        figures["away"] = {"server": {"n": 0}}
        mean = mean_of(figures, ACCURACY)
        note(scene, saved, number, value_after(scene, figures, {"late"}, Means()), mean)
        assert bool(reason(scene, saved)) == (number == 3)
    assert [one[:2] for one in saved] == [[number, accuracy] for number, accuracy in honest.items()]
    best = {"metric": "accuracy", "value": 0.6, "mode": "server", "chosen_on": "test data"}
    assert best_figure(scene, saved, 3) == best


def test_a_run_ends_at_its_target_and_keeps_its_best_models(tmp_path: Path) -> None:
    scene = small_run.scenario(
        "fedavg",
        rounds={"count": 9, "stop": {"target": 0.05, "patience": 9}},
        evaluation={"every": 2, "tune_epochs": 0},
    )
    # a child process writes this file in a real run
    setup = small_run.setup(scene)
    np.savez(
        tmp_path / "start.npz",
        starts=np.stack(setup.starts),
        layout=np.array(small_run.layout_text(scene)),
    )
    run = small_run.in_process(tmp_path, scene)
    result = result_of(run, None)
    assert result.rounds == 2
    assert result.stopped is not None
    assert result.stopped.startswith("target reached: accuracy in % is ")
    assert result.stopped.endswith("(chosen on test data: the figures of this run are optimistic)")
    best = best_version(tmp_path)
    assert (best.round, best.figure["metric"]) == (2, "accuracy")
    assert np.array_equal(best.models[0], run.strategy.clusters(run.state)[0])
