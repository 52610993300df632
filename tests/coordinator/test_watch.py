"""A run on the terminal: rounds, figures and the time that is left, in 80 columns."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from covey.coordinator.fold.means import Means
from covey.coordinator.record.notices import PhaseFolded
from covey.coordinator.report.progress import ProgressBar
from covey.coordinator.view.lines import Line, TimeLeft, reduced
from covey.coordinator.view.words import duration_text
from covey.extras.pages.terminal import opened, watch, watch_view
from covey.extras.runs.state import RunPlan, Sources, dashboard_state, history
from covey.shared.wire.documents import RosterMessage
from tests.coordinator import dashboards
from tests.coordinator.dashboards import AGENT, phase, status

ESCAPE = "\x1b]0;owned\x07[red]x"


def record(rounds: int, clusters: int = 2) -> list[Line]:
    rows: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        figures = {str(k): {"accuracy": (number + k) / 40} for k in range(clusters)}
        rows += [phase(number), phase(number, evaluated=number / 20, by_cluster=figures)]
    found = [reduced(row) for row in rows]
    return [line for line in found if line is not None]


def shown(lines: list[Line], height: int = 24, **sources: Any) -> list[str]:
    plan = RunPlan(name=ESCAPE, method="fedclust", rounds=20, agents=10)
    state = dashboard_state(Sources(plan, lines, **sources))
    text = io.StringIO()
    console = Console(file=text, width=80, height=height, force_terminal=False)
    console.print(watch_view(state, lines, height))
    return text.getvalue().splitlines()


@pytest.mark.parametrize("clusters", [0, 2, 4, 12])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_the_view_fits_a_terminal_and_is_no_markup(clusters: int, height: int) -> None:
    fleet = {"a": AGENT, "b": AGENT | {"online": False}}
    roster = RosterMessage(run="r1", agents=fleet, refusals={ESCAPE: 12, "rate": 3})
    lines = record(20, clusters)
    view = shown(lines, height, roster=roster, status=status(name=ESCAPE, state="open", round=20))
    assert max(map(len, view)) <= 80
    assert "\x1b" not in "".join(view)
    assert any("[red]x" in line for line in view)
    if height >= 24:
        assert len(view) <= height


def test_the_history_joins_a_round_with_its_evaluation() -> None:
    rows = history(record(2))
    assert [(row.number, row.figure, row.loss) for row in rows] == [(1, 0.05, 1.0), (2, 0.1, 0.5)]
    assert rows[1].by_cluster == (0.05, 0.075)
    assert (rows[0].seconds, rows[1].seconds) == (3.0, 6.0), "evaluations count for the next round"


def test_a_run_that_has_not_begun_shows_how_many_agents_are_missing() -> None:
    view = shown([], roster=RosterMessage(agents={"a": AGENT}), status=status(state="gathering"))
    assert "1 of 10 agents are here" in " ".join(view)


def test_the_watch_ends_with_the_run(tmp_path: Path) -> None:
    dashboards.write_plan(tmp_path)
    dashboards.append_lines(tmp_path, phase(1), phase(1, evaluated=0.5))
    dashboards.write_status(tmp_path, state="finished", round=1)
    text = io.StringIO()
    states: list[Any] = []
    with opened(tmp_path, None, "default") as hub:
        watch(hub, Console(file=text, width=80))
        watch(hub, Console(file=text, width=80), states.append)
    assert "50.0" in text.getvalue()
    assert [state["state"] for state in states] == ["finished"]


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
