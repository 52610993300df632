"""`agent lab service`: the unit file that runs an agent on a device."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app
from covey.agent.device.systemd import quoted, render
from covey.shared.mqtt import credentials
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.wire.format import FORMAT


def unit(*options: str) -> dict[str, str]:
    """The keys of the printed unit."""
    done = CliRunner().invoke(app, ["lab", "service", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def enrolled(user: str, folder: Path) -> Path:
    """Credentials as `broker enroll` writes them."""
    file = folder / "user.pem"
    file.write_text(
        credentials.render(user, BrokerUrl.parse("mqtts://u:p@host"), f"{credentials.BEGIN}\n")
    )
    return file


def test_the_unit_runs_agent_start_with_the_given_options_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COVEY_THREADS", raising=False)
    Path("my data").mkdir()
    options = [
        "--data",
        "my data",
        "--broker",
        "mqtts://host",
        "--model-dir",
        "models",
        "--keep-warm",
        "5",
    ]
    found = unit(*options, "--user", "pi", "--id", "pi-7")
    (_, *words) = shlex.split(found["ExecStart"])
    wanted = [
        "--data",
        str(tmp_path / "my data"),
        "--broker",
        "mqtts://host",
        "--model-dir",
        str(tmp_path / "models"),
    ]
    assert words[:4] == ["-P", "-m", "covey.agent.cli", "start"]
    assert sorted(words[4:]) == sorted([*wanted, "--keep-warm", "5.0", "--id", "pi-7"])
    assert (found["User"], found["Description"]) == ("pi", "Covey agent pi-7")


def test_options_from_the_environment_are_written_into_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVEY_FEDERATION", "hospital")
    assert "--federation hospital" in unit("--data", str(tmp_path))["ExecStart"]


@pytest.mark.parametrize("way", ["typed", "environment"])
def test_a_password_is_never_written_into_a_unit(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, url = ["lab", "service", "--data", str(tmp_path)], "mqtt://pi:s3cret@host"
    if way == "environment":
        monkeypatch.setenv("COVEY_BROKER", url)
    done = CliRunner().invoke(app, line if way == "environment" else [*line, "--broker", url])
    assert done.exit_code == 2
    assert "use --credentials instead" in done.stderr
    assert "s3cret" not in done.output


@pytest.mark.parametrize("options", [[], ["--data", "nowhere"], ["--data", ".", "--brocker", "x"]])
def test_options_that_agent_start_refuses_are_refused(options: list[str]) -> None:
    done = CliRunner().invoke(app, ["lab", "service", *options])
    assert done.exit_code != 0
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("a;b", '"a;b"'),
    ],
)
def test_nothing_in_an_argument_is_expanded(word: str, wanted: str) -> None:
    assert quoted(word) == wanted


@pytest.mark.parametrize("command", ["start", "lab service"])
@pytest.mark.parametrize(
    ("user", "options", "said"),
    [
        (
            "pi-7",
            ["--id", "pi-8"],
            "belong to pi-7, not to pi-8; omit --id, or give the file of pi-8",
        ),
        ("coordinator", [], "belong to the coordinator; expected those of an agent"),
        ("coordinator", ["--id", "pi-7"], "belong to the coordinator; expected those of an agent"),
    ],
)
def test_credentials_of_another_user_are_refused(
    command: str, user: str, options: list[str], said: str, tmp_path: Path
) -> None:
    file = enrolled(user, tmp_path)
    line = [*command.split(), "--data", str(tmp_path), "--credentials", str(file), *options]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 2
    assert said in done.stderr


def test_an_agents_own_credentials_name_it(tmp_path: Path) -> None:
    file = enrolled("pi-7", tmp_path)
    assert (
        unit("--data", str(tmp_path), "--credentials", str(file))["Description"]
        == "Covey agent pi-7"
    )


def test_an_agent_that_no_restart_can_help_is_not_started_again(tmp_path: Path) -> None:
    """A state folder of another format, as after an upgrade: each other end is followed by a start, and not at once."""
    options = ["--data", str(tmp_path), "--id", "pi-7", "--state", str(tmp_path)]
    (tmp_path / "format.json").write_text(json.dumps({"format": FORMAT + 1, "covey": "9.9.9"}))
    ended = CliRunner().invoke(app, ["start", *options])
    assert "begun with Covey 9.9.9" in ended.output
    found = unit(*options)
    assert found["RestartPreventExitStatus"].split() == [str(ended.exit_code)]
    assert (found["Restart"], int(found["RestartSec"]) >= 5) == ("always", True)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze is installed"
)
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "covey-agent.service"
    file.write_text(render("pi-7", ["/bin/true", "--data", "/my data/100%"], "root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60
    )
    assert "covey-agent" not in done.stderr, done.stderr
