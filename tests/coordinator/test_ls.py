"""`coordinator ls` and `coordinator prune`: the runs in a folder, and which of them may go."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.coordinator.record.audit_trail import Trail
from covey.coordinator.run.result import write_all
from covey.extras.in_use.registry import Publication, note
from covey.shared.scenario.describe import dump
from covey.shared.storage.files import folder_lock
from tests.kit import small_run

SCENE = small_run.scenario("fedavg", rounds={"count": 2}, evaluation={"every": 1})
NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Five finished runs, the last one newest, and files that are no run."""
    for age, name in enumerate(reversed(NAMES)):
        folder = tmp_path / name
        run = small_run.in_process(folder, SCENE)
        (folder / "scenario.yaml").write_text(dump(SCENE))
        write_all(run, None)
        for path in folder.rglob("*"):
            os.utime(path, (2e9 - 1000 * age, 2e9 - 1000 * age))
    (tmp_path / "notes").mkdir()
    return tmp_path


def published(runs: Path, *acts: tuple[str, Sequence[str], str]) -> None:
    """Publications of these runs: devices of a candidate, and a name of the version."""
    for serial, (name, devices, alias) in enumerate(acts, start=1):
        line = Publication(
            "promote", 2, serial, name, "default", devices=tuple(devices), alias=alias
        )
        note(Trail(runs / name, name), line)


def typed(*words: object) -> Any:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_runs_are_listed_with_what_they_have_done_the_newest_first(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    published(runs, ("b", (), "summer"), ("d", ("pi-1",), ""))
    (runs / "c" / "result.json").unlink()
    lines = typed("ls", runs)["runs"]
    assert {line["title"]: line["state"] for line in lines} == {
        "a": "finished",
        "b": "finished",
        "c": "stopped",
        "d": "finished",
        "e": "finished",
    }
    by_name = {line["title"]: line for line in lines}
    assert [by_name[name]["published"] for name in ("b", "d", "e")] == [
        ["summer (champion)"],
        ["d@2 (candidate)"],
        [],
    ]
    first = by_name["a"]
    assert (first["rounds_done"], first["rounds"], first["method"]) == (2, 2, "fedavg")
    assert first["measure"] == "accuracy"
    assert 0 <= first["figure"] <= 1
    assert first["bytes"] > 1000
    with folder_lock(runs / "c", "unused"):
        again = {line["title"]: line["state"] for line in typed("ls", runs)["runs"]}
    assert again["c"] == "running"
    shown = CliRunner().invoke(app, ["ls", "."]).stdout
    assert "5 runs" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert any("changed" in line and "published" in line for line in shown.splitlines())
    assert "2/2" in shown
    missing = CliRunner().invoke(app, ["ls", str(runs / "nowhere")])
    assert missing.exit_code == 2


def test_old_runs_are_removed_but_for_those_that_devices_or_a_rollback_need(runs: Path) -> None:
    published(runs, ("a", (), ""), ("b", (), ""))
    listed = typed("prune", runs, "--keep", 1)
    assert (listed["removed"], [line["title"] for line in listed["runs"]]) == (False, ["d", "c"])
    assert (runs / "c").is_dir(), "without --yes nothing is removed"
    with folder_lock(runs / "c", "unused"):
        (runs / "c" / "result.json").unlink()
        assert [one["title"] for one in typed("prune", runs, "--keep", 1)["runs"]] == ["d"]
    (runs / "all" / "fedavg").mkdir(parents=True)
    (runs / "all" / "fedavg" / "scenario.yaml").write_text(dump(SCENE))
    done = typed("prune", runs, "--keep", 1, "--yes")
    assert done["removed"]
    left = sorted(path.name for path in runs.iterdir())
    assert left == ["a", "all", "b", "e", "notes"]
    assert typed("prune", runs, "--keep", 1, "--yes")["runs"] == []


def test_a_link_to_a_run_is_not_followed(
    runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "a"
    (runs / "a").rename(elsewhere)
    (runs / "a").symlink_to(elsewhere)
    assert "a" not in [line["title"] for line in typed("prune", runs, "--keep", 1, "--yes")["runs"]]
    assert elsewhere.is_dir()
