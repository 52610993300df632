"""Worker processes of a run without a network: the very processes that agents give their work to.

`python -m covey.agent.worker.worker` is started as a program, for the coordinator imports neither `agent` nor torch.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from covey.shared.consent import consent
from covey.shared.errors import UserError
from covey.shared.python_process import environment, python
from covey.shared.wire.frames import Job, pack, read

COMMAND = python("covey.agent.worker.worker")


class Crew:
    """`size` workers (0: one per core), as `with Crew(...) as crew`; leaving it ends them."""

    def __init__(self, size: int, log: Path, command: Sequence[str] = COMMAND) -> None:
        self._size = size or os.cpu_count() or 1
        self._log, self._command = log, tuple(command)
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(self._size)

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        one_thread = environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        with self._log.open("ab") as log:
            for _ in range(self._size):
                worker = subprocess.Popen(
                    (*self._command, *consent().options()),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=one_thread,
                    start_new_session=True,  # Ctrl-C is for us; we end our workers ourselves
                )
                self._all.append(worker)
                self._idle.put(worker)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._all:
            worker.kill()
            worker.wait()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            for pipe in (worker.stdin, worker.stdout):
                with suppress(BrokenPipeError):  # half a job may still be in the buffer
                    pipe.close()  # type: ignore[union-attr]  # both are pipes

    def ask(self, job: Job) -> Job:
        """The answer to one job. Raises UserError where the worker ended in the middle of it."""
        worker = self._idle.get()
        assert worker.stdin is not None  # noqa: S101 - both are pipes
        assert worker.stdout is not None  # noqa: S101
        answer = None
        try:
            worker.stdin.write(pack(job))
            worker.stdin.flush()
            answer = read(worker.stdout)
        except BrokenPipeError:
            pass  # it is said below
        finally:
            self._idle.put(worker)
        if answer is None:
            raise UserError(
                f"a worker ended in the middle of a job (killed, for its memory?); see {self._log}; "
                "the same command goes on from here"
            )
        return answer

    def each(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """The answers to many jobs, in their order, while the later ones are still at work."""
        return self._threads.map(self.ask, jobs)
