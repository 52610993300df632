"""Agents that cost rounds and bring nothing: what needs `audit` and `runs`."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from covey.coordinator.record import records
from covey.coordinator.serve.roster import Roster
from covey.coordinator.view.lines import EventLine, reduced
from covey.coordinator.view.printed import show
from covey.extras.audit.story import story_of
from covey.extras.runs.roster_table import roster_table
from covey.extras.runs.state import agent_state, reason
from covey.shared.wire.documents import AgentStatus
from tests.coordinator.test_rests import whole


def test_the_record_the_status_and_the_dashboard_show_who_is_silent(tmp_path: Path) -> None:
    run, _ = whole(tmp_path / "run", "agent-3", {"count": 3, "timing": {"first_work_s": 0}})
    [line] = [one for one in records.lines(run.folder) if one["event"] == "resting"]
    why = "2 times in a row: online, but no report came in time; invited again from round 6"
    assert (line["agent"], line["kind"], line["until"], line["why"]) == (
        "agent-3",
        "silent",
        5,
        why,
    )
    event = reduced(line)
    assert isinstance(event, EventLine)
    assert event.text == f"agent-3 is silent and is not invited for some rounds: {why}"
    run.audit.sync()
    assert "Not invited for some rounds, because it is silent" in "\n".join(
        sentence.text for sentence in story_of("agent-3", run.folder).sentences
    )
    roster = Roster("t")
    roster.seen(
        AgentStatus(agent="agent-3", session="s", online=True, task="t", samples=5, epoch="e"),
        retained=False,
        epoch="e",
        now=0.0,
    )
    rows = roster.rows({}, resting={"agent-3": run.members.troubles()["agent-3"]})
    assert agent_state(rows["agent-3"]) == "silent"
    assert "online, but no report came in time" in reason(rows["agent-3"])
    paper = Console(width=200, record=True, file=StringIO())
    show(paper, roster_table({"run": "r", "agents": rows}))
    assert "silent" in paper.export_text()
    assert agent_state(roster.rows({})["agent-3"]) == "idle"
