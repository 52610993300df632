"""Two programs under one name, as their users see it: one message, exit code 2, and the other one continues."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import coordinator, finish, fleet
from tests.processes import free_port, mosquitto, needs_mosquitto, program, rows, until

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]


def test_the_second_agent_of_one_id_ends_with_the_reason(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 2), np.float32), y=np.zeros(4, np.int64))
    port = free_port()

    def start(state: str) -> list[str]:
        broker = f"mqtt://127.0.0.1:{port}"
        data = ["--data", str(tmp_path / "d.npz"), "--state", str(tmp_path / state)]
        return ["covey.agent.cli", "start", "--id", "raspberrypi", "--broker", broker, *data]

    with mosquitto(tmp_path, port), program(*start("one"), log=tmp_path / "one.log") as one:
        until(lambda: "connected" in one.output, of=one)
        with program(*start("two"), log=tmp_path / "two.log") as two:
            assert two.process.wait(60) == 2
        assert one.process.poll() is None
        assert len(re.findall(r":\d\d connected", one.output)) == 1
    assert two.output.count("another agent with the id 'raspberrypi'") == 1
    assert "--id" in two.output
    assert "Traceback" not in two.output


def test_a_second_coordinator_ends_before_it_disturbs_the_first(
    tmp_path: Path, undisturbed: Path
) -> None:
    port = free_port()
    with mosquitto(tmp_path, port), fleet(tmp_path, port):
        first = coordinator(tmp_path, port)
        until(lambda: len(rows(tmp_path / "run")) >= 2, of=first)
        second = coordinator(tmp_path, port, out="second")
        assert second.process.wait(60) == 2
        finish(first)
        again = coordinator(tmp_path, port, out="again")
        until(
            lambda: '"up": true' in again.output, of=again
        )  # what is retained of a finished run is no rival
        again.stop()
    assert "another coordinator is at work in federation 'default'" in second.output
    assert "`federation` in the scenario" in second.output
    assert not (tmp_path / "second").exists()
    assert [row["reported"] for row in rows(tmp_path / "run")] == [
        row["reported"] for row in rows(undisturbed)
    ]
