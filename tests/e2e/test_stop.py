"""Ctrl-C and SIGTERM stop a run at any moment, over a broker and without one: exit code 130, and it can be resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.coordinator.serve.signals import interrupts_stay_interrupts
from covey.shared.programs.child import stop_signals
from tests.e2e.conftest import SIMULATED, finish
from tests.e2e.enrolled import data
from tests.processes import (
    Program,
    free_port,
    model_bytes,
    mosquitto,
    needs_mosquitto,
    program,
    rows,
    until,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("numpy_learner")]

Moment = Callable[[Path], object]
WAYS = {"over a broker": ["--embedded"], "in process": ["--in-process"]}
MOMENTS: dict[str, Moment] = {
    "when its folder appears": lambda out: (out / "scenario.yaml").exists(),
    "in mid-run": lambda out: len(rows(out)) >= 2,
}


# A run must not be over before the test that has seen its second round can stop it: many rounds, or slow ones.
ROUNDS = {"over a broker": 6, "in process": 20}
FAULTS = {"over a broker": {"slow": 1.0, "slow_s": 0.3}, "in process": {}}


def command(folder: Path, way: str, out: str, rounds: int | None = None) -> list[str]:
    limits = {"count": rounds or ROUNDS[way], "timing": {"absence_s": 300, "rollcall_s": 120}}
    path = SIMULATED.written(folder, rounds=limits, fleet={"faults": FAULTS[way]})
    return ["covey.coordinator.cli", "run", str(path), "--out", str(folder / out), *WAYS[way]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, numpy_learner: None) -> dict[str, Path]:
    """By way, the folder of a run of as many rounds that nobody stopped."""
    folders = {}
    for way, rounds in ROUNDS.items():
        folder = tmp_path_factory.mktemp("whole")
        finish(Program(command(folder, "in process", "run", rounds), folder / "log"))
        folders[way] = folder / "run"
    return folders


@pytest.mark.whole
@pytest.mark.parametrize(
    ("way", "moment"),
    [("over a broker", "in mid-run"), *(("in process", moment) for moment in MOMENTS)],
)
def test_a_terminated_run_shows_how_to_resume_it_and_resumes(
    tmp_path: Path, whole: dict[str, Path], way: str, moment: str
) -> None:
    out, line = tmp_path / "run", command(tmp_path, way, "run")
    this = Program(line, tmp_path / "log")
    until(lambda: MOMENTS[moment](out), of=this)
    this.process.send_signal(signal.SIGTERM)
    assert this.process.wait(60) == 130, this.output
    assert this.output.count("stopped; to continue: coordinator run") == 1
    assert "Traceback" not in this.output
    finish(Program([*line, "--resume"], tmp_path / "log"))
    assert model_bytes(out) == model_bytes(whole[way])


def serializer_that_wraps_errors() -> None:
    """As pydantic's does when Ctrl-C strikes in one of its callbacks."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as interrupt:
        raise ValueError("error calling function") from interrupt


def test_an_interrupt_that_a_library_turns_into_an_error_stays_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts_stay_interrupts():
        serializer_that_wraps_errors()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_without_an_interrupt_stays_itself() -> None:
    with pytest.raises(ValueError, match="broken"), interrupts_stay_interrupts():
        raise ValueError("broken")


@pytest.mark.whole
def test_a_run_in_process_hears_ctrl_c(tmp_path: Path) -> None:
    assert {*stop_signals()} == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    this = Program(command(tmp_path, "in process", "run", rounds=1000), tmp_path / "log")
    until(lambda: rows(tmp_path / "run"), of=this)
    this.process.send_signal(signal.SIGINT)
    assert this.process.wait(60) == 130, this.output
    assert "--in-process --resume" in this.output


@pytest.mark.whole
@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("name", ["run", "start", "up"])
def test_a_program_begun_with_nohup_outlives_its_terminal(tmp_path: Path, name: str) -> None:
    """It begins with SIGHUP ignored; another one ends with its terminal, as by SIGTERM."""
    port = free_port()
    reach = ["--broker", f"mqtt://127.0.0.1:{port}"]
    lines = {
        "run": command(tmp_path, "in process", "run", rounds=1000),
        "start": ["covey.agent.cli", "start", *reach, "--data", str(data(tmp_path, 1))],
        "up": ["covey.broker.cli", "up", "--port", str(free_port())],
    }
    lines["start"] += ["--id", "pi-1", "--state", str(tmp_path / "state")]
    signs = {"run": "round", "start": "connected", "up": "listens"}
    with mosquitto(tmp_path, port):
        for is_ignored in (False, True):
            log = tmp_path / f"log-{is_ignored}"
            line = lines[name]
            if is_ignored:
                line = ["nohup", sys.executable, "-m", *line]
                line += ["--resume"] if name == "run" else []
            with program(*line, log=log, module=not is_ignored) as this:
                until(lambda this=this: signs[name] in this.output, of=this)  # type: ignore[misc]
                this.process.send_signal(signal.SIGHUP)
                if not is_ignored:
                    assert this.process.wait(60) in (0, 130), this.output
                    continue
                with pytest.raises(subprocess.TimeoutExpired):
                    this.process.wait(0.5)
                assert this.stop() in (0, 130), this.output
