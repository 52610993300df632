"""The agents of a simulated fleet: worker processes train as they do."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from concurrent.futures import Future, wait
from pathlib import Path

from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Work
from covey.extras.simulate.workers import WorkerPool
from covey.shared.errors import UserError
from covey.shared.own_code.consent import NO_CODE, AllowedCode
from covey.shared.strategies.base import ClientId
from covey.shared.wire.jobs import (
    BadDisk,
    DataSource,
    Failure,
    JobRules,
    OrderAnswer,
    Perform,
    Performed,
    learner_here,
)
from covey.shared.wire.messages import OrderMessage

JOBS_PER_WORKER = 8  # that are given out together
MEMORY = "memory-"  # begins the name of a memory; the step whose report it came with follows
PENDING = "pending-"  # the same, as long as that report is not accepted
REPORT = "report-"


class WorkerClients:
    """Agents whose reports and memories are files, named by the step: they are computed ahead of their arrival.

    A memory becomes the agent's own when its report is accepted.
    """

    def __init__(
        self,
        run: Run,
        pool: WorkerPool,
        sources: Mapping[ClientId, DataSource],
        allowed: AllowedCode = NO_CODE,
        learner: str = "",
    ) -> None:
        self._pool = pool
        self._sources = sources
        # what the workers train with; a fleet over a broker follows the same variable
        learner = learner or os.environ.get("COVEY_LEARNER") or learner_here()
        self._rules = JobRules(allow=sorted(allowed.names), learner=learner)
        self._folder = run.folder / "agents"
        fleet = run.scenario.fleet
        self._together = None if fleet is None else fleet.together
        self._jobs: dict[ClientId, dict[int, Future[OrderAnswer | Failure]]] = {
            client: {} for client in sources
        }
        for client in sources:
            place = self._folder / client
            place.mkdir(parents=True, exist_ok=True)
            self.settle(run, client, run.members.accepted(client))
            for left in (*place.glob(f"{PENDING}*"), *place.glob(f"{REPORT}*")):
                left.unlink(missing_ok=True)  # by a process that was killed

    def __repr__(self) -> str:
        return f"<WorkerClients: {len(self._sources)} agents>"

    @property
    def ahead(self) -> int:
        """Enough for all workers."""
        return self._pool.size * (self._together or JOBS_PER_WORKER) - 1

    def compute(self, run: Run, work: Work) -> None:
        """Have the workers do this work in its order, as soon as they are free."""
        jobs = [self._job(run, client, order) for client, order in work]
        if self._together is None:
            futures = [self._pool.submit(job) for job in jobs]
        else:
            size = max(1, min(self._together, math.ceil(len(jobs) / self._pool.size)))
            groups = (jobs[first : first + size] for first in range(0, len(jobs), size))
            futures = [future for group in groups for future in self._pool.submit_together(group)]
        for (client, order), future in zip(work, futures, strict=True):
            self._jobs[client][order.step] = future

    def report(self, run: Run, client: ClientId, order: OrderMessage) -> bytes:
        """The report that a worker writes. Raises UserError where it fails."""
        answer = self._jobs[client].pop(order.step).result()
        if isinstance(answer, Failure):
            raise UserError(f"{client}: {answer.why}")
        if isinstance(answer, BadDisk):
            raise UserError(
                f"{answer.why}, then continue with --resume" if answer.waits else answer.why
            )
        if not isinstance(answer, Performed):
            raise UserError(f"{client}: its memory is damaged; repeat the run with another --out")
        return self._file(client, REPORT, order.step).read_bytes()

    def settle(self, run: Run, client: ClientId, step: int) -> None:
        """Keep the memory of the newest accepted work, and no report."""
        if step in self._jobs[client]:  # this report is not awaited
            self._drop(client, step)
            return
        pending = self._file(client, PENDING, step)
        if run.members.accepted(client) == step and pending.exists():
            pending.replace(self._memory_file(client, step))
        self._remove(client, step)
        wait(self._jobs[client].values())  # one of them may begin with an older memory
        newest = self._newest_memory(run, client)
        for older in self._memories(client):
            if older != newest:
                self._memory_file(client, older).unlink()

    def _drop(self, client: ClientId, step: int) -> None:
        """Do not begin with this work, or remove what comes of it."""
        job = self._jobs[client].pop(step)
        job.cancel()
        job.add_done_callback(lambda _: self._remove(client, step))

    def _remove(self, client: ClientId, step: int) -> None:
        """What a worker has written for this step, and the run has not taken."""
        for kind in (REPORT, PENDING):
            self._file(client, kind, step).unlink(missing_ok=True)

    def close(self) -> None:
        """The run is over: no worker begins with any of its orders."""
        for client, jobs in self._jobs.items():
            for step in list(jobs):
                self._drop(client, step)

    def _job(self, run: Run, client: ClientId, order: OrderMessage) -> Perform:
        assert order.work is not None  # noqa: S101 - the driver has looked
        newest = self._newest_memory(run, client)
        return Perform(
            source=self._sources[client],
            client=client,
            order=order.to_bytes(),
            models=[run.orders.file_of(ref.key) for ref in order.work.models],
            memory=None if newest is None else self._memory_file(client, newest),
            report_out=self._file(client, REPORT, order.step),
            memory_out=self._file(client, PENDING, order.step),
            durable=False,
            secure=self._folder / client / "secure",
            rules=self._rules,
        )

    def _newest_memory(self, run: Run, client: ClientId) -> int | None:
        """The step of the newest memory that came with an accepted report."""
        accepted = run.members.accepted(client)
        return max([step for step in self._memories(client) if step <= accepted], default=None)

    def _memories(self, client: ClientId) -> list[int]:
        found = (self._folder / client).glob(f"{MEMORY}*.npz")
        return [int(path.stem.removeprefix(MEMORY)) for path in found]

    def _memory_file(self, client: ClientId, step: int) -> Path:
        return self._file(client, MEMORY, step)

    def _file(self, client: ClientId, kind: str, step: int) -> Path:
        ending = "" if kind == REPORT else ".npz"
        return self._folder / client / f"{kind}{step}{ending}"
