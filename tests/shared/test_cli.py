"""What the commands of all three programs have in common."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from covey.agent.cli.program import app as agent
from covey.broker.cli.program import app as broker
from covey.coordinator.cli.program import app as coordinator
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


INTERRUPTED_IMPORT = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, CtrlC())
from covey.{program}.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("program", ["agent", "broker", "coordinator"])
def test_ctrl_c_during_the_imports_ends_a_program_quietly(program: str) -> None:
    code = INTERRUPTED_IMPORT.format(program=program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


INTERRUPTED_COMMAND = """
import os, signal, sys
from covey.broker import folder
from covey.broker.cli import main

def interrupted(self, home):
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
folder.BrokerFolder.__init__ = interrupted
sys.argv = ["broker", "list"]
main()
"""


def test_a_command_that_has_begun_receives_ctrl_c_as_an_exception() -> None:
    code = [sys.executable, "-c", INTERRUPTED_COMMAND]
    done = subprocess.run(code, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")
