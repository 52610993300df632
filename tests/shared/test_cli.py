"""What the commands of all three programs have in common."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from covey.agent.cli.program import AgentCommands
from covey.agent.cli.program import app as agent
from covey.broker.cli.program import BrokerCommands
from covey.broker.cli.program import app as broker
from covey.coordinator.cli import reference
from covey.coordinator.cli.options import in_federation
from covey.coordinator.cli.program import CoordinatorCommands
from covey.coordinator.cli.program import app as coordinator
from covey.shared.cli import BrokerAddresses, failed, user_errors
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.credentials import BEGIN, render
from covey.shared.programs.version import version
from covey.shared.scenario.load import load
from covey.shared.sentences import in_lines
from tests.coordinator.dashboards import (
    agents,
    append_lines,
    phase,
    write_plan,
    write_roster,
    write_status,
)

PROGRAMS = pytest.mark.parametrize("app", [agent, broker, coordinator])


@PROGRAMS
def test_every_program_prints_its_version_its_help_and_its_completion(app: typer.Typer) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"covey {version()}\n")
    short = runner.invoke(app, ["-h"])
    assert (short.exit_code, short.stdout) == (0, runner.invoke(app, ["--help"]).stdout)
    assert "--install-completion" in short.stdout


def test_a_program_imports_the_command_that_was_typed_and_no_other() -> None:
    code = "import sys; from covey.agent.cli.program import app; app(['lab', 'policy'], standalone_mode=False); "
    code += "sys.exit('covey.agent.cli.simulation' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


COMMANDS = {
    (kind.__module__.split(".")[1], name): entry
    for kind in (AgentCommands, BrokerCommands, CoordinatorCommands)
    for name, entry in {**kind.front, **kind.lab}.items()
}
LISTS = [place for place, entry in COMMANDS.items() if entry.about.startswith("List ")]
TRAINS = {"torch", "scipy", "sklearn", "pandas", "pyarrow"}
COMPUTES = {"numpy", "covey.shared.scenario.scenario", "covey.shared.strategies.base"}


def loaded_by(*lines: str) -> set[str]:
    """The modules in memory after a fresh interpreter has run these lines."""
    code = "\n".join(["import sys", *lines, "sys.exit(' '.join(sys.modules))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("program", sorted({program for program, _ in COMMANDS}))
def test_no_command_loads_what_trains_before_it_is_run(program: str) -> None:
    lines = [f"{one!r}.load()" for (of, _), one in COMMANDS.items() if of == program]
    assert not loaded_by("from covey.shared.commands import CommandEntry", *lines) & TRAINS


@pytest.mark.parametrize("place", LISTS, ids=" ".join)
def test_a_command_that_lists_loads_neither_numbers_nor_methods_nor_scenarios(
    place: tuple[str, str], tmp_path: Path
) -> None:
    (program, name), entry = place, COMMANDS[place]
    run = tmp_path / "run"
    write_plan(run)
    write_roster(run, agents(3))
    write_status(run)
    append_lines(run, phase(1), phase(1, evaluated=0.5))
    folders = {"folder": run, "runs": tmp_path}
    words = [
        name,
        *(str(folders[one]) for one in signature(entry.load()).parameters if one in folders),
    ]
    lines = ["from covey.shared.commands import CommandEntry", f"{entry!r}.load()"]
    if len(words) > 1:
        lines += [
            f"from covey.{program}.cli.program import app",
            f"app({words}, standalone_mode=False)",
        ]
    assert not loaded_by(*lines) & (TRAINS | COMPUTES)


def test_the_look_at_what_a_command_loads_sees_it() -> None:
    assert loaded_by("import covey.coordinator.cli.run") >= COMPUTES


def test_the_methods_fit_a_narrow_terminal_with_hanging_indents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()
    terminal = Console(width=80, file=written, markup=False)
    monkeypatch.setattr(reference, "out", lambda: terminal)
    assert CliRunner().invoke(coordinator, ["lab", "methods"]).exit_code == 0
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    place = lines.index(next(line for line in lines if line.startswith("    choose: ")))
    assert lines[place + 1].startswith("        ")


def test_a_command_takes_the_short_option_for_help_too() -> None:
    result = CliRunner().invoke(coordinator, ["run", "-h"])
    assert result.exit_code == 0
    assert "--resume" in result.stdout


def test_a_command_that_did_not_achieve_its_purpose_exits_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failed("no agent was evaluated").exit_code == 1
    assert capsys.readouterr().err == "error: no agent was evaluated\n"


def test_validate_refuses_an_unknown_model(tmp_path: Path) -> None:
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
from covey.broker.cli import main, serving

def interrupted(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
serving.available_broker = interrupted
sys.argv = ["broker", "up"]
main()
"""


def test_a_command_that_has_begun_receives_ctrl_c_as_an_exception() -> None:
    code = [sys.executable, "-c", INTERRUPTED_COMMAND]
    done = subprocess.run(code, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def credentials_for(folder: Path, name: str, role: str, federation: str) -> Path:
    """A credentials file as `broker enroll --federation` writes it, of a broker that nobody reaches."""
    file = folder / f"{name}.pem"
    url = BrokerUrl.parse(f"mqtts://{name}:secret@127.0.0.1:1")
    file.write_text(render(name, url, f"{BEGIN}\nx\n", role=role, federation=federation))
    return file


def scenario_in(folder: Path, **keys: str) -> Path:
    file = folder / "scenario.yaml"
    sections = {
        "name": "s",
        "task": {"features": [2], "classes": 2, "model": {"name": "linear"}},
        "strategy": {"name": "fedavg"},
        "training": {"lr": 0.1},
        "rounds": {"count": 1},
        **keys,
    }
    file.write_text(yaml.safe_dump(sections))
    return file


def test_credentials_of_another_federation_are_refused_before_anything_connects(
    tmp_path: Path,
) -> None:
    boss = credentials_for(tmp_path, "boss", "coordinator", "south")
    pi = credentials_for(tmp_path, "pi-7", "agent", "south")
    file = scenario_in(tmp_path, federation="north")
    for app, command in (
        (coordinator, ["run", str(file), "--credentials", str(boss), "--out", str(tmp_path / "r")]),
        (agent, ["start", "--data", "x", "--federation", "north", "--credentials", str(pi)]),
    ):
        refused = CliRunner().invoke(app, command)
        assert refused.exit_code == 2, refused.output
        text = " ".join(refused.stderr.split())
        assert "these credentials are for federation 'south'" in text
        assert "'north'" in text
    assert not (tmp_path / "r").exists()


def test_a_scenario_that_names_no_federation_takes_that_of_the_credentials(tmp_path: Path) -> None:
    boss = credentials_for(tmp_path, "boss", "coordinator", "south")
    connection = BrokerAddresses(credentials=(boss,))
    assert in_federation(connection, load(scenario_in(tmp_path))).federation == "south"
    elsewhere = BrokerAddresses(("mqtt://other",), (boss,))  # the file only supplies its CA
    assert in_federation(elsewhere, load(scenario_in(tmp_path))).federation == "default"
    named = load(scenario_in(tmp_path, federation="south"))
    assert in_federation(connection, named).federation == "south"


def test_a_package_that_is_not_installed_is_named_with_the_command_that_adds_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The wheel alone has three programs, and no extras."""
    place: dict[str, Any] = {"__name__": "covey.agent.data.dataset"}
    with pytest.raises(typer.Exit) as ended, user_errors():
        exec("import no_such_package", place)  # noqa: S102
    assert ended.value.exit_code == 2
    expected = "error: the package no_such_package is not installed; in your clone of Covey, run pip install '.[agent]'"
    assert capsys.readouterr().err.strip() == expected
    somebody = {"__name__": "somebody"}
    place |= {"call": lambda: exec("import no_such_package", somebody)}  # noqa: S102
    with pytest.raises(ModuleNotFoundError), user_errors():
        exec("call()", place)  # noqa: S102


def helps(command: Any) -> Iterator[str]:
    """The help of a command, and of those below it."""
    yield command.get_help(typer.Context(command))
    for one in getattr(command, "commands", {}).values():
        yield from helps(one)


@pytest.mark.whole
@PROGRAMS
def test_no_help_names_a_type_as_python_does(app: typer.Typer) -> None:
    found = list(helps(get_command(app)))
    assert len(found) > 5
    for text in found:
        assert re.findall(r"<(?:str|int|float|bool|list|Path)\b.*?>", text) == [], text


def test_a_long_message_has_three_lines_of_whole_clauses() -> None:
    short = "error: x.csv: no such file; give another one"
    assert in_lines(short) == short
    clause = "the device g01 takes no part because its data has another column"
    text = f"error: {'; '.join([clause] * 9)}. Expected: {clause}; {clause}"
    lines = in_lines(text).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 0.5 * len(text)
    assert all(line.endswith((";", ".")) for line in lines[:-1])
    assert " ".join(" ".join(lines).split()) == text, "no word is lost"
    assert in_lines("x" * 900) == "x" * 900
