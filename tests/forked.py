"""A server from which tests start our programs: it has imported what they import, and each of them is a fork of it.

An import of a program takes a second of the processor, and tests start hundreds. A fork begins where `python -m` would be
after its imports: with the environment, the working directory, the output and the arguments of its own, and it ends as any
Python program does. What the program itself starts, it starts as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Self

import numpy as np

import covey

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS: tuple[str, ...] = ("covey.coordinator.cli", "covey.agent.cli", "covey.broker.cli")
# These need other libraries, and no program imports them unless a user asks it to.
LEFT_OUT = (".agent.training", ".examples", ".outlets", ".tests", "__main__")
# A module may look at any other variable when it is imported. Those of KMP_ are scikit-learn's own. CUBLAS_ and TORCH are
# set by our learner for torch, which the server does not import. The last three are read where a folder is asked for.
MAY_DIFFER = ("COVEY_", "KMP_", "PYTEST_", "CUBLAS_", "TORCH", "HOME", "TMPDIR", "XDG_")
# Commands import these when they run. (pyarrow starts a thread.)
LIBRARIES = ("cloudpickle", "scipy.cluster.hierarchy", "scipy.optimize")


def one_core() -> None:
    """One training process for a simulated fleet that asks for no number: the second one imports torch for next to no work."""
    os.sched_getaffinity = lambda _pid: {0}


@cache
def surroundings() -> dict[str, str]:
    """The environment at the first call, which is before any test has changed it: that of the server."""
    return os.environ | path_of_tests(os.environ)


def imports_read(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that the import of a module may depend on."""
    return {name: value for name, value in environment.items() if not name.startswith(MAY_DIFFER)}


def path_of_tests(environment: Mapping[str, str]) -> dict[str, str]:
    """The setting with which programs find what lies in this repository."""
    folders = [str(ROOT), environment.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def is_usual(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork of the server would have imported what this program imports, with the same result."""
    return (
        sys.platform == "linux"
        and command[0] in PROGRAMS
        and imports_read(environment) == imports_read(surroundings())
    )


# -- in tests ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """A program to start: `python -m command`."""

    command: list[str]
    environment: dict[str, str]
    cwd: str
    log: str  # receives the output
    umask: int = 0o22

    @classmethod
    def here(cls, command: list[str], environment: dict[str, str], cwd: str, log: str) -> Self:
        """As a child of this process would begin."""
        umask = os.umask(0o77)
        os.umask(umask)
        return cls(command, environment, cwd, log, umask)


class Server:
    """The server of this process. It ends with it; programs live on, as those of `subprocess` do."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=surroundings(),
            text=True,
        )
        atexit.register(self._process.communicate)

    @classmethod
    @cache
    def here(cls) -> Self:
        """The one of this process, started for its first program."""
        return cls()

    def ask(self, question: dict[str, object] | int) -> int:
        """The pid of a program to start, or the status with which the program with this pid has ended."""
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


class Forked:
    """A program that the server has started: the part of `subprocess.Popen` that tests use."""

    def __init__(self, start: Start) -> None:
        self.returncode: int | None = None
        Path(start.log).touch()
        self.pid = Server.here().ask(asdict(start))
        self._fd = os.pidfd_open(self.pid)  # readable from its end on

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)  # its pid is its own until the server is asked for its status

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            end = select.poll()
            end.register(self._fd, select.POLLIN)
            if end.poll(None if timeout_s is None else timeout_s * 1000):
                self.returncode = os.waitstatus_to_exitcode(Server.here().ask(self.pid))
                os.close(self._fd)
        return self.returncode


# -- in the server -----------------------------------------------------------------------------------


def serve() -> str:
    """Start programs and report their ends until the tests are over. In a program: the module that it runs."""
    import_all(covey)
    for name in LIBRARIES:
        import_module(name)
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, "a fork would have none of these threads"
    assert "torch" not in sys.modules
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and so the server
    while line := os.read(0, 1 << 20):
        while not line.endswith(b"\n"):
            line += os.read(0, 1 << 20)
        question = json.loads(line)
        if isinstance(question, int):
            answer = os.waitpid(question, 0)[1]
        elif (answer := os.fork()) == 0:
            return become(Start(**question))
        os.write(1, b"%d\n" % answer)
    os._exit(0)


def import_all(package: ModuleType) -> None:
    """Import all modules in a package that are no programs themselves, and for which the libraries are installed."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name.endswith(LEFT_OUT) or imports_torch(found):
            continue
        with contextlib.suppress(ImportError):
            module = import_module(found.name)
            if found.ispkg:
                import_all(module)


def imports_torch(found: pkgutil.ModuleInfo) -> bool:
    """Whether a module itself imports torch, when it is imported."""
    spec = found.module_finder.find_spec(found.name, None)
    assert spec
    assert spec.origin
    return "\nimport torch\n" in Path(spec.origin).read_text(encoding="utf-8")


def become(start: Start) -> str:
    """Give this fork of the server what is the program's own; return its module."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(start.log, os.O_WRONLY | os.O_APPEND)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(start.environment)
    os.umask(start.umask)
    tempfile.tempdir = None  # it is looked up once
    os.chdir(start.cwd)
    sys.path[0] = str(Path.cwd())
    paths = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[1:1] = [path for path in paths if path not in sys.path]
    module, *sys.argv[1:] = start.command
    np.random.seed()  # Python's own generator does so by itself
    return module


if __name__ == "__main__":
    one_core()
    # A program gets here, too, and ends as any: with its exit code or traceback, its threads, what it does at exit.
    runpy.run_module(serve(), run_name="__main__", alter_sys=True)
