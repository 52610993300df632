"""How an operator stops a run: Ctrl-C, and SIGTERM or a closed terminal, which mean the same here."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from covey.shared.programs.child import stop_signals

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Each signal that asks for a stop raises KeyboardInterrupt for as long as the block lasts.

    A run without a broker needs no more: it can be interrupted anywhere, as its checkpoint survives even a kill.
    """
    before = _handlers()
    for number in before:
        if number is not signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_stay_interrupts() -> Iterator[None]:
    """After Ctrl-C, whatever error ends the block becomes KeyboardInterrupt.

    The signal may strike in a callback of a library that turns it into an error of its own, as pydantic's serialiser
    does. Only the main thread hears signals; elsewhere nothing is changed.
    """
    heard = False

    def hear(handler: Handler) -> Handler:
        def heard_first(number: int, frame: FrameType | None) -> None:
            nonlocal heard
            heard = True
            handler(number, frame)

        return heard_first

    before = _handlers()
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, hear(handler))
    try:
        yield
    except Exception as error:
        if heard:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handlers() -> dict[signal.Signals, Any]:
    """What these signals do now; empty in a thread that no signal reaches."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = stop_signals() if is_main else ()
    return {number: signal.getsignal(number) for number in numbers}


class StopSignals:
    """All of them call `stop` in the running event loop, as `with StopSignals(stop)`; it may be replaced meanwhile.

    Only the main thread receives signals. In another thread, as under a notebook's event loop, nothing is changed.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self.stop = stop
        self._before = _handlers()

    def __enter__(self) -> Self:
        for number in self._before:
            asyncio.get_running_loop().add_signal_handler(number, lambda: self.stop())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(
                number, handler
            )  # the loop would leave SIGTERM deadly, also between two runs
