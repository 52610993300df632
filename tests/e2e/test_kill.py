"""kill -9 of the coordinator, of the broker, of agents: the final bytes are those of an undisturbed run."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from covey.coordinator.odd import Odd
from covey.coordinator.record.roster_files import read_roster, roster_file
from covey.extras.audit.check import check
from covey.extras.doctor.command import of_broker, of_folder
from covey.extras.runs.folder_reader import FolderReader
from covey.extras.runs.run_list import state_of
from covey.shared.mqtt.broker_url import BrokerUrl
from tests.e2e.conftest import SIMULATED, coordinator, finish, fleet, whole_in_process
from tests.processes import (
    Program,
    free_port,
    model_bytes,
    mosquitto,
    needs_mosquitto,
    result,
    rows,
    until,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.usefixtures("numpy_learner"),
    needs_mosquitto,
]

KILLS = 3


def test_a_coordinator_killed_at_any_time_ends_with_the_same_bytes(
    tmp_path: Path, undisturbed: Path
) -> None:
    port, dice = free_port(), random.Random(1)  # noqa: S311 - bad luck, no secrets
    with mosquitto(tmp_path, port), fleet(tmp_path, port):
        this, kills = coordinator(tmp_path, port), 0
        while kills < KILLS and at_work(this):
            time.sleep(dice.uniform(0.0, 0.9))  # the instant is random, that is the point
            this.kill()
            kills += 1
            this = coordinator(tmp_path, port, "--resume")
        finish(this)
    assert kills >= KILLS - 2, f"only {kills} kills hit the run"
    assert model_bytes(tmp_path / "run") == model_bytes(undisturbed)
    assert result(tmp_path / "run")["assignment"] == result(undisturbed)["assignment"]
    assert [row["reported"] for row in rows(tmp_path / "run")] == [
        row["reported"] for row in rows(undisturbed)
    ]
    audited = check(tmp_path / "run").verdict
    assert audited.whole, audited.broken
    assert (
        audited.events["resume"] >= kills - 1
    )  # a kill may come before the run's first line of that life


def test_a_coordinator_that_was_killed_or_stopped_is_the_first_of_the_list(tmp_path: Path) -> None:
    port = free_port()
    url = BrokerUrl("127.0.0.1", port)

    def first(*, asks: bool = True) -> Odd:
        return asyncio.run(of_broker(url, "default", asks=asks))[0]

    with mosquitto(tmp_path, port), fleet(tmp_path, port):
        this = coordinator(tmp_path, port, "--set", "rounds.count=500")
        until(lambda: len(rows(tmp_path / "run")) >= 2, of=this)
        roster = roster_file(tmp_path / "run")  # written each second, first after the first rows
        until(lambda: roster.exists() and read_roster(tmp_path / "run").round > 0, of=this)
        assert state_of(read(tmp_path / "run")) == "running"
        this.process.send_signal(signal.SIGSTOP)
        assert "does not answer" in first().what
        this.kill()
        for found in (first(), of_folder(tmp_path / "run")[0]):
            assert (found.devices, found.kind) == (("coordinator",), "coordinator")
            assert re.search(r"ended without a word in .+, after round [1-9]\d* of 500", found.what)
            assert "--resume" in found.next
        assert state_of(read(tmp_path / "run")) == "killed"
        this = coordinator(tmp_path, port, "--set", "rounds.count=500", "--resume")
        until(lambda: this.output.count('"event": "phase"') > 1, of=this)
        assert [one.kind for one in asyncio.run(of_broker(url, "default", asks=True))] == []
        this.process.send_signal(signal.SIGINT)
        this.process.wait(30)
        assert "was stopped before its last round" in first().what
        assert "was stopped before its last round" in of_folder(tmp_path / "run")[0].what
        assert state_of(read(tmp_path / "run")) == "stopped"


def read(folder: Path) -> FolderReader:
    reader = FolderReader(folder)
    reader.poll()
    return reader


def at_work(this: Program) -> bool:
    """Wait until a coordinator is connected, and so has a checkpoint; False where its run was over before."""
    links = this.output.count('"event": "link"')
    until(
        lambda: this.output.count('"event": "link"') > links or this.process.poll() is not None,
        of=this,
    )
    return this.process.poll() is None


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
