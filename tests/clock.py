"""An event loop whose clock jumps: when nothing is ready, time moves to the next timer at once.

Hours of deadlines and back-offs pass in milliseconds, and the same program gives the same history each time.
Work for threads (`asyncio.to_thread`) runs inline. Sockets and subprocesses do not belong here.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):  # noqa: N818  the field's word
    """Nothing is ready and no timer is pending: the program would wait for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: moves the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Deadlock(
                "nothing is ready and no timer is pending; waiting are:\n" + _who_waits()
            )
        if timeout > 0:
            self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and is virtual seconds."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(  # type: ignore[override]  # the stubs of typeshed want TypeVarTuple here
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function now: a thread's real time would not fit to a clock that jumps."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(program: Coroutine[Any, Any, T], *, within_s: float | None = None) -> T:
    """Run a coroutine on a virtual clock from 0. Deadlock when everybody waits for ever, TimeoutError after
    `within_s` virtual seconds; tasks that were left behind are cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_limited(program, within_s))


async def _limited(program: Coroutine[Any, Any, T], within_s: float | None) -> T:
    async with asyncio.timeout(within_s):
        return await program


def _who_waits() -> str:
    return "\n".join(sorted(f"  {task!r}" for task in asyncio.all_tasks(asyncio.get_event_loop())))
