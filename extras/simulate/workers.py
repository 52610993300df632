"""Worker processes for a run without a broker: the same program that agents train in.

`python -m covey.agent.worker.worker` is started as a program, because the coordinator imports neither
`agent` nor torch.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Self, TypeVar

from covey.shared.errors import UserError
from covey.shared.own_code.consent import consent
from covey.shared.programs.child import python, worker_environment
from covey.shared.wire.jobs import (
    Failure,
    OrderAnswer,
    Perform,
    PerformTogether,
    WorkerJob,
    pack,
    read,
)

A = TypeVar("A")
COMMAND = python("covey.agent.worker.worker")


class WorkerPool:
    """A fixed number of worker processes that take one job at a time each.

    Use it as `with WorkerPool(size, log) as pool`; leaving the block kills the workers.

    Args:
        size: how many workers
        log: the file that receives their stderr
        command: the program to start, without the options of the user's consent
    """

    def __init__(self, size: int, log: Path, command: Sequence[str] = COMMAND) -> None:
        self._size = size
        self._log = log
        self._command = tuple(command)
        self._workers: list[subprocess.Popen[bytes]] = []  # all of them, empty before the block
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()  # those without a job
        self._threads = ThreadPoolExecutor(self._size)  # one waits for each busy worker

    def __repr__(self) -> str:
        return f"WorkerPool(size={self._size}, idle={self._idle.qsize()}, log={str(self._log)!r})"

    @property
    def size(self) -> int:
        """How many workers there are."""
        return self._size

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        one_thread = worker_environment(threads="1")
        with self._log.open("ab") as log:
            for _ in range(self._size):
                worker = subprocess.Popen(
                    (*self._command, *consent().options()),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=one_thread,
                    start_new_session=True,  # Ctrl-C must reach us alone: we end our workers
                )
                self._workers.append(worker)
                self._idle.put(worker)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            for pipe in (worker.stdin, worker.stdout):
                with suppress(BrokenPipeError):  # half a job may still be in the buffer
                    pipe.close()  # type: ignore[union-attr]  # both are pipes

    def call(self, job: WorkerJob[A]) -> A | Failure:
        """Run one job and return its answer. Raises UserError if the worker dies during the job."""
        worker = self._idle.get()
        assert worker.stdin is not None  # noqa: S101 - both are pipes
        assert worker.stdout is not None  # noqa: S101
        answer: A | Failure | None = None
        try:
            worker.stdin.write(pack(job))
            worker.stdin.flush()
            answer = read(worker.stdout)
        except BrokenPipeError:
            pass  # there is no answer, which is reported below
        finally:
            self._idle.put(worker)
        if answer is None:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(1.0)
            guess = ", out of memory?" if worker.returncode == -signal.SIGKILL else ""
            see = f"see {self._log}. " if self._log.stat().st_size else ""
            raise UserError(
                f"a worker process died during a job (exit code {worker.returncode}{guess}); {see}"
                "Type the same command to continue"
            )
        return answer

    def submit(self, job: WorkerJob[A]) -> Future[A | Failure]:
        """Have one job done as soon as a worker is free. The answer may raise what `call` raises."""
        return self._threads.submit(self.call, job)

    def submit_together(self, jobs: Sequence[Perform]) -> list[Future[OrderAnswer | Failure]]:
        """Have several jobs done as one. A job that is cancelled before a worker is free is left out."""
        awaited: list[Future[OrderAnswer | Failure]] = [Future() for _ in jobs]

        def work() -> None:
            wanted = [
                (job, future)
                for job, future in zip(jobs, awaited, strict=True)
                if future.set_running_or_notify_cancel()
            ]
            try:
                done = self.call(PerformTogether(jobs=[job for job, _ in wanted]))
            except Exception as error:
                for _, future in wanted:
                    future.set_exception(error)
            else:
                for place, (_, future) in enumerate(wanted):
                    future.set_result(done if isinstance(done, Failure) else done.answers[place])

        self._threads.submit(work)
        return awaited

    def map(self, jobs: Iterable[WorkerJob[A]]) -> Iterator[A | Failure]:
        """Run many jobs in parallel; yields their answers in the order of the jobs."""
        return self._threads.map(self.call, jobs)
