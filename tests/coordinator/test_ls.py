"""`coordinator ls` and `coordinator prune`: the runs in a folder, and which of them may go."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.coordinator.run.result import write_all
from covey.shared.scenario.describe import dump
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


def typed(*words: object) -> Any:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.whole
def test_a_link_to_a_run_is_not_followed(
    runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "a"
    (runs / "a").rename(elsewhere)
    (runs / "a").symlink_to(elsewhere)
    assert "a" not in [line["title"] for line in typed("prune", runs, "--keep", 1, "--yes")["runs"]]
    assert elsewhere.is_dir()
