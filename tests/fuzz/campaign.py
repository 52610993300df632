"""Runs targets on inputs of a seed, counts what comes out, and notices crashes, slowness and growth.

Each target runs in a child process of its own: a crash of a library's native code ends the child, is recorded with its
input, and the next child continues after it.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import gc
import json
import multiprocessing
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import psutil

from covey.shared.errors import DecodeError
from tests.fuzz.targets import Target, target

CHUNK = 1000  # inputs between two reports to the parent
WARM_UP = 0.1  # share of a target's inputs before which growth is not counted: caches fill
SUSPICIOUS_S = 1.0  # CPU seconds for one input that are measured a second time
SLOW_S = 20.0  # CPU seconds for one input that count as a crash
ADDRESS_SPACE = (
    8 << 30
)  # bytes of a child: more is refused by the system, and shows as a MemoryError
ACCEPTED = "accepted"


class TooSlow(BaseException):
    """One input took more than SLOW_S of the processor's time; no `except Exception` hides it."""


@dataclass
class Crash:
    """An input that a target neither took nor refused in the way that it promises."""

    index: int
    what: str
    where: str
    data: str = ""  # base64


@dataclass
class Figures:
    """What a target did so far. Memory in bytes, time in seconds of wall clock; `slowest` of the processor."""

    name: str
    inputs: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    crashes: list[Crash] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0
    growth: int = 0
    peak: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"reasons": dict(self.reasons.most_common())}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Figures:
        crashes = [Crash(**crash) for crash in told["crashes"]]
        return cls(**{**told, "crashes": crashes, "reasons": Counter(told["reasons"])})


def one(this: Target, run: Callable[[Any], str], data: Any) -> tuple[str, Crash | None]:
    """What becomes of one input: the name of the outcome, and the crash if it is one."""
    try:
        return run(data) or ACCEPTED, None
    except this.allowed as error:
        return error.reason if isinstance(error, DecodeError) else type(error).__name__, None
    except (Exception, TooSlow) as error:
        last = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(last)
        )
        return "crash", Crash(-1, f"{type(error).__name__}: {str(error)[:200]}", where, _text(data))


def _text(data: Any) -> str:
    content = data if isinstance(data, bytes) else repr(data).encode()
    return base64.b64encode(content[:20_000]).decode()


def rng_of(seed: int, name: str, index: int) -> Random:
    """The randomness of one input: any of them can be made again without the others."""
    return Random(f"{seed}/{name}/{index}")


def work(name: str, seed: int, start: int, stop: int, pipe: Connection) -> None:
    """A child's life: inputs `start` to `stop`, with figures to the parent after each chunk."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _too_slow)
    this = target(name)
    process = psutil.Process()
    with tempfile.TemporaryDirectory(prefix="covey-fuzz-") as folder:
        run = this.ready(Path(folder))
        warm, base = start + max(CHUNK, int((stop - start) * WARM_UP)), 0
        for first in range(start, stop, CHUNK):
            figures = Figures(name)
            began = time.monotonic()
            for index in range(first, min(first + CHUNK, stop)):
                pipe.send_bytes(index.to_bytes(8, "little"))
                _one_of(this, run, seed, index, figures)
            figures.seconds = time.monotonic() - began
            gc.collect()
            _trim()
            memory = process.memory_info().rss
            if not base and first + CHUNK >= warm:
                base = memory
            figures.growth = memory - base if base else 0
            figures.peak = memory
            pipe.send_bytes(json.dumps(figures.to_json()).encode())


def _one_of(
    this: Target, run: Callable[[Any], str], seed: int, index: int, figures: Figures
) -> None:
    data = this.make(rng_of(seed, this.name, index))
    outcome, crash, seconds = _timed(this, run, data)
    if seconds > SUSPICIOUS_S or (crash is not None and crash.what.startswith(TooSlow.__name__)):
        outcome, crash, seconds = _timed(this, run, data)  # once more: a busy machine is slow too
    figures.slowest = max(figures.slowest, seconds)
    figures.inputs += 1
    figures.reasons[outcome] += 1
    if crash is not None:
        crash.index = index
        figures.crashes.append(crash)


def _timed(this: Target, run: Callable[[Any], str], data: Any) -> tuple[str, Crash | None, float]:
    """The outcome of one input, and the processor's time that it took."""
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SLOW_S)
    try:
        outcome, crash = one(this, run, data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return outcome, crash, time.process_time() - began


def _too_slow(*_: Any) -> None:
    raise TooSlow(f"more than {SLOW_S:g} s of processor time")


def _trim() -> None:
    """Give freed memory back to the system: what stays is in use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def campaign(name: str, seed: int, done: Figures, inputs: int) -> Iterator[Figures]:
    """Run a target until it has seen `inputs`; yields its figures after each chunk. A dead child is a crash."""
    context = multiprocessing.get_context("fork")
    while done.inputs < inputs:
        pipe, far = context.Pipe()
        child = context.Process(
            target=work, args=(name, seed, done.inputs, inputs, far), daemon=True
        )
        child.start()
        far.close()
        newest = done.inputs
        try:
            while True:
                told = pipe.recv_bytes()
                if len(told) == 8:
                    newest = int.from_bytes(told, "little")
                    continue
                _add(done, Figures.from_json(json.loads(told)))
                yield done
        except EOFError:
            child.join()
        if child.exitcode:
            done.crashes.append(
                Crash(newest, f"the process ended with {child.exitcode}", "native code")
            )
            done.reasons["crash"] += 1
            done.inputs = newest + 1
            yield done


def _add(done: Figures, more: Figures) -> None:
    done.inputs += more.inputs
    done.reasons += more.reasons
    done.crashes += more.crashes
    done.seconds += more.seconds
    done.slowest = max(done.slowest, more.slowest)
    done.growth = max(done.growth, more.growth)
    done.peak = max(done.peak, more.peak)
