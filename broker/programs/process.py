"""A broker's process: waited for, ended, killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from types import TracebackType
from typing import ClassVar


class BrokerProcess:
    """What brokers that run as a process of ours have in common. `pid` is 0 before the process was started."""

    keeps_retained: ClassVar[bool]  # can it keep retained messages over restarts?
    stop_s: ClassVar[float] = (
        5.0  # a process that is asked to end and is still there after this is killed
    )

    pid = 0
    _process: asyncio.subprocess.Process

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def wait(self) -> int:
        """Until the process ends by itself, which it should not; its exit code."""
        return await self._process.wait()

    def log_tail(self) -> str:
        """The end of what it logged, where it is not already before the user's eyes."""
        return ""

    def reload(self) -> None:
        """Have it read its users again; who is no longer among them loses its connection, without a last will."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)

    async def kill(self) -> None:
        """End it as a power cut would. For fault drills."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Ask the process to end, and see to it."""
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self.stop_s)
        except TimeoutError:
            await self.kill()
