"""An event loop with a virtual clock: when nothing is ready, time jumps to the next timer.

Hours of deadlines and back-offs pass in milliseconds, and a program has the same history each time it runs. Work for
threads (`asyncio.to_thread`) runs inline. Sockets and subprocesses do not work here, because they need real time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Deadlock(RuntimeError):  # noqa: N818  the field's word
    """Nothing is ready and no timer is pending: the program would wait endlessly."""


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
                "nothing is ready and no timer is pending; these tasks wait:\n" + _waiting_tasks()
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
        """Run the function at once: a thread needs real time, which a virtual clock does not have."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(program: Coroutine[Any, Any, T], *, within_s: float | None = None) -> T:
    """Run a coroutine on a virtual clock that starts at 0. Tasks that are left over at its end are cancelled.

    Raises:
        Deadlock: all tasks wait, and no timer would wake one.
        TimeoutError: the program takes longer than `within_s` virtual seconds.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_limited(program, within_s))


def virtual(within_s: float) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, T]]:
    """Run an async test on a virtual clock, for at most `within_s` virtual seconds: see `run`.

    The test keeps its parameters, so pytest supplies its fixtures as usual.
    """

    def decorate(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        @wraps(test)
        def on_a_virtual_clock(*args: P.args, **kwargs: P.kwargs) -> T:
            return run(test(*args, **kwargs), within_s=within_s)

        return on_a_virtual_clock

    return decorate


async def _limited(program: Coroutine[Any, Any, T], within_s: float | None) -> T:
    async with asyncio.timeout(within_s):
        return await program


def _waiting_tasks() -> str:
    return "\n".join(sorted(f"  {task!r}" for task in asyncio.all_tasks(asyncio.get_event_loop())))
