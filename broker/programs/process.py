"""The process of a broker: wait for it, reload its users, stop it, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from types import TracebackType
from typing import ClassVar


class BrokerProcess:
    """What all brokers that run as a child process have in common."""

    keeps_retained: ClassVar[bool]  # can it keep retained messages over restarts?
    stop_s: ClassVar[float] = 5.0  # a process that still runs this long after SIGTERM is killed

    name: str  # program and version, for people
    pid = 0  # 0 before the process is started
    _process: asyncio.subprocess.Process  # set once `pid` is not 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: pid {self.pid}>"

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Ask the process to end; kill it if it does not."""
        if not self.pid or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self.stop_s)
        except TimeoutError:
            await self.kill()
