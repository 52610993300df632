"""Worker processes for the agents of one process: started for the first job, kept warm for a while, then ended.

Waiting jobs start longest first, so that the tail of a round is short. While no worker runs, no torch is in memory.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, Self, TypeVar

from covey.agent.policy import OwnersRules
from covey.agent.worker.process import WorkerOptions
from covey.shared.errors import UserError
from covey.shared.own_code.consent import consent
from covey.shared.programs.child import kill, python, worker_environment
from covey.shared.wire import jobs
from covey.shared.wire.jobs import Failure, FindDevice, WorkerJob
from covey.shared.wire.messages import ALWAYS_THERE, DeviceWish

A = TypeVar("A")
COMMAND = python("covey.agent.worker.worker")
EXIT_S = 1.0  # a worker that closed its output is given this time to exit by itself


class WorkerLost(Exception):  # noqa: N818 - an event in the life of a worker
    """A worker process died during a job: out of memory, or killed by hand.

    Attributes:
        public: what other machines may read about it.
    """

    public = "the training process died during a job (out of memory?)"


class PoolLike(Protocol):
    """What an agent needs of a pool."""

    async def call(self, job: WorkerJob[A], *, weight: float = 0) -> A | Failure:
        """Do one job. Cancelling the call gives the job up.

        Args:
            job: what to do.
            weight: how long the job will take, in any unit; heavier jobs start first.

        Returns:
            The worker's answer.

        Raises:
            WorkerLost: the worker died before it answered.
        """


async def check_device(pool: PoolLike, wanted: DeviceWish, rules: OwnersRules) -> None:
    """Check that work can be done on this kind of device. Only a worker has torch, so a worker has to look.

    Raises:
        UserError: this machine has no such device.
    """
    if wanted in ALWAYS_THERE:
        return
    answer = await pool.call(FindDevice(wanted=wanted, rules=rules.for_job()))
    if isinstance(answer, Failure):
        raise UserError(answer.in_full)


class Pool:
    """A few worker processes. Use it as a context: leaving it ends them.

    Args:
        workers: how many processes may run at the same time.
        keep_warm_s: how long a worker without a job stays alive.
        threads: of torch in each worker. Sums of floats depend on their number: with one, work gives the same bytes on
            a machine with any number of cores.
        cancel_grace_s: how long a worker may take to finish a job that was given up. Killing it costs more, because a
            new worker has to import torch first. After this time it is killed all the same.
        warm: start all workers at once, and have each load torch while it has no job.
        command: the program that a worker runs.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        keep_warm_s: float = 60.0,
        threads: int = 1,
        cancel_grace_s: float = 5.0,
        warm: bool = False,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._keep_warm_s = keep_warm_s
        self._threads = threads
        self._warm = warm
        self._cancel_grace_s = cancel_grace_s
        self._command = tuple(command)
        self._vacancies = workers  # how many more workers may be started, those that start excluded
        self._starting = 0  # workers whose process is being started
        self._alive: set[_Worker] = set()
        self._idle: list[_Worker] = []  # those of `_alive` without a job, longest idle first
        self._queue: list[tuple[float, int, asyncio.Future[_Worker]]] = []  # a heap: -weight, call
        self._calls = 0  # so far; of two jobs with equal weight, the earlier call starts first
        self._chores: set[asyncio.Task[object]] = set()  # workers that start, end or are given up

    def __repr__(self) -> str:
        waiting = self._count_waiting()
        return f"<Pool: {len(self._alive)} workers, {len(self._idle)} idle, {waiting} jobs waiting>"

    async def __aenter__(self) -> Self:
        if self._warm:
            self._start(self._vacancies)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._chores:
            task.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        await asyncio.gather(*[worker.end() for worker in self._alive])

    @property
    def processes(self) -> list[int]:
        """Ids of the worker processes that are alive."""
        return sorted(worker.pid for worker in self._alive)

    async def call(self, job: WorkerJob[A], *, weight: float = 0) -> A | Failure:
        """Do one job: see `PoolLike.call`."""
        worker = await self._next_worker(weight)
        try:
            result = await worker.call(job)
        except asyncio.CancelledError:
            self._start_chore(self._give_up(worker))
            raise
        if result is None:
            self._remove(worker)
            exit_code = await worker.end()
            raise WorkerLost(
                f"a worker process died during a job (exit code {exit_code}): out of memory?"
            )
        self._release(worker)
        found: A | Failure = result
        return found

    async def _next_worker(self, weight: float) -> _Worker:
        """Wait for a worker without a job. A call that is cancelled meanwhile returns its worker."""
        self._calls += 1
        turn: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (-weight, self._calls, turn))
        self._assign()
        try:
            return await turn
        except asyncio.CancelledError:
            was_assigned = turn.done() and not turn.cancelled() and turn.exception() is None
            if was_assigned:
                self._release(turn.result())
            raise

    def _assign(self) -> None:
        """Give waiting jobs to idle workers, and start workers while there are jobs and vacancies."""
        while self._idle:
            turn = self._next_turn()
            if turn is None:
                break
            worker = self._idle.pop()
            worker.stay()
            turn.set_result(worker)
        self._start(min(self._vacancies, self._count_waiting() - self._starting))

    def _start(self, workers: int) -> None:
        for _ in range(workers):
            self._vacancies -= 1
            self._starting += 1
            self._start_chore(self._add_worker())

    def _next_turn(self) -> asyncio.Future[_Worker] | None:
        """The heaviest job that still waits; None for none."""
        while self._queue:
            _, _, turn = heapq.heappop(self._queue)
            if not turn.done():
                return turn
        return None

    def _count_waiting(self) -> int:
        return sum(not turn.done() for _, _, turn in self._queue)

    async def _add_worker(self) -> None:
        try:
            worker = await self._start_worker()
        except OSError as error:
            self._vacancies += 1
            turn = self._next_turn()
            if turn is not None:
                turn.set_exception(WorkerLost(f"no worker process could be started: {error}"))
            return
        finally:
            self._starting -= 1
        self._release(worker)

    async def _start_worker(self) -> _Worker:
        allow = tuple(
            sorted(consent().names)
        )  # the worker may load what our owner allowed us to load
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *WorkerOptions(self._threads, self._warm, allow=allow).words(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=worker_environment(str(self._threads)),
            start_new_session=True,  # Ctrl-C must reach us alone: we end our workers
        )
        worker = _Worker(process)
        self._alive.add(worker)
        return worker

    def _release(self, worker: _Worker) -> None:
        """The worker has no job any more: it takes the next one, or waits for one."""
        self._idle.append(worker)
        worker.end_after(self._keep_warm_s, lambda: self._cool_down(worker))
        self._assign()

    def _remove(self, worker: _Worker) -> None:
        """The worker is dead: another one may be started."""
        self._alive.discard(worker)
        self._vacancies += 1
        self._assign()

    def _cool_down(self, worker: _Worker) -> None:
        """No job came while the worker was kept warm: end it."""
        if worker in self._idle:
            self._idle.remove(worker)
            self._alive.discard(worker)
            self._vacancies += 1
            self._start_chore(worker.end())

    async def _give_up(self, worker: _Worker) -> None:
        """Nobody waits for the answer any more: let the worker finish soon, or kill it."""
        try:
            result = await asyncio.wait_for(worker.answer(), self._cancel_grace_s)
        except TimeoutError:
            await worker.end()
            self._remove(worker)
            return
        if result is None:
            self._remove(worker)
        else:
            self._release(worker)

    def _start_chore(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)


class _Worker:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._timer: asyncio.TimerHandle | None = None  # ends the worker if no job comes
        self._head = b""  # of the answer that comes

    def __repr__(self) -> str:
        return f"<Worker process {self.pid}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, job: WorkerJob[Any]) -> Any:
        """The answer to a job; None if the process died."""
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 - it is a pipe
        try:
            stdin.write(jobs.pack(job))
            await stdin.drain()
        except (BrokenPipeError, ConnectionError):
            return None
        return await self.answer()

    async def answer(self) -> Any:
        """The answer to the newest job; None if the process died. Who stops waiting can wait again."""
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - it is a pipe
        try:
            self._head = self._head or await stdout.readexactly(jobs.HEAD_BYTES)
            body = await stdout.readexactly(jobs.frame_length(self._head))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self._head = b""
        return jobs.unpack(body)

    def end_after(self, seconds: float, end: Callable[[], None]) -> None:
        """Call `end` if the worker has no job for so long."""
        self._timer = asyncio.get_running_loop().call_later(seconds, end)

    def stay(self) -> None:
        """A job came: do not end the worker."""
        if self._timer is not None:
            self._timer.cancel()

    async def end(self) -> int:
        """End the process. Returns its exit code."""
        self.stay()
        stdout = self._process.stdout
        if stdout is not None and stdout.at_eof():
            with suppress(TimeoutError):  # it exits by itself; a signal would hide its exit code
                return await asyncio.wait_for(self._process.wait(), EXIT_S)
        await kill(self._process)
        return await self._process.wait()
