"""`coordinator lab story`: what happened to one agent, from the audit log of a run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.coordinator.engine.events import Joined, Release, Tick
from covey.extras.audit.story import story_of
from covey.shared.errors import UserError
from covey.shared.wire.messages import ReportContent
from tests.kit.small_run import begun, in_process, received, scenario


def texts(agent: str, folder: Path) -> list[str]:
    return [sentence.text for sentence in story_of(agent, folder).sentences]


def test_a_whole_run_is_in_it_in_order(tmp_path: Path) -> None:
    run = in_process(tmp_path, scenario("fedavg", rounds={"count": 1, "participation": 1.0}))
    assert texts("agent-0", tmp_path) == [
        "The run started.",
        "Invited to round 1: step 1, train.",
        "Step 1 was folded with its report.",
        "Invited to the evaluation after round 1: step 2, evaluate.",
        "Step 2 was folded with its report.",
        "The run was finished.",
    ]
    assert story_of("agent-0", tmp_path).run == run.id


def test_failures_refusals_quarantine_and_a_void_round_are_in_it(tmp_path: Path) -> None:
    limits = {"quarantine_after": 1}
    scene = scenario("fedavg", rounds={"participation": 1.0}, aggregation=limits)
    run = begun(tmp_path, scene, start_agents=2)
    for agent in ("idle", "pi"):
        run.handle(Joined(agent), 0.0)
    nothing: dict[str, Any] = {"examples": 0, "steps": 0, "loss": 0.0, "seconds": 0.0}
    nothing |= {"numbers": {}, "vectors": {}, "work": bytes(16)}
    failure = ReportContent(run="r1", step=1, client="idle", failure="out of memory", **nothing)
    received(run, "idle", failure.to_bytes(), 1.0)
    received(run, "pi", b"rubbish", 2.0)
    run.handle(Release("pi"), 3.0)
    run.handle(Tick(), 1000.0)
    run.audit.sync()
    assert texts("idle", tmp_path) == [
        "The run started.",
        "Invited to round 1: step 1, train.",
        "It could not do its work: step 1: out of memory",
        "Step 1 came to nothing: 0 of 2 invited agents reported, the quorum is 1",
        "Invited to round 1: step 2, train.",
    ]
    about_pi = texts("pi", tmp_path)
    assert about_pi[2] == "A message was refused: version: 114, expected 1"
    assert about_pi[3].startswith("Quarantined after refused reports in 1 steps: ")
    assert "Released from quarantine." in about_pi


def test_the_command_prints_sentences_or_json(tmp_path: Path) -> None:
    in_process(tmp_path, scenario("fedavg", rounds={"count": 1}))
    shown = CliRunner().invoke(app, ["lab", "story", "agent-1", str(tmp_path)])
    assert shown.exit_code == 0
    assert "Step 2 was folded with its report." in shown.stdout
    answer = CliRunner().invoke(app, ["lab", "story", "agent-1", str(tmp_path), "--json"])
    document = json.loads(answer.stdout)
    assert document["agent"] == "agent-1"
    assert [set(line) for line in document["story"]] == [{"time", "text"}] * len(document["story"])


def test_an_agent_that_the_log_does_not_mention_is_named(tmp_path: Path) -> None:
    in_process(tmp_path, scenario("fedavg", rounds={"count": 1}))
    with pytest.raises(UserError, match="does not mention agent-77; it mentions agent-0, "):
        story_of("agent-77", tmp_path)


def test_a_folder_without_an_audit_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no audit\.jsonl in it"):
        story_of("agent-0", tmp_path)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_text("{\n")
    with pytest.raises(UserError, match=r"line 1: cannot be read .*coordinator lab audit"):
        story_of("agent-0", tmp_path)
