"""Attacks on the access rules: every way into a broker is held to them, or refused when it starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.broker.access import passwords
from covey.broker.cli.program import app
from tests.certificates import Authority
from tests.processes import ROOT, needs_mosquitto

WAYS = [["--embedded"], pytest.param([], marks=[pytest.mark.broker, needs_mosquitto])]


@pytest.mark.whole
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("users", ["--password-file", "--user"])
def test_certificates_together_with_passwords_are_refused(
    way: Sequence[str], users: str, tmp_path: Path
) -> None:
    """Before: the certificate let its owner in as anybody, and the password file counted for nothing."""
    authority = Authority(tmp_path)
    server = authority.sign("server")
    passwords.write(tmp_path / "users", {"pi-7": "p"})
    given = (
        ["--password-file", str(tmp_path / "users")]
        if users == "--password-file"
        else ["--user", "ann"]
    )
    options = [
        "--tls-cert",
        str(server.cert),
        "--tls-key",
        str(server.key),
        "--tls-ca",
        str(authority.cert),
    ]
    secret = {"COVEY_BROKER_PASSWORD": "x"} if users == "--user" else {}
    done = CliRunner().invoke(app, ["up", "--port", "0", *options, *given, *way], env=secret)
    assert done.exit_code == 2
    assert "give either --tls-ca" in done.stderr


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])  # noqa: S104
def test_an_open_broker_beyond_loopback_warns_of_the_consequences(
    host: str, warned: bool, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "covey.broker.cli",
        "up",
        "--port",
        "0",
        "--json",
        "--embedded",
        "--host",
        host,
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.terminate()
        said = process.stderr.read()
    assert ("accepts anyone who can reach" in said) is warned
    assert ("broker init" in said) is warned


@pytest.mark.whole
def test_an_open_broker_names_what_anyone_on_it_can_read() -> None:
    command = [sys.executable, "-m", "covey.broker.cli", "up", "--port", "0", "--embedded"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline() + process.stdout.readline()
        process.terminate()
    assert "can read every model, update and report" in said
