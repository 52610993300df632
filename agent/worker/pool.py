"""Workers for the agents of one process: started for the first job, kept warm a while, then gone.

Waiting jobs start longest first, so that the tail of a round is short. Where nothing runs, no torch is in memory.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

from covey.agent.policy import Rules
from covey.agent.worker import frames
from covey.shared.consent import consent
from covey.shared.errors import UserError
from covey.shared.python_process import environment, python
from covey.shared.wire.messages import ALWAYS_THERE, DeviceWish

COMMAND = python("covey.agent.worker.worker")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class WorkerLost(Exception):  # noqa: N818 - an event in the life of a worker
    """The worker ended in mid-job: killed for its memory, or by hand. `public` is what other machines may know."""

    public = "the training process ended in the middle of a job (out of memory?)"


class Jobs(Protocol):
    """What an agent's service needs of a pool."""

    async def run(self, job: frames.Job, *, weight: float = 0) -> frames.Job:
        """The answer to one job. Heavier jobs go first. Raises WorkerLost. Cancelling it gives the job up."""


async def check_device(jobs: Jobs, wanted: DeviceWish, rules: Rules) -> None:
    """Raises UserError where work cannot be done on the kind of device that is wanted. Only a worker has torch and knows."""
    if wanted in ALWAYS_THERE:
        return
    answer = await jobs.run({"job": "device", "wanted": wanted, **rules.to_wire()})
    if "failure" in answer:
        raise UserError(answer.get("detail") or answer["failure"])


class Pool:
    """`workers` processes at most. As `async with Pool(...) as pool`; leaving it ends them.

    `keep_warm_s`: how long a worker without a job lives on. `mercy_s`: a worker whose job was given up may finish
    it within this time, for a new one would have to import torch first; then it is killed.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        keep_warm_s: float = 60.0,
        mercy_s: float = 5.0,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._free = workers  # how many more workers may be started
        self._starting = 0
        self._keep_warm_s = keep_warm_s
        self._mercy_s = mercy_s
        self._command = tuple(command)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._queue: list[tuple[float, int, asyncio.Future[_Worker]]] = []
        self._count = 0
        self._farewells: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._farewells:
            task.cancel()
        await asyncio.gather(*self._farewells, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._all))

    @property
    def processes(self) -> list[int]:
        """Ids of the worker processes that are alive."""
        return sorted(worker.pid for worker in self._all)

    async def run(self, job: frames.Job, *, weight: float = 0) -> frames.Job:
        worker = await self._worker(weight)
        answer = asyncio.create_task(worker.ask(job))
        try:
            result = await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._later(self._give_up(worker, answer))
            raise
        self._done(worker, alive=result is not None)
        if result is None:
            raise WorkerLost(
                f"the worker ended in mid-job (exit code {await worker.end()}): was it out of memory?"
            )
        return result

    async def _worker(self, weight: float) -> _Worker:
        """One that has no job; whoever gives the turn up in time hands it on."""
        self._count += 1
        turn: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (-weight, self._count, turn))
        self._match()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._done(turn.result(), alive=True)
            raise

    def _match(self) -> None:
        """Bring jobs and workers together; start workers while there are jobs and room."""
        while self._idle and (turn := self._waiting()):
            worker = self._idle.pop()
            worker.keep()
            turn.set_result(worker)
        jobs = sum(not turn.done() for _, _, turn in self._queue)
        for _ in range(min(self._free, jobs - self._starting)):
            self._free -= 1
            self._starting += 1
            self._later(self._add())

    async def _add(self) -> None:
        try:
            worker = await self._start()
        except OSError as error:
            self._free += 1
            if (turn := self._waiting()) is not None:
                turn.set_exception(WorkerLost(f"no worker could be started: {error}"))
            return
        finally:
            self._starting -= 1
        self._done(worker, alive=True)

    async def _start(self) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *consent().options(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(**ONE_THREAD),
        )
        worker = _Worker(process)
        self._all.add(worker)
        return worker

    def _done(self, worker: _Worker, *, alive: bool) -> None:
        """The worker has no job any more: the next one is for it, or it waits for one."""
        if alive:
            self._idle.append(worker)
            worker.end_after(self._keep_warm_s, lambda: self._cool_down(worker))
        else:
            self._all.discard(worker)
            self._free += 1
        self._match()

    def _waiting(self) -> asyncio.Future[_Worker] | None:
        while self._queue:
            turn = heapq.heappop(self._queue)[2]
            if not turn.done():
                return turn
        return None

    def _cool_down(self, worker: _Worker) -> None:
        if worker in self._idle:
            self._idle.remove(worker)
            self._all.discard(worker)
            self._free += 1
            self._later(_ended(worker))

    async def _give_up(self, worker: _Worker, answer: asyncio.Task[frames.Job | None]) -> None:
        with suppress(TimeoutError):
            alive = await asyncio.wait_for(asyncio.shield(answer), self._mercy_s) is not None
            self._done(worker, alive=alive)
            return
        answer.cancel()
        await worker.end()
        self._done(worker, alive=False)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)


class _Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, job: frames.Job) -> frames.Job | None:
        """The answer; None where the process ended."""
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        try:
            self._process.stdin.write(frames.pack(job))
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionError):
            return None
        return await frames.receive(self._process.stdout)

    def end_after(self, seconds: float, end: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, end)

    def keep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def end(self) -> int:
        self.keep()
        if self._process.stdout is not None and self._process.stdout.at_eof():
            with suppress(
                TimeoutError
            ):  # it ends by itself, and a signal now would hide its exit code
                return await asyncio.wait_for(self._process.wait(), 1.0)
        with suppress(ProcessLookupError):
            self._process.kill()
        return await self._process.wait()


async def _ended(worker: _Worker) -> None:
    await worker.end()
