"""Run folders and agents of another format: refused or excluded by name, never malice and never another scenario."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.run.folder import prepare
from covey.coordinator.run.happenings import Refused
from covey.coordinator.run.options import RunOptions
from covey.coordinator.serve.intake import Intake
from covey.coordinator.serve.placement import Placement
from covey.coordinator.serve.roster import Roster
from covey.shared.errors import DecodeError, UserError
from covey.shared.scenario.describe import dump
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.format import FORMAT, NONE
from tests.coordinator.test_recovery import half_reported, orders_in, report_of, resumed
from tests.coordinator.test_run import opened


def rewritten(folder: Path, change: Any) -> dict[str, bytes]:
    """The checkpoint of a run as another version writes it: changed, with a right digest. Returns all files."""
    file = folder / "checkpoint" / "manifest.json"
    tree = json.loads(file.read_text().split("\n", 1)[1])
    change(tree)
    body = json.dumps(tree)
    file.write_text(f"{hashlib.blake2b(body.encode(), digest_size=16).hexdigest()}\n{body}\n")
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_number(tree: dict[str, Any]) -> None:
    del tree["format"]
    del tree["covey"]


CHANGES: Mapping[str, Any] = {
    "another number": lambda tree: tree.update(format=FORMAT + 1, covey="9.9.9"),
    "no number": without_number,
    "a key of the run": lambda tree: tree["facts"]["run"].update(newkey=1),
    "a key of the method": lambda tree: tree["state"].update(newkey=1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_run_of_another_version_is_refused_by_its_version_and_nothing_is_changed(
    tmp_path: Path, change: Any
) -> None:
    half_reported(tmp_path)
    before = rewritten(tmp_path, change)
    with pytest.raises(UserError, match="this run was begun with") as refusal:
        resumed(tmp_path)
    assert "scenario" not in str(refusal.value)
    assert {path: before[path] for path in before} == contents(tmp_path)


def test_a_run_of_another_version_is_refused_before_its_scenario_is_compared(
    tmp_path: Path,
) -> None:
    run, _ = half_reported(tmp_path)
    (tmp_path / "scenario.yaml").write_text(dump(run.scenario))
    rewritten(tmp_path, CHANGES["no number"])
    with pytest.raises(UserError, match=r"begun with an earlier version of Covey \(format 0\)"):
        prepare(run.scenario, RunOptions(folder=tmp_path, resume=True), in_process=False)


def test_the_same_scenario_under_another_digest_means_another_version(tmp_path: Path) -> None:
    run, _ = half_reported(tmp_path)
    (tmp_path / "scenario.yaml").write_text(dump(run.scenario))
    rewritten(tmp_path, lambda tree: tree["facts"].update(scenario="0" * 16))
    with pytest.raises(UserError, match=r"another version of Covey, which reads scenario\.yaml"):
        prepare(run.scenario, RunOptions(folder=tmp_path, resume=True), in_process=False)


def test_a_finished_run_of_another_format_can_still_be_read(tmp_path: Path) -> None:
    half_reported(tmp_path)
    rewritten(tmp_path, CHANGES["another number"])
    assert Checkpoint(tmp_path / "checkpoint").facts()["run"]["run"] == "r1"


@pytest.mark.parametrize("number", [NONE, FORMAT + 1])
def test_an_agent_of_another_number_is_excluded_with_the_reason_and_who_needs_an_update(
    tmp_path: Path, number: int
) -> None:
    run, _ = opened(tmp_path)
    digest = run.scenario.task.digest
    roster = Roster(digest)
    intake = Intake(run, roster, Placement(1))
    status = AgentStatus(
        agent="a", session="s", online=True, task=digest, format=number, version="1.2.3"
    )
    intake.status("a", status.to_bytes(), False, 0.0)
    [(read, _, _)] = intake.take_statuses("a")
    assert roster.seen(read, retained=False, epoch="", now=0.0) == []
    older = "agent a" if number < FORMAT else "this coordinator"
    problem = roster.rows({})["a"]["problem"]
    assert f"agent a speaks format {number} (Covey 1.2.3)" in problem
    assert problem.endswith(f"update {older}")
    assert "a (agent a speaks" in roster.exclusions()


def test_reports_of_another_number_are_no_malice_and_their_agent_learns_why(tmp_path: Path) -> None:
    run, orders = half_reported(tmp_path)
    client = sorted(orders)[-1]
    why = DecodeError("format", "the sender of this report speaks format 0")
    for _ in range(10):
        effects = run.handle(Refused(client, why), 0.0)
    assert client not in run.members.refused, "it counts towards a quarantine"
    assert orders_in(effects)[client].refused == str(why)


def test_an_agent_learns_of_a_refusal_until_a_report_is_accepted_and_of_its_quarantine(
    tmp_path: Path,
) -> None:
    run, orders = half_reported(tmp_path)
    client = sorted(orders)[-1]
    effects = run.handle(Refused(client, DecodeError("not finite", "the loss is nan")), 0.0)
    assert "the loss is nan" in orders_in(effects)[client].refused
    run.accept(client, report_of(run, client, orders[client]), 0.0)
    assert run.order_of(client).order.refused == ""
    run.members.bar(client, "fields: wrong")
    assert f"coordinator lab release {client}`: fields: wrong" in run.order_of(client).order.refused
