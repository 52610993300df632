"""kill -9 of the coordinator, of the broker, of agents: the final bytes are those of an undisturbed run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import SIMULATED, coordinator, finish, fleet, whole_in_process
from tests.processes import Program, free_port, model_bytes, mosquitto, needs_mosquitto, rows, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.usefixtures("numpy_learner"),
    needs_mosquitto,
]


@pytest.mark.whole
def test_a_broker_killed_in_mid_run_ends_with_the_same_bytes(
    tmp_path: Path, undisturbed: Path
) -> None:
    """With its memory of a second ago; tests/chaos has brokers without any, and with another run's."""
    port = free_port()
    config = f"persistence true\npersistence_location {tmp_path}/\nautosave_interval 1\n"
    with mosquitto(tmp_path, port, config) as first, fleet(tmp_path, port):
        this = coordinator(tmp_path, port)
        until(lambda: len(rows(tmp_path / "run")) >= 2, of=this)
        first.kill()
        with mosquitto(tmp_path, port, config):
            finish(this)
    assert model_bytes(tmp_path / "run") == model_bytes(undisturbed)


@pytest.mark.whole
def test_the_one_command_run_resumes_with_its_own_broker_and_fleet(tmp_path: Path) -> None:
    folder, log = tmp_path / "killed", tmp_path / "killed.log"
    path = SIMULATED.written(tmp_path, rounds={"count": 4})
    command = ["covey.coordinator.cli", "run", str(path), "--out", str(folder), "--json"]
    this = Program(command, log)
    until(lambda: len(rows(folder)) >= 2, of=this)
    this.kill()
    finish(Program([*command, "--resume"], log))
    assert model_bytes(folder) == model_bytes(
        whole_in_process(tmp_path / "whole", rounds={"count": 4})
    )


@pytest.mark.whole
def test_a_run_that_cannot_be_resumed_is_refused_and_left_alone(
    tmp_path: Path, undisturbed: Path
) -> None:
    folder, port = tmp_path / "run", free_port()
    shutil.copytree(undisturbed, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    anew = coordinator(tmp_path, port, out="run")
    assert anew.process.wait(60) == 2, anew.output
    assert "a run folder is already there" in anew.output
    other = coordinator(
        tmp_path, port, "--resume", out="run", seed=6
    )  # one after another: a folder is for one at a time
    assert other.process.wait(60) == 2, other.output
    assert "belongs to another scenario; yours differs: seed: " in " ".join(other.output.split())
    manifest = folder / "checkpoint" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: len(whole) // 2])
    cut = coordinator(tmp_path, port, "--resume")
    assert cut.process.wait(60) == 2
    assert "cut short" in cut.output
    assert manifest.read_bytes() == whole[: len(whole) // 2]
    manifest.write_bytes(whole)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
