"""What `coordinator lab forget` leaves: nothing, but for what is stated here with its reason.

The memory of a run is searched as a whole, and every collection of agents in it has the agent before it is forgotten.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.engine.events import Failed, Forget, Joined
from covey.coordinator.record.notices import AgentForgotten, PhaseFolded
from covey.coordinator.run.result import result_of
from covey.coordinator.run.run import Run
from tests.coordinator.test_recovery import ALL, half_reported
from tests.kit import small_run
from tests.kit.small_run import clients, driver, rules, scenario, setup
from tests.kit.traces import fill, is_in_text, traces

GONE = "agent-1"
KEPT = {
    "Members.departed": "an order repeats it, should the agent come back with the report",
    **dict.fromkeys(
        (f"PhaseFolded.{one.name}" for one in fields(PhaseFolded)),
        "the newest line of rounds.jsonl",
    ),
    **dict.fromkeys(
        (f"AgentForgotten.{one.name}" for one in fields(AgentForgotten)), "that it was forgotten"
    ),
    "Publish.messages": "the newest line of rounds.jsonl, on its way",
    "Journal.newest": "the newest line of a file of the history",
    "RoundRules.newcomers": "agents of the scenario, which the operator wrote",
    "RunState.ledger": "the same account, as the checkpoint has it",
    "Ledger.sums": "what was released of an agent cannot be taken back",
    "Ledger.signatures": "as above",
    "Ledger.local": "as above",
    "Ledger.entered": "as above: one report counts once",
}
HISTORY = {
    "audit.jsonl": "a chain: it states what happened",
    "rounds.jsonl": "a line for each round: it states who took part",
}
PRIVATE = {"client": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}}


def run_of(folder: Path, kind: str) -> Run:
    """A run with an open step, or with orders of single agents."""
    scene = small_run.buffered("fedavg") if kind == "buffered" else scenario("fedavg")
    if kind == "private":
        scene = scenario("fedavg", privacy=PRIVATE, rounds=ALL)
    if kind == "secure":
        scene = scenario("fedavg", privacy={"secure": {"clip": 1.0}}, rounds=ALL)
    run = driver(folder, scene).run
    for client in clients():
        run.handle(Joined(client), 0.0)
    return run


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["in step", "buffered", "private", "secure"])
def test_nothing_in_the_memory_of_a_run_names_an_agent_that_was_forgotten(
    tmp_path: Path, kind: str
) -> None:
    run = run_of(tmp_path, kind)
    filled = fill(run, GONE)
    assert {"Members._by_id", "Members.troubled"} <= filled
    run.handle(Forget(GONE), 1.0)
    assert traces(run, GONE) - KEPT.keys() == set()


def named_in(folder: Path, agent: str) -> set[str]:
    """The files of a folder that have this name, in their names or contents."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.name
        for path in files
        if is_in_text(agent, path.name) or is_in_text(agent, path.read_bytes().decode("latin-1"))
    }


def test_a_forgotten_agent_is_in_no_file_of_the_run_but_its_history_and_its_accepted_step(
    tmp_path: Path,
) -> None:
    run, _ = half_reported(tmp_path)
    run.handle(Failed("agent-7", run.engine.number, "private reason of the device"), 0.5)
    for agent in (GONE, "agent-7"):
        run.handle(Forget(agent), 1.0)
    assert "failures" not in result_of(run, None).to_json()
    saved = Checkpoint(tmp_path / "checkpoint").facts()
    saved["run"].pop("accepted")
    assert not [agent for agent in (GONE, "agent-7") if is_in_text(agent, json.dumps(saved))]
    left = named_in(tmp_path, GONE)
    assert left - HISTORY.keys() - {"manifest.json", "reports"} == set()


def test_a_resume_does_not_bring_a_forgotten_agent_back(tmp_path: Path) -> None:
    run, _ = half_reported(tmp_path)
    run.handle(Forget(GONE), 1.0)
    scene = run.scenario
    again, _ = Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=2.0)
    assert traces(again, GONE) - KEPT.keys() == set()
