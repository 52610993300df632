"""A run on the terminal: rounds, figures and the time that is left, in 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from covey.coordinator.fold.means import Means
from covey.coordinator.record.notices import PhaseFolded
from covey.coordinator.report.progress import ProgressBar
from covey.coordinator.view.lines import Line, TimeLeft, reduced
from covey.coordinator.view.words import duration_text
from tests.coordinator.dashboards import phase


def record(rounds: int, clusters: int = 2) -> list[Line]:
    rows: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        figures = {str(k): {"accuracy": (number + k) / 40} for k in range(clusters)}
        rows += [phase(number), phase(number, evaluated=number / 20, by_cluster=figures)]
    found = [reduced(row) for row in rows]
    return [line for line in found if line is not None]


def test_the_estimate_is_the_mean_of_the_newest_rounds() -> None:
    time_left = TimeLeft()
    assert time_left.left_s(5) is None
    time_left.add(100.0, ends_round=True)
    for _ in range(10):
        time_left.add(1.0, ends_round=False)
        time_left.add(3.0, ends_round=True)
    assert time_left.left_s(5) == 20.0
    assert time_left.left_s(-1) == 0.0
    words = [duration_text(seconds) for seconds in (0.2, 40, 720, 12600)]
    assert words == ["1 s", "40 s", "12 min", "3.5 h"]


def test_a_running_run_prints_the_accuracy_of_each_evaluation() -> None:
    text = io.StringIO()
    means = Means(evaluation={"server": {"agents": 2, "accuracy": {"macro": 0.875}}})
    folded = PhaseFolded(
        phase="evaluate",
        ends_round=False,
        round=3,
        step=7,
        invited=["a", "b"],
        reported=["a", "b"],
        missing=[],
        cluster_sizes={},
        moved=0,
        seconds=1.0,
        train_seconds=0.0,
        fold_seconds=0.0,
        traffic={},
        notes={},
        means=means,
    )
    with ProgressBar(Console(file=text, width=120), 10) as progress:
        progress(folded)
    assert "evaluate: 2/2 agents, accuracy served 87.50 %" in text.getvalue()
