"""The process of a broker: the port that it listens on, and how it is reloaded, stopped and killed.

It listens on the port that the user requests, or a free one.

A free port is chosen before the broker listens there, as Mosquitto cannot choose one. Another program may take it
meanwhile; then the next one is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import IO, ClassVar

from covey.broker.programs.options import BrokerOptions
from covey.shared.errors import UserError
from covey.shared.programs import child

FREE_PORT_ATTEMPTS = 5


class PortTakenError(UserError):
    """Another program took the port between our look at it and the broker's."""


async def start_on_port(
    options: BrokerOptions, start: Callable[[int], Awaitable[None]], option: str = "--port"
) -> int:
    """Start something on the requested port, or on a free one.

    Args:
        options: of the broker, with its host and the requested port; 0 for a free one.
        start: listens on the port that it gets, or raises PortTakenError and leaves nothing behind.
        option: that a user chooses the port with, for messages.

    Returns:
        the port.

    Raises:
        UserError: the port is taken or not permitted; or whatever `start` raises.
    """
    attempts = 1 if options.port else FREE_PORT_ATTEMPTS
    while True:
        attempts -= 1
        port = free_port(options, option)
        try:
            await start(port)
        except PortTakenError:
            if attempts == 0:
                raise
        else:
            return port


def free_port(options: BrokerOptions, option: str = "--port") -> int:
    """The requested port, or a free one for 0. Raises UserError, which names the option, if it is taken or not permitted."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            raise UserError(cannot_listen(options.host, options.port, error, option)) from None
        return int(probe.getsockname()[1])


def cannot_listen(host: str, port: int, error: OSError, option: str = "--port") -> str:
    """The message about a port that cannot be used."""
    why = error.strerror or str(error)
    place = f"port {port} on {host}: {why}"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{place}; expected an address of this machine: choose another with --host (0.0.0.0: all)"
    if isinstance(error, PermissionError):
        return f"{place}; this user may use ports from 1024 on: choose one with {option}"
    return (
        f"{place}; stop the program that uses it, or choose another with {option} (0: any free one)"
    )


class BrokerProcess:
    """What all brokers that run as a child process have in common."""

    keeps_retained: ClassVar[bool]  # can it keep retained messages over restarts?
    stop_s: ClassVar[float] = 5.0  # a process that still runs this long after SIGTERM is killed

    name: str  # program and version, for people
    pid = 0  # 0 before the process is started
    _process: asyncio.subprocess.Process  # set once `pid` is not 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: pid {self.pid}>"

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait(self) -> int:
        """Wait until the process ends by itself, which is a failure. Returns its exit code."""
        return await self._process.wait()

    def log_tail(self) -> str:
        """The last lines of its log, unless the user has seen them already."""
        return ""

    def reload(self) -> None:
        """Have it read its users again. Removed users lose their connections; their last wills are not published."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)

    async def kill(self) -> None:
        """Kill it without a warning, as a power cut would. For tests of faults."""
        await child.kill(self._process)

    async def stop(self) -> None:
        """Ask the process to end; kill it if it does not."""
        if self.pid:
            await child.end(self._process, self.stop_s)


async def until_closed(stream: IO[str]) -> None:
    """Wait until the stream ends. A thread reads it, because event loops cannot watch every kind of file."""
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> None:
        while os.read(stream.fileno(), 4096):
            pass
        with contextlib.suppress(RuntimeError):  # the loop may end before the stream
            loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=read, daemon=True).start()
    await closed.wait()
