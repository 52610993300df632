"""A program that tests fork is what `python -m` starts: as far as the program can tell, and the test."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.forked import Forked, Start, is_usual, surroundings
from tests.processes import ROOT, Program, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no program is forked"),
]

PROBE = """
import asyncio, atexit, json, logging, os, random, signal, sys, threading, time
import numpy as np
atexit.register(print, "the end")
signals = {int(one): str(signal.getsignal(one)) for one in signal.valid_signals()}
async def child():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(7)")
    return await process.wait()
print(json.dumps({
    "name": __name__, "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "environ": dict(os.environ),
    "signals": signals, "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "files": sorted(os.listdir("/proc/self/fd")), "input": sys.stdin.read(),
    "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding],
    "group": [os.getpgid(0), os.getsid(0)], "umask": os.umask(0o22),
    "threads": threading.active_count(), "main": threading.current_thread() is threading.main_thread(),
    "handlers": str(logging.root.handlers), "level": logging.root.level, "child": asyncio.run(child()),
    "torch": "torch" in sys.modules,
}), flush=True)
print(json.dumps([random.random(), np.random.random()]), flush=True)
threading.Thread(target=lambda: (time.sleep(0.1), print("a thread"))).start()
"""
ENDS = {
    "of itself": "",
    "an exit code": "raise SystemExit(5)",
    "a message": "raise SystemExit('no')",
    "an error": "1 / 0",
    "an interrupt": "raise KeyboardInterrupt",
    "at once": "import os; os._exit(3)",
    "a signal": "import os; os.kill(os.getpid(), 9)",
}
Starter = Callable[[Start], Any]


def started(start: Start) -> subprocess.Popen[bytes]:
    """As users do."""
    with Path(start.log).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *start.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=start.cwd,
            env=start.environment,
        )


def seen(way: Starter, folder: Path, code: str) -> tuple[int, str]:
    """The exit code and the output of a module with this code."""
    (folder / "probe.py").write_text(code)
    log = folder / way.__name__
    environment = surroundings() | {"COVEY_ONE": "ünö", "KMP_DUPLICATE_LIB_OK": "True"}
    environment |= {"KMP_INIT_AT_FORK": "FALSE"}
    del environment["COVEY_THREADS"]  # which the server has
    start = Start(["probe", "--a", "b c"], environment, str(folder), str(log))
    return way(start).wait(60), log.read_text()


def test_a_fork_has_what_a_start_gives_a_program(tmp_path: Path) -> None:
    (fresh_code, fresh), (code, forked) = (seen(way, tmp_path, PROBE) for way in (started, Forked))
    (wanted, _, *wanted_end), (found, _, *end) = fresh.splitlines(), forked.splitlines()
    assert json.loads(found) == json.loads(wanted)
    assert end == wanted_end == ["a thread", "the end"]
    assert code == fresh_code == 0


@pytest.mark.parametrize("end", ENDS)
def test_a_fork_ends_as_a_program_does(tmp_path: Path, end: str) -> None:
    (wanted, fresh), (found, forked) = (seen(way, tmp_path, ENDS[end]) for way in (started, Forked))
    assert found == wanted
    assert forked.splitlines()[-1:] == fresh.splitlines()[-1:]
    assert ("Traceback" in forked) is ("Traceback" in fresh)


def test_a_fork_keeps_its_files_and_its_temporary_files_where_a_program_does(
    tmp_path: Path,
) -> None:
    code = (
        "import os, tempfile; from pathlib import Path\n"
        "print(Path.home(), tempfile.gettempdir(), os.umask(0))"
    )
    (tmp_path / "probe.py").write_text(code)
    (tmp_path / "tmp").mkdir()
    environment = surroundings() | {"HOME": "/home/a", "TMPDIR": str(tmp_path / "tmp")}
    before, log = os.umask(0o27), tmp_path / "log"
    start = Start.here(["probe"], environment, str(tmp_path), str(log))
    os.umask(before)
    assert Forked(start).wait(60) == 0
    assert log.read_text().split() == ["/home/a", str(tmp_path / "tmp"), str(0o27)]


def test_no_two_forks_draw_the_same_random_numbers(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(1)  # a state of the test's, which no program has
    first = seen(Forked, tmp_path, PROBE)[1].splitlines()
    second = seen(Forked, tmp_path, PROBE)[1].splitlines()[len(first) :]
    tests_own = {random.random(), np.random.random()}  # noqa: S311 - compared with the programs'
    assert not set(json.loads(first[1])) & {*json.loads(second[1]), *tests_own}


def test_a_fork_can_be_killed_and_waited_for_as_a_process_can(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("import time; print('up', flush=True); time.sleep(600)")
    for ask, code in ((Forked.kill, -signal.SIGKILL), (Forked.terminate, -signal.SIGTERM)):
        log = tmp_path / str(code)
        this = Forked(Start(["probe"], surroundings(), str(tmp_path), str(log)))
        until(lambda log=log: log.read_text())  # type: ignore[misc]
        assert this.poll() is None
        assert this.returncode is None
        with pytest.raises(subprocess.TimeoutExpired):
            this.wait(0.1)
        ask(this)
        assert this.wait() == this.poll() == this.returncode == code
        this.kill()  # nothing has this pid any more, or another process


def test_a_mistake_of_a_user_ends_a_fork_with_2_and_no_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["covey.coordinator.cli", "run", "--none"]
    this = Forked(Start(command, surroundings(), str(tmp_path), str(log)))
    assert this.wait(60) == 2
    assert "--none" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHASHSEED", "COLUMNS", "OMP_NUM_THREADS"])
def test_a_program_whose_imports_may_differ_starts_afresh(tmp_path: Path, name: str) -> None:
    command = ["covey.broker.cli", "--version"]
    usual = surroundings()
    assert is_usual(command, usual | {"COVEY_BROKER": "mqtt://localhost", "HOME": "/home/a"})
    assert not is_usual(command, usual | {name: "17"})
    assert not is_usual(["tests.attacks.flood"], usual)
    for this in (
        Program(command, tmp_path / "a", settings={name: "17"}),
        Program(command, tmp_path / "b", fresh=True),
    ):
        assert isinstance(this.process, subprocess.Popen)
        this.stop()


def test_a_server_ends_with_the_tests_and_its_programs_do_not(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(
        "import os, time\n"
        "print(os.getppid(), flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "print('alone', flush=True)\n"
    )
    log = tmp_path / "log"
    start = Start(["probe"], surroundings(), str(tmp_path), str(log))
    code = (
        "import os; from tests.forked import Forked, Start; from pathlib import Path\n"
        f"Forked({start!r})\n"
        f"while not Path({str(log)!r}).read_text(): pass\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=surroundings(), check=True)
    server = int(log.read_text())
    until(lambda: not Path(f"/proc/{server}").exists())
    (tmp_path / "go").touch()
    until(lambda: "alone" in log.read_text())
