"""What the commands of all three programs have in common."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from covey.agent.cli import app as agent
from covey.broker.cli import app as broker
from covey.coordinator.cli import app as coordinator
from covey.shared.cli import failed, installed_version

PROGRAMS = pytest.mark.parametrize("app", [agent, broker, coordinator])


@PROGRAMS
def test_every_program_prints_its_version_its_help_and_its_completion(app: typer.Typer) -> None:
    runner = CliRunner()
    version = runner.invoke(app, ["--version"])
    assert (version.exit_code, version.stdout) == (0, f"covey {installed_version()}\n")
    short = runner.invoke(app, ["-h"])
    assert (short.exit_code, short.stdout) == (0, runner.invoke(app, ["--help"]).stdout)
    assert "--install-completion" in short.stdout


def test_a_command_takes_the_short_option_for_help_too() -> None:
    result = CliRunner().invoke(coordinator, ["run", "-h"])
    assert result.exit_code == 0
    assert "--resume" in result.stdout


def test_a_command_that_did_not_achieve_its_purpose_exits_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failed("no agent was evaluated").exit_code == 1
    assert capsys.readouterr().err == "error: no agent was evaluated\n"


def test_validate_refuses_a_model_that_nobody_knows(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("name: x\ntask: {features: [3], classes: 2, model: lenet}\nstrategy: fedavg\n")
    result = CliRunner().invoke(coordinator, ["validate", str(file)])
    assert result.exit_code == 2
    assert "task.model 'lenet' is unknown; expected " in result.stderr
    assert "did you mean lenet5?" in result.stderr
    own = [str(file), "--set", "task.model=my_package:net"]  # nothing is imported by a check
    assert CliRunner().invoke(coordinator, ["validate", *own]).exit_code == 0
