"""Another installed package adds a method, a model and a data source, and each machine's owner decides about them: what needs `dashboard`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covey
from covey.coordinator.cli.program import app
from covey.extras.dashboard.run_facts import facts_of
from covey.shared.own_code.consent import consented
from tests.test_plugins import ALLOWED
from tests.test_plugins import installed as installed
from tests.test_plugins import once as once
from tests.test_plugins import trained as trained


def test_the_command_in_a_report_repeats_a_run_of_others_code(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with consented(ALLOWED):
        facts = facts_of(trained)
    assert facts.remarks == ["The code of blobs must be installed, or its folder be in PYTHONPATH."]
    name, *words = shlex.split(facts.command)
    assert name == "coordinator"
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    again = covey.Result.read(tmp_path / "runs" / "run-again")
    assert again.accuracy("server") == covey.Result.read(trained).accuracy("server")
