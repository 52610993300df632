"""A run on the terminal: what needs `dashboard` and `runs`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from covey.coordinator.view.lines import Line
from covey.extras.dashboard.terminal import opened, watch, watch_view
from covey.extras.runs.state import RunPlan, Sources, dashboard_state
from covey.shared.wire.documents import RosterMessage
from tests.coordinator import dashboards
from tests.coordinator.dashboards import AGENT, phase, status
from tests.coordinator.test_watch import record

ESCAPE = "\x1b]0;owned\x07[red]x"


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
