"""An event loop on which one seed fixes everything: time, delays of calls off the loop, tokens."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from covey.coordinator.disk import space
from tests import clock
from tests.simulator.life import OWNER, DeadError

WALL_S = 1_700_000_000.0  # what the wall clock shows at virtual zero
LONGEST_CALL_S = 0.2  # off the loop


class SeededLoop(clock.VirtualLoop):
    """Calls off the loop end after a seeded delay, never at once; those of a killed process do nothing.

    Args:
        seed: of the delays.
        pauses: calls may wait for room on a full disk, so each runs in a thread, of which one runs at a time.
    """

    def __init__(self, seed: int, *, pauses: bool = False) -> None:
        super().__init__()
        self._delays = random.Random(f"delays {seed}")  # noqa: S311  bad luck, no secrets
        self.pauses = pauses
        self.paused: list[Call] = []

    def run_in_executor(  # type: ignore[override]  # as in the loop below
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        call = Call(self, lambda: func(*args))
        self.call_later(self._delays.uniform(0.001, LONGEST_CALL_S), call.begin)
        return call.future

    @contextmanager
    def here(self) -> Iterator[None]:
        """Let the thread of a call, while which the loop waits, do what belongs to the loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def let_go(self) -> None:
        """Resume the paused calls: those of killed processes end."""
        while self.paused:
            self.paused[0].resume()


class Call:
    """A call off the loop."""

    def __init__(self, loop: SeededLoop, work: Callable[[], Any]) -> None:
        self._loop, self._work, self._owner = loop, work, OWNER.get()
        self.future: asyncio.Future[Any] = loop.create_future()
        self._to_thread, self._to_loop = threading.Semaphore(0), threading.Semaphore(0)
        self._outcome: tuple[Any, Exception | None] | None = None  # None: it has not ended

    @property
    def is_dead(self) -> bool:
        return self._owner is not None and self._owner.killed

    def begin(self) -> None:
        if self.is_dead:
            return
        if self._loop.pauses:
            threading.Thread(target=self._in_thread, daemon=True).start()
            self._to_loop.acquire()
        else:
            self._perform()
        self._settle()

    def pause(self, seconds: float) -> None:
        """In the thread of the call: let virtual time pass. Raises DeadError if the process is killed meanwhile."""
        self._loop.paused.append(self)
        self._loop.call_later(seconds, self.resume)
        self._to_loop.release()
        self._to_thread.acquire()
        if self.is_dead:
            raise DeadError

    def resume(self) -> None:
        """On the loop: let the call continue until it pauses again, or ends."""
        if self in self._loop.paused:
            self._loop.paused.remove(self)
            self._to_thread.release()
            self._to_loop.acquire()
            self._settle()

    def _in_thread(self) -> None:
        _THREAD.call = self
        self._perform()
        self._to_loop.release()

    def _perform(self) -> None:
        try:
            self._outcome = (self._work(), None)
        except DeadError:
            pass
        except Exception as error:
            self._outcome = (None, error)

    def _settle(self) -> None:
        if self._outcome is None or self.future.done() or self.is_dead:
            return
        result, error = self._outcome
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


_THREAD = threading.local()


class Uncontended:
    """A lock of two threads of which one runs at a time: if it is held, then by a call that waits for its disk.

    The loop would wait for that call, for as long as the disk is full.
    """

    def __init__(self) -> None:
        self._is_held = False

    def acquire(self) -> None:
        if self._is_held:
            raise RuntimeError("the event loop waits for a call that waits for its disk")
        self._is_held = True

    def release(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Pause(threading.Event):
    """The wait of a program for room on its disk."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        _THREAD.call.pause(timeout)
        return self.is_set()


@contextmanager
def one_seed(loop: SeededLoop, seed: int) -> Iterator[None]:
    """Wall clock, stop watch, pauses and tokens of the product come from the seed and the loop."""
    draw = random.Random(f"tokens {seed}")  # noqa: S311  bad luck, no secrets
    with (
        patch("time.time", lambda: WALL_S + loop.time()),
        patch("time.monotonic", loop.time),
        patch("secrets.token_hex", lambda count=32: draw.randbytes(count).hex()),
        patch("uuid.uuid4", lambda: UUID(bytes=draw.randbytes(16))),
        patch.object(space, "threading", SimpleNamespace(Event=_Pause)),
    ):
        yield
