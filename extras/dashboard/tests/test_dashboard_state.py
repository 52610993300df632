"""What the dashboard shows follows from the record, the roster and the status alone."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from covey.coordinator.view.lines import EventLine, Line, PhaseLine, macro, reduced
from covey.coordinator.view.milestones import recorded_milestones
from covey.extras.dashboard.hub import LiveState
from covey.extras.dashboard.sections import sections
from covey.extras.dashboard.terminal import watch_view
from covey.extras.dashboard.tests.pages import run
from covey.extras.dashboard.tests.test_dashboard_sections import words
from covey.extras.runs.folder_reader import FolderReader, plan_of
from covey.extras.runs.state import (
    COLUMNS,
    MAX_POINTS,
    RunPlan,
    Sources,
    agent_cells,
    dashboard_state,
)
from covey.shared.wire.documents import CoordinatorStatus, RosterMessage
from tests.coordinator import dashboards
from tests.coordinator.dashboards import AGENT, agents, phase, status

PLAN = RunPlan(name="pilot", method="fedclust", rounds=20, agents=10, evaluates_every=1)


def lines(*rows: Mapping[str, Any]) -> list[Line]:
    found = [reduced(row) for row in rows]
    return [line for line in found if line is not None]


def roster(rows: dict[str, Any], **refusals: int) -> RosterMessage:
    return RosterMessage(run="r1", agents=rows, refusals=refusals)


@pytest.mark.parametrize(
    ("found", "present", "word", "headline"),
    [
        (None, None, "unknown", "No run yet: start one with `coordinator run`."),
        (status(state="gathering"), agents(3), "waiting", "Waiting for the first round: 3 of 10 agents are here."),
        (status(state="gathering"), agents(10, busy=True), "running", ""),
        (status(state="open", phase="train"), agents(10), "running", ""),
        (status(state="paused"), agents(10), "paused", "Paused: the open phase ends, and no new one starts."),
        (status(state="finished", round=20), agents(10), "finished", "Finished after 20 rounds."),
        (
            status(state="stopped", round=4),
            agents(10),
            "stopped",
            "Stopped after 4 of 20 rounds; `coordinator run --resume` continues.",
        ),
        (
            status(online=False, name="", rounds=0, state="stopped"),
            agents(10),
            "offline",
            "The coordinator is offline; it continues with `coordinator run --resume`.",
        ),
    ],
)  # fmt: skip
def test_the_state_is_one_word_and_a_sentence(
    found: CoordinatorStatus | None, present: dict[str, Any] | None, word: str, headline: str
) -> None:
    known = None if present is None else roster(present)
    state = dashboard_state(Sources(PLAN, status=found, roster=known))
    assert (state.state, state.headline) == (word, headline)
    assert (state.name, state.rounds) == ("pilot", 20)


def test_curves_hold_each_cluster_and_figures_of_newest_evaluation() -> None:
    rows = [phase(1), phase(1, evaluated=0.5), phase(2), phase(2, evaluated=0.75)]
    state = dashboard_state(Sources(PLAN, lines(*rows), status(state="open")))
    assert [series.cluster for series in state.figures] == [None, "0", "1"]
    assert state.figures[0].points == ((1, 0.5), (2, 0.75))
    assert (state.newest_figure, state.measure, state.percent) == (0.75, "accuracy", True)
    assert state.loss == ((1, 1.0), (2, 0.5))
    assert state.sent[-1] == (2, 2500)
    assert state.faults.missing == 4
    assert state.sizes == {"0": 2, "1": 1}
    json.dumps(state.to_json(), allow_nan=False)


def test_a_regression_is_shown_in_its_own_measure() -> None:
    figures = {"agents": 3, "rmse": {"macro": 2.5}, "mse": {"macro": 6.25}}
    row = phase(1) | {"evaluation": {"server": figures}, "by_cluster": {"0": {"rmse": 2.0}}}
    state = dashboard_state(Sources(PLAN, lines(row)))
    assert (state.measure_title, state.percent, state.newest_figure) == ("RMSE served", False, 2.5)
    assert state.figures[1].points == ((1, 2.0),)


def test_a_regression_is_known_before_its_first_evaluation_and_from_the_broker_alone() -> None:
    """Without lines of the record: from the plan, the published task, or figures that are no shares."""
    rows = agents(2, figure=19.838)
    task = {"features": [2], "classes": None}
    known = [
        Sources(replace(PLAN, regression=True), lines(phase(1))),
        Sources(RunPlan(), status=status(task=task), roster=roster(rows)),
        Sources(RunPlan(), roster=roster(rows)),
    ]
    for sources in known:
        state = dashboard_state(sources)
        assert (state.measure_title, state.percent) == ("RMSE", False)
    shares = Sources(RunPlan(), status=status(task=task | {"classes": 2}), roster=roster(rows))
    assert dashboard_state(shares).measure_title == "accuracy"


def test_a_folder_shows_whether_its_run_is_a_regression() -> None:
    assert plan_of({"task": {"features": [2], "classes": None}}).regression is True
    assert plan_of({"task": {"features": [2], "classes": 3}}).regression is False
    assert plan_of({"name": "pilot"}).regression is None
    assert plan_of({"rounds": {"over_select": "auto"}}).over_select == 2.0  # at most


def test_the_remaining_time_follows_from_the_newest_rounds() -> None:
    slow = [phase(number, seconds=60.0) for number in range(1, 5)]
    fast = [phase(number, seconds=4.0) for number in range(5, 15)]
    state = dashboard_state(Sources(PLAN, lines(*slow, *fast), status(state="open", round=14)))
    assert state.eta_s == 24.0
    assert dashboard_state(Sources(PLAN, status=status(state="open"))).eta_s is None


def test_faults_and_events_are_counted_and_the_newest_comes_first() -> None:
    rows = [
        {
            "event": "void",
            "round": 1,
            "step": 3,
            "why": "2 of 9 invited agents reported, the quorum is 3",
        },
        phase(2, notes={"warning_clusters": "one cluster"}, missing=[]),
        phase(3, notes={"warning_clusters": "one cluster"}, missing=[]),
        {"event": "quarantined", "agent": "pi-7", "refused": 3, "why": "not finite", "round": 3},
    ]
    fleet = {
        "a": AGENT | {"failed": "no data"},
        "b": AGENT | {"online": False},
        "c": AGENT | {"problem": "no label column"},
        "d": AGENT | {"quarantined": "not finite"},
        "e": AGENT | {"busy": True},
    }
    state = dashboard_state(Sources(PLAN, lines(*rows), roster=roster(fleet, rate=3)))
    assert [event.kind for event in state.events] == ["quarantined", "warning", "void"]
    fleet_counts = state.fleet
    assert (fleet_counts.known, fleet_counts.here, fleet_counts.busy) == (5, 2, 1)
    assert (fleet_counts.offline, fleet_counts.excluded, fleet_counts.quarantined) == (1, 1, 1)
    faults = state.faults
    assert (faults.void, faults.quarantined, faults.failed, faults.refused) == (1, 1, 1, 3)


def test_events_are_dated_as_people_count_rounds() -> None:
    """The first attempt at round 1 is void, and round 1 begins with a phase that ends no round."""
    signatures = phase(1, ends_round=False, phase="signature", notes={"warning": "no groups"})
    rows = [
        {"event": "void", "round": 0, "step": 1, "why": "too few reports"},
        signatures | {"round": 0},
        phase(1, missing=[]),
        phase(1, evaluated=0.5),
        {"event": "lost lines", "lines": 2},
        {"event": "set_aside", "agent": "pi-7", "round": 1, "step": 6, "why": "not finite"},
        phase(2, missing=[]),
        {"event": "stopped", "round": 2, "rounds": 9, "why": "it has converged"},
    ]
    state = dashboard_state(Sources(PLAN, lines(*rows)))
    found = [(event.kind, event.round) for event in state.events]
    assert found == [
        ("stopped", 2),
        ("set_aside", 2),
        ("lost lines", 1),
        ("missing", 1),
        ("warning", 1),
        ("missing", 1),
        ("void", 1),
    ]


def test_a_warning_of_a_record_that_begins_late_may_be_older() -> None:
    """A broker keeps the newest line: who looks on from round 40 on does not know when its warning came first."""
    rows = [phase(number, notes={"warning": "one cluster"}, missing=[]) for number in (40, 41)]
    state = dashboard_state(Sources(PLAN, lines(*rows)))
    [event] = state.events
    assert (event.round, event.or_before) == (40, True)
    shown = io.StringIO()
    console = Console(file=shown, width=80)
    console.print(watch_view(state, lines(*rows)))
    assert "round 40 or before: one cluster" in shown.getvalue()
    whole = dashboard_state(Sources(PLAN, lines(phase(1, missing=[]), *rows)))
    assert [(event.round, event.or_before) for event in whole.events] == [(40, False)]


def test_agents_that_were_invited_in_reserve_are_no_fault() -> None:
    reserve = phase(1, reported=["a"] * 50, missing=["b"] * 10)
    fault = phase(2, reported=["a"] * 49, missing=["b"] * 11)
    plan = RunPlan(over_select=1.2)
    state = dashboard_state(Sources(plan, lines(reserve, fault)))
    assert [event.text for event in state.events] == ["train: closed with 49 of 60 reports"]


def test_a_long_run_has_no_more_points_than_a_page_can_draw() -> None:
    rows = [phase(number) for number in range(1, 5001)]
    state = dashboard_state(Sources(PLAN, lines(*rows)))
    assert len(state.loss) == len(state.bars) == MAX_POINTS
    assert state.loss[-1] == (5000, 1 / 5000)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=30, deadline=None)
@given(row=st.fixed_dictionaries({"event": st.just("phase")} | dict.fromkeys(phase(1), VALUES)))
def test_any_value_in_any_field_of_a_line_can_be_shown(row: dict[str, Any]) -> None:
    line = reduced(row | {"event": "phase"})
    assert isinstance(line, PhaseLine)
    json.dumps(dashboard_state(Sources(PLAN, [line])).to_json(), allow_nan=False)
    huge = reduced(row | {"event": "phase", "loss": 10**400})
    assert isinstance(huge, PhaseLine)
    assert huge.loss is None
    event = reduced(row | {"event": "void"})
    assert isinstance(event, EventLine)


# -- the folder ------------------------------------------------------------------------------------


def test_a_folder_is_read_as_it_grows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    reader = FolderReader(folder)
    assert not reader.poll(), "a folder that does not exist yet is no error"
    dashboards.write_plan(folder)
    dashboards.write_roster(folder, agents(3))
    assert reader.poll()
    assert (reader.plan.agents, reader.plan.method) == (10, "fedclust")
    dashboards.append_lines(folder, phase(1))
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"event": "phase", "cut short')
    assert reader.poll()
    assert len(reader.lines) == 1, "an incomplete line waits for its rest"
    assert not reader.poll()
    (folder / "rounds.jsonl").write_text(json.dumps(phase(2)) + "\n")
    reader.poll()
    (folder / "result.json").write_text("{}")
    assert reader.poll()
    assert reader.finished


def test_a_damaged_file_keeps_what_was_read_before(tmp_path: Path) -> None:
    reader = FolderReader(tmp_path)
    dashboards.write_roster(tmp_path, agents(3))
    reader.poll()
    (tmp_path / "roster.json").write_bytes(b"{")
    (tmp_path / "scenario.yaml").write_text("[")
    reader.poll()
    assert reader.roster is not None
    assert len(reader.roster.agents) == 3


# -- what a page is sent ---------------------------------------------------------------------------


def test_a_page_gets_the_agents_that_changed_and_those_that_are_gone(tmp_path: Path) -> None:
    reader = FolderReader(tmp_path)
    hub = LiveState(reader)
    dashboards.write_roster(tmp_path, agents(3))
    reader.poll()
    hub.refresh()
    first = hub.update_after(-1, 0.0)
    assert first is not None
    assert first.agents is not None
    assert first.agents["whole"]
    assert set(first.agents["rows"]) == {"agent-0", "agent-1", "agent-2"}
    rows = agents(3)
    del rows["agent-0"]
    rows["agent-1"]["busy"] = True
    dashboards.write_roster(tmp_path, rows)
    reader.poll()
    hub.refresh()
    second = hub.update_after(first.version, 0.0)
    assert second is not None
    assert second.agents is not None
    assert set(second.agents["rows"]) == {"agent-1"}
    assert second.agents["gone"] == ["agent-0"]
    assert hub.update_after(second.version, 0.0) is None


def seconds_per_agent(fleet: int) -> float:
    """Processor time to read a fleet and compare it with what was known, the best of three times."""
    known = roster(agents(fleet, cluster=1, figure=0.91))
    took = []
    for _ in range(3):
        began = time.process_time()
        cells = agent_cells(known)
        dashboard_state(Sources(PLAN, roster=known))
        assert agent_cells(known) == cells
        took.append(time.process_time() - began)
    return min(took) / fleet


def test_an_agent_has_the_seconds_of_its_newest_round_once_they_are_known() -> None:
    rows = agents(2)
    rows["agent-0"]["takes"] = 6.5
    cells = agent_cells(roster(rows))
    assert [one[COLUMNS.index("takes")] for one in cells.values()] == [6.5, None]


def test_an_agent_costs_as_much_in_a_fleet_of_ten_thousand_as_in_one_of_a_thousand() -> None:
    assert seconds_per_agent(10_000) < 4 * seconds_per_agent(1_000)


def test_a_line_has_both_averages_of_each_mode_and_no_counts_between_them() -> None:
    row = phase(1, evaluated=0.5) | {
        "evaluation": {
            "server": {"agents": 3, "accuracy": {"micro": 0.25, "macro": 0.5}, "diverged": ["a"]},
            "last": {"agents": 0},
        },
        "by_cluster": {"0": {"accuracy": 0.75, "agents": 3}},
    }
    line = reduced(row)
    assert isinstance(line, PhaseLine)
    assert line.evaluation == {"server": {"accuracy": {"micro": 0.25, "macro": 0.5}}}
    assert macro(line.evaluation, "accuracy") == {"server": 0.5}
    assert (line.mean, line.by_cluster) == (0.5, {"0": {"accuracy": 0.75}})
    assert [milestone.figures() for milestone in recorded_milestones(row)] == [
        {"server/accuracy/micro": 0.25, "server/accuracy/macro": 0.5, "cluster-0/accuracy": 0.75}
    ]


def test_a_finished_run_without_a_broker_shows_its_agents_and_that_they_took_part(
    tmp_path: Path,
) -> None:
    folder = run(tmp_path / "run", "fedclust")
    with LiveState(FolderReader(folder)) as hub:
        update = hub.update_after(-1, 5.0)
    assert update is not None
    assert update.agents is not None
    assert update.state.fleet.took_part == 8
    assert {cells[0] for cells in update.agents["rows"].values()} == {"took part"}
    assert all(cells[2] is not None for cells in update.agents["rows"].values())
    assert "agents 8 took part" in words(sections(update.state)["tiles"])
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(watch_view(update.state, hub.sources.lines, 24))
    assert "8 took part" in console.export_text()


def test_every_figure_has_its_measure_and_its_mode() -> None:
    """Curves show what devices are served: what they use is known after the last round alone."""
    both = {"server": {"accuracy": {"macro": 0.5}}, "delivered": {"accuracy": {"macro": 0.75}}}
    rows = [phase(1), phase(1, evaluated=0.25), phase(2), phase(2, evaluated=0.5, evaluation=both)]
    state = dashboard_state(Sources(PLAN, lines(*rows)))
    tiles = words(sections(state)["tiles"])
    assert tiles.startswith("mean accuracy in use 75.0 % after round 2 ")
    chart = words(sections(state)["chart-figure"])
    assert chart.startswith("Accuracy served by group")
    assert "all agents 50.0 %" in chart
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(watch_view(state, lines(*rows), 24))
    assert "accuracy served %" in console.export_text()
