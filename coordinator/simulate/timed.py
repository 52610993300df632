"""A simulated fleet without a broker on a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from covey.coordinator.processes.workers import WorkerPool
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.notices import Observer
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.answering import AnsweringDriver
from covey.coordinator.simulate.fleet_driver import Simulation
from covey.coordinator.simulate.replay import ReplayDriver
from covey.coordinator.simulate.simulation import Work
from covey.coordinator.simulate.virtual_clock import TimedDriver
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import UserError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.frames import Job
from covey.shared.wire.messages import OrderMessage

JOBS_PER_WORKER = 8  # that are given out together
PENDING = "pending-"  # begins the name of a memory whose report is not accepted yet


class AheadSimulation(AnsweringDriver, Simulation):
    """A `Simulation` that computes reports before they are due.

    Reports are computed ahead of their arrival, so a report and the memory that belongs to it have the number of their
    step. The memory becomes the agent's own when the report is accepted.
    """

    def __init__(
        self,
        run: Run,
        pool: WorkerPool,
        sources: Mapping[ClientId, Job],
        observer: Observer,
        allowed: AllowedCode = NO_CODE,
    ) -> None:
        super().__init__(run, pool, sources, observer, allowed)
        self._computed: set[tuple[ClientId, int]] = set()

    @property
    def lookahead(self) -> int:
        return self._pool.size * JOBS_PER_WORKER - 1

    def prepare(self, work: Work) -> None:
        missing: list[tuple[ClientId, int]] = []
        jobs: list[Job] = []
        for client, order in work:
            key = (client, order.step)
            if key in self._computed:
                continue
            job = self._job(client, order)
            missing.append(key)
            jobs.append(job)
        for key, answer in zip(missing, self._pool.map(jobs), strict=True):
            if "failure" in answer:
                client, _ = key
                failure = answer["failure"]
                raise UserError(f"{client}: {failure}")
            self._computed.add(key)

    def deliver(self, client: ClientId, order: OrderMessage) -> list[Effect]:
        self._computed.discard((client, order.step))
        report = self._report_of(client, order.step)
        effects = self.run.accept(client, report.read_bytes(), self._now)
        report.unlink()
        self._settle(client)
        return effects

    def _job(self, client: ClientId, order: OrderMessage) -> Job:
        job = super()._job(client, order)
        memory = self._pending(client, order.step)
        report = self._report_of(client, order.step)
        return {**job, "report_out": str(report), "memory_out": str(memory)}

    def _settle(self, client: ClientId) -> None:
        newest = self.run.facts.accepted.get(client, 0)
        accepted = self._pending(client, newest)
        if accepted.exists():
            accepted.replace(self._memory_file(client, newest))
        super()._settle(client)

    def _pending(self, client: ClientId, step: int) -> Path:
        return self._folder(client) / f"{PENDING}{step}.npz"

    def _report_of(self, client: ClientId, step: int) -> Path:
        return self._folder(client) / f"report-{step}"


class TimedSimulation(TimedDriver, AheadSimulation):
    """A simulated fleet whose agents take their time."""

    def __init__(
        self,
        run: Run,
        pool: WorkerPool,
        sources: Mapping[ClientId, Job],
        observer: Observer,
        allowed: AllowedCode = NO_CODE,
    ) -> None:
        super().__init__(run, pool, sources, observer, allowed)
        self.start_clock()


class ReplaySimulation(ReplayDriver, AheadSimulation):
    """A simulated fleet whose reports come in a recorded order."""
