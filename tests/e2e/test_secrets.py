"""What a broker asks of its clients, certificates and passwords, reaches every program that connects to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.certificates import Authority
from tests.e2e.conftest import SIMULATED, finish
from tests.processes import Program, free_port, needs_mosquitto, program, result, until, words

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("numpy_learner")]


@contextmanager
def strict_broker(folder: Path) -> Iterator[tuple[str, Authority]]:
    """A Mosquitto that wants certificates of its clients, as `broker up` runs it."""
    authority, port = Authority(folder), free_port()
    own = authority.sign("broker")
    tls = ["--tls-cert", str(own.cert), "--tls-key", str(own.key), "--tls-ca", str(authority.cert)]
    with program(
        "covey.broker.cli", "up", "--port", str(port), *tls, log=folder / "broker.log"
    ) as broker:
        until(lambda: "listens" in broker.output, of=broker)
        yield f"mqtts://localhost:{port}", authority


def credentials(folder: Path, url: str, authority: Authority, **names: str) -> list[str]:
    """The option with a file as a person writes it for a broker of somebody else's."""
    file = folder / "foreign.pem"
    about = {"id": "coordinator", "broker": url, **names}
    file.write_text(json.dumps(about) + "\n" + authority.cert.read_text())
    return ["--credentials", str(file)]


@pytest.mark.whole
@pytest.mark.broker
@needs_mosquitto
def test_a_run_with_its_fleet_and_its_status_over_a_broker_that_wants_certificates(
    tmp_path: Path,
) -> None:
    path = SIMULATED.written(tmp_path, rounds={"count": 2})
    with strict_broker(tmp_path) as (url, authority):
        own = authority.sign("coordinator")
        names = {"cert": own.cert.name, "key": str(own.key)}  # of which one is relative
        reach = credentials(own.cert.parent, url, authority, **names)
        command = words("coordinator run", path, "--out", tmp_path / "run", "--json", *reach)
        finish(Program(command, tmp_path / "run.log"))
        with program(
            "covey.coordinator.cli", "status", *reach, log=tmp_path / "status.log"
        ) as status:
            assert status.process.wait(60) == 0, status.output
            assert "e2e: finished, round 2 of 2" in status.output
    assert result(tmp_path / "run")["rounds"] == 2
    assert "no connection" not in (tmp_path / "run" / "fleet.log").read_text()


@pytest.mark.whole
@pytest.mark.broker
@needs_mosquitto
def test_without_a_certificate_every_program_names_what_is_missing(tmp_path: Path) -> None:
    path = SIMULATED.written(tmp_path)
    with strict_broker(tmp_path) as (url, authority):
        reach = credentials(tmp_path, url, authority)
        with program(
            "covey.coordinator.cli", "status", *reach, log=tmp_path / "status.log"
        ) as status:
            assert status.process.wait(60) == 2, status.output
        with program(
            "covey.agent.cli",
            "lab",
            "fleet",
            str(path),
            "--run-dir",
            str(tmp_path),
            *reach,
            log=tmp_path / "f.log",
        ) as f:
            until(lambda: "no connection" in f.output, of=f)
    for output in (status.output, f.output):
        assert "name cert and key in the credentials file" in output


def test_a_file_that_cannot_be_read_ends_a_run_before_anything_starts(tmp_path: Path) -> None:
    path = SIMULATED.written(tmp_path)
    command = ["covey.coordinator.cli", "run", str(path), "--out", str(tmp_path / "run")]
    file = tmp_path / "own.pem"
    file.write_text(
        json.dumps({"id": "coordinator", "broker": "mqtts://localhost:1", "cert": "none.pem"})
    )
    with program(*command, "--credentials", str(file), log=tmp_path / "run.log") as run:
        assert run.process.wait(60) == 2
    assert "none.pem" in run.output
    assert "Traceback" not in run.output
    assert not (tmp_path / "run" / "fleet.log").exists()


def test_no_command_line_of_a_run_has_the_password_and_its_fleet_reports_once_that_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVEY_BROKER", f"mqtt://ann:s3cret@127.0.0.1:{free_port()}")
    path, log = SIMULATED.written(tmp_path), tmp_path / "run" / "fleet.log"
    with program(
        "covey.coordinator.cli",
        "run",
        str(path),
        "--out",
        str(log.parent),
        log=tmp_path / "run.log",
    ) as run:
        until(lambda: log.exists() and "no connection" in log.read_text(), of=run)
        programs = psutil.Process(run.process.pid).children(recursive=True)
        lines = [" ".join(one.cmdline()) for one in programs]
    assert any("agent.cli lab fleet" in line for line in lines)
    assert not any("s3cret" in line for line in lines)
    assert "s3cret" not in run.output + log.read_text()
    assert log.read_text().count("no connection") == 1
