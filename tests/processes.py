"""Whole programs for end-to-end tests: started as users start them, killed without a warning, ended by pid."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from tests.forked import Forked, Start, is_usual, path_of_tests

ROOT = Path(__file__).resolve().parent.parent
needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto") is None, reason="no mosquitto is installed"
)


# Below the range from which systems take the ports of outgoing connections: with many tests at once, one of these would
# now and then take the port before the server that it is meant for has it.
SERVER_PORTS = range(20_000, 32_000)
PORT_TRIES = 100


def free_port() -> int:
    """A port for a server that a test starts. Tests of other processes draw theirs at random from 12 000 as well."""
    dice = random.SystemRandom()
    for _ in range(PORT_TRIES):
        port = dice.choice(SERVER_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue  # somebody listens there
            return port
    raise AssertionError(f"none of {PORT_TRIES} ports from {SERVER_PORTS} is free")


def free_ports(count: int) -> list[int]:
    """As many ports, no two of them the same."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)


def words(command: str, *arguments: object) -> list[str]:
    """The command line of one of our programs: `words("coordinator run", path, "--json")`."""
    program, *commands = command.split()
    return [f"covey.{program}.cli", *commands, *map(str, arguments)]


@dataclass(frozen=True)
class Output:
    """What one program writes at the end of a file, where programs before it may have written."""

    log: Path
    begin: int  # bytes

    @classmethod
    def at_the_end_of(cls, log: Path) -> Self:
        """Of a program that starts next."""
        return cls(log, log.stat().st_size if log.exists() else 0)

    def read(self) -> str:
        """All of it so far."""
        return self.log.read_bytes()[self.begin :].decode(errors="replace")


class Program:
    """`python -m command`, its output at the end of a file, where programs before it may have written.

    Args:
        command: a module with its arguments; not as a `module`, the whole command line.
        log: receives the output.
        module: see `command`.
        cwd: the working directory.
        settings: for the environment.
        fresh: a test measures how it starts, or what it needs: no fork of a program that has imported the same.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        module: bool = True,
        cwd: Path = ROOT,
        settings: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        self._output = Output.at_the_end_of(log)
        self.process: subprocess.Popen[bytes] | Forked
        environment = {**os.environ, **path_of_tests(os.environ), **(settings or {})}
        if module and not fresh and is_usual(command, environment):
            self.process = Forked(Start.here(list(command), environment, str(cwd), str(log)))
            return
        arguments = [sys.executable, "-m", *command] if module else list(command)
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=cwd,
                env=environment,
            )

    @property
    def output(self) -> str:
        """What this program has written."""
        return self._output.read()

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextlib.contextmanager
def program(
    *command: str, log: Path, module: bool = True, cwd: Path = ROOT, fresh: bool = False
) -> Iterator[Program]:
    """A program that runs until the block ends."""
    this = Program(command, log, module=module, cwd=cwd, fresh=fresh)
    try:
        yield this
    finally:
        this.stop()


@contextlib.contextmanager
def mosquitto(folder: Path, port: int, config: str = "") -> Iterator[Program]:
    """A stock Mosquitto: one listener, and the lines of `config`."""
    path = folder / "mosquitto.conf"
    path.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n{config}")
    with program("mosquitto", "-c", str(path), log=folder / "mosquitto.log", module=False) as this:
        until(lambda: listens(port))
        yield this


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], Any], within_s: float = 60.0, of: Program | None = None) -> Any:
    """Wait until a condition holds and return its value.

    Args:
        condition: called until it returns something true.
        within_s: seconds to wait at most.
        of: the program that it depends on; its end stops the wait.

    Raises:
        AssertionError: the condition did not come true; with the end of the program's log.
    """
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if value := condition():
            return value
        if of is not None and of.process.poll() is not None and not condition():
            break
        time.sleep(0.05)  # the interval of the checks, not a guess at the duration
    raise AssertionError(
        f"it did not come true within {within_s} s\n{of.output[-3000:] if of else ''}"
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows that a run has recorded so far."""
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def result(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return data


def model_bytes(folder: Path) -> dict[str, bytes]:
    """The final model files of a run."""
    return {path.name: path.read_bytes() for path in sorted((folder / "models").iterdir())}
