"""How a program starts: Ctrl-C ends it quietly, also while its modules are imported.

The imports of a program take a few tenths of a second on a small device. Python would answer Ctrl-C with a traceback
then. This module imports almost nothing, so that a program can install its handler first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # exit code of a program that Ctrl-C stopped
ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


@contextmanager
def starting(*, one_heap: bool = False) -> Iterator[None]:
    """Around the import of a program and its run.

    Args:
        one_heap: models pass through many threads of this program: see `share_one_heap`.
    """
    before = signal.getsignal(signal.SIGINT)
    # A shell lets its background programs ignore Ctrl-C: then it stays ignored.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    if one_heap:
        share_one_heap()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def share_one_heap() -> None:
    """Threads that start from now on take memory from one heap, where the C library is glibc.

    glibc gives each thread a heap of its own, and what is free in one is of no use to the others. Reports pass through
    many threads of a coordinator, so it would grow by several models more.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)


def raise_interrupts() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, because a command begins that may have something to tidy up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once. Nothing was opened yet, and an exception could be caught by the module that is being imported."""
    os._exit(INTERRUPTED)
