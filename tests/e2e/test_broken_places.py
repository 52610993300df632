"""Programs whose folders cannot be written: one message with the path and the system's name for it, exit code 2.

An error that can pass is waited for in a run that has begun; at a start, a person is there and reads the message.
"""

from __future__ import annotations

import ctypes
import errno
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from tests.e2e.conftest import REAL
from tests.e2e.enrolled import SCENARIO, TASK, data
from tests.kit.others import is_root
from tests.kit.scenes import start_file
from tests.processes import ROOT, free_port, mosquitto, needs_mosquitto, rows, until

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("numpy_learner")]
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
NAMESPACE = ["unshare", "-rm"]
BYPASSES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
DROP = 24  # PR_CAPBSET_DROP


@dataclass(frozen=True)
class Fault:
    """A fault of a folder, for one command.

    Args:
        number: the error that it leads to.
        spoil: makes the folder so.
        before: words before the command.
        child: called in its process before it begins.
    """

    number: int
    spoil: Callable[[Path], object] = Path.mkdir
    before: Callable[[Path], list[str]] = lambda _: []
    child: Callable[[], object] | None = None


def closed(place: Path) -> None:
    place.mkdir()
    place.chmod(0o500)


def as_any_user() -> None:
    """Permissions count for root, too."""
    for capability in BYPASSES if is_root else ():
        ctypes.CDLL(None).prctl(DROP, capability, 0, 0, 0)


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))


def read_only(place: Path) -> list[str]:
    return [*NAMESPACE, "sh", "-c", READ_ONLY, str(place)]


FAULTS = {
    "a file too large": Fault(errno.EFBIG, child=small_files),
    "read-only": Fault(errno.EROFS, before=read_only),
    "closed": Fault(errno.EACCES, closed, child=as_any_user),
    "a file above it": Fault(errno.ENOTDIR, lambda place: place.parent.write_text("a file")),
}
SAID = {
    errno.EFBIG: "File too large (EFBIG)",
    errno.EROFS: "Read-only file system (EROFS)",
    errno.EACCES: "this user may not read or write it",
    errno.ENOTDIR: "this is a file, expected a folder",
}


def has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


def coordinator(folder: Path, place: Path) -> list[str]:
    task = {"init": start_file(folder, REAL.document()["task"])}
    path = REAL.written(
        folder, task=task, rounds={"start_agents": 2}, fleet={"agents": 2, "data": "digits"}
    )
    return ["covey.coordinator.cli", "run", str(path), "--in-process", "--out", str(place)]


def agent(folder: Path, place: Path) -> list[str]:
    broker = f"mqtt://127.0.0.1:{free_port()}"
    own = ["--id", "pi-1", "--data", str(data(folder, 1)), "--broker", broker]
    return ["covey.agent.cli", "start", *own, "--state", str(place)]


def keeper(folder: Path, place: Path) -> list[str]:
    return [*agent(folder, folder / "state"), "--model-dir", str(place)]


def broker(folder: Path, place: Path) -> list[str]:
    return ["covey.broker.cli", "up", "--port", str(free_port()), "--data", str(place)]


PROGRAMS = {one.__name__: one for one in (coordinator, agent, keeper, broker)}


# each program and each fault once: one function writes the message
PAIRS = list(zip(PROGRAMS, FAULTS, strict=True))


@pytest.mark.whole
@pytest.mark.parametrize(("name", "fault"), PAIRS)
def test_a_program_that_cannot_write_its_folder_ends_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    one, place = FAULTS[fault], tmp_path / "above" / "place"
    if one.number == errno.EROFS and not has_namespaces():
        pytest.skip("this system lets nobody mount a folder in a namespace of its own")
    if one.number != errno.ENOTDIR:
        place.parent.mkdir()
    command = PROGRAMS[name](tmp_path, place)
    one.spoil(place)
    line = [*one.before(place), sys.executable, "-m", *command]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(
        "PYTHONDONTWRITEBYTECODE", "1"
    )  # Python would leave parts of compiled modules
    done = subprocess.run(
        line, preexec_fn=one.child, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    is_one_message(done.stderr, tmp_path, one.number)
    assert done.returncode == 2


def is_one_message(said: str, place: Path, number: int) -> None:
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said
    assert f"{place}/" in errors[0]
    assert SAID[number] in errors[0]
    assert "Traceback" not in said
    assert "no room" not in said


def piped(*command: str) -> subprocess.Popen[str]:
    """A program whose output is no file, which a limit of files would cut, too."""
    line = [sys.executable, "-m", *command]
    both = subprocess.STDOUT
    return subprocess.Popen(
        line, cwd=ROOT, stdout=subprocess.PIPE, stderr=both, text=True, preexec_fn=as_any_user
    )


@contextmanager
def at_work(folder: Path) -> Iterator[tuple[dict[str, subprocess.Popen[str]], list[str]]]:
    """An agent with its state in `agent`, and a coordinator with its run in `coordinator`, which has begun; with the words that
    name their broker.
    """
    task = {**TASK, "init": start_file(folder, TASK)}
    rounds = {"count": 1000, "start_agents": 1, "quorum": 1}
    scene = {**SCENARIO, "task": task, "strategy": {"name": "fedavg"}, "rounds": rounds}
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scene))
    port, run = free_port(), folder / "coordinator"
    reach = ["--broker", f"mqtt://127.0.0.1:{port}"]
    with mosquitto(folder, port):
        own = ["--id", "pi-1", "--data", str(data(folder, 1)), "--state", str(folder / "agent")]
        line = ["covey.coordinator.cli", "run", str(folder / "scenario.yaml"), *reach]
        programs = {
            "agent": piped("covey.agent.cli", "start", *own, *reach),
            "coordinator": piped(*line, "--out", str(run), "--json"),
        }
        try:
            until(lambda: rows(run))
            yield programs, reach
        finally:
            for this in programs.values():
                this.kill()
                this.communicate()


@pytest.mark.whole
@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("victim", ["coordinator", "agent", "worker"])
def test_a_running_program_that_no_waiting_can_help_ends_with_one_message(
    tmp_path: Path, victim: str
) -> None:
    with at_work(tmp_path) as (programs, _):
        ends = programs.get(victim, programs["agent"])
        process = psutil.Process(ends.pid)
        limited = process.children() if victim == "worker" else [process]
        for one in limited:
            one.rlimit(psutil.RLIMIT_FSIZE, (16, 16))
        said, _ = ends.communicate(timeout=60)
    is_one_message(said, tmp_path, errno.EFBIG)
    assert ends.returncode == 2


def set_modes(folder: Path, mode: int) -> None:
    for place in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
        place.chmod(mode)


@pytest.mark.whole
@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("victim", ["coordinator", "agent"])
def test_a_running_program_whose_folder_is_closed_waits_until_it_is_open_again(
    tmp_path: Path, victim: str
) -> None:
    """Before, it ended: a change of rights at 3 am cost the run, and the device."""
    with at_work(tmp_path) as (programs, reach):
        run = tmp_path / "coordinator"
        set_modes(tmp_path / victim, 0o500)
        until(lambda: stands_still(run))
        before = len(rows(run))
        assert programs[victim].poll() is None
        doctor = [sys.executable, "-m", "covey.coordinator.cli", "doctor", *reach]
        until(lambda: NAMED[victim] in " ".join(run_of(doctor).split()))
        set_modes(tmp_path / victim, 0o700)
        until(lambda: len(rows(run)) > before + 10)
        programs[victim].terminate()
        said, _ = programs[victim].communicate(timeout=60)
    assert "this user may not write to" in said


NAMED = {"coordinator": "it waits for its disk", "agent": "its disk takes nothing"}


def run_of(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout


def stands_still(run: Path) -> bool:
    before = len(rows(run))
    time.sleep(2)
    return len(rows(run)) == before
