"""How a program of ours starts another one and ends it: with our code on its path, and nothing from the working directory.

`python -m` puts the working directory first on the import path. A file `torch.py` that another user left there would then
run as the user who starts a coordinator or an agent there. `python -P` leaves the working directory out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import covey

PACKAGE = Path(covey.__file__).parent
# Memory for contents of many megabytes then comes in large pages, where the C library is glibc and the kernel allows it.
# In pages of 4 kB a copy takes five times as long.
LARGE_PAGES = "glibc.malloc.hugetlb=1"
HOME = PACKAGE.parent  # the folder with our package: a checkout's src, or the installed packages


def stop_signals() -> list[signal.Signals]:
    """The signals that ask this process to end: Ctrl-C, SIGTERM, and a closed terminal.

    Who begins a program with SIGHUP ignored, as `nohup` does, wants it to outlive the terminal.
    """
    asked = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    return asked


def cores() -> int:
    """How many cores this process may use: in a container often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs one of our modules."""
    return (sys.executable, "-P", "-m", module, *arguments)


def environment(**settings: str) -> dict[str, str]:
    """The environment of a child process: ours, with `settings`, and a path on which it finds our code.

    An empty entry of PYTHONPATH stands for the working directory, so empty entries are removed.
    """
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(HOME)]
    folders += [folder for folder in inherited if folder]
    path = os.pathsep.join(dict.fromkeys(folders))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **settings}


def worker_environment(threads: str) -> dict[str, str]:
    """The environment of a process that trains.

    Args:
        threads: the number of threads that numeric libraries may use.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", LARGE_PAGES)
    return environment(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, GLIBC_TUNABLES=tunables)


def death_with_parent() -> Callable[[], None] | None:
    """A function that has the kernel end the process that calls it when its parent ends, however it ends; Linux only."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    set_death_signal = 1  # PR_SET_PDEATHSIG

    def ask_kernel() -> None:
        libc.prctl(set_death_signal, signal.SIGTERM)

    return ask_kernel


async def first_line(child: asyncio.subprocess.Process, within_s: float) -> bytes:
    """The first line of a child with a pipe for its output, which is then ready; empty if none comes in time."""
    assert child.stdout is not None  # noqa: S101 - it is a pipe
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return await child.stdout.readline()
    return b""


async def end(child: asyncio.subprocess.Process, within_s: float) -> None:
    """Ask a child to end, by the end of its input and SIGTERM; kill it if it still runs after this time."""
    if child.stdin is not None:
        child.stdin.close()
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
    try:
        async with asyncio.timeout(within_s):
            await child.wait()
    except TimeoutError:
        await kill(child)


async def kill(child: asyncio.subprocess.Process) -> None:
    """End a child without a warning, as a power cut would."""
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    await child.wait()
