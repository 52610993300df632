"""`coordinator ls` and `coordinator prune`: what needs `in_use`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.coordinator.record.audit_trail import Trail
from covey.extras.in_use.registry import Publication, note
from covey.shared.scenario.describe import dump
from covey.shared.storage.files import folder_lock
from tests.coordinator.test_ls import SCENE, typed
from tests.coordinator.test_ls import runs as runs


def published(runs: Path, *acts: tuple[str, Sequence[str], str]) -> None:
    """Publications of these runs: devices of a candidate, and a name of the version."""
    for serial, (name, devices, alias) in enumerate(acts, start=1):
        line = Publication(
            "promote", 2, serial, name, "default", devices=tuple(devices), alias=alias
        )
        note(Trail(runs / name, name), line)


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
