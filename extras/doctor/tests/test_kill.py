"""kill -9 of the coordinator, of the broker, of agents: what needs `doctor` and `runs`."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest
from paho.mqtt import subscribe

from covey.coordinator.odd import Odd
from covey.extras.doctor.command import of_broker, of_folder
from covey.extras.runs.folder_reader import FolderReader
from covey.extras.runs.run_list import state_of
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.wire.documents import RosterMessage
from covey.shared.wire.topics import Topics
from tests.e2e.conftest import coordinator, fleet
from tests.processes import free_port, mosquitto, needs_mosquitto, rows, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.usefixtures("numpy_learner"),
    needs_mosquitto,
]


def test_a_coordinator_that_was_killed_or_stopped_is_the_first_of_the_list(tmp_path: Path) -> None:
    port = free_port()
    url = BrokerUrl("127.0.0.1", port)

    def first(*, asks: bool = True) -> Odd:
        return asyncio.run(of_broker(url, "default", asks=asks))[0]

    with mosquitto(tmp_path, port), fleet(tmp_path, port):
        this = coordinator(tmp_path, port, "--set", "rounds.count=500")
        until(lambda: len(rows(tmp_path / "run")) >= 2, of=this)
        until(lambda: round_at(port) > 0, of=this)  # published each second
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


def round_at(port: int) -> int:
    """The round of the newest roster that the broker has."""
    roster = Topics("default").roster
    message = subscribe.simple(roster, hostname="127.0.0.1", port=port)  # type: ignore[no-untyped-call]
    return RosterMessage.from_bytes(message.payload).round


def read(folder: Path) -> FolderReader:
    reader = FolderReader(folder)
    reader.poll()
    return reader
