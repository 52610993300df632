"""Drives a run with worker processes, which train as the agents of a fleet do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from covey.coordinator.processes.workers import WorkerPool
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.notices import Observer
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.simulation import Driver, Work
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import DecodeError, UserError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.frames import Job
from covey.shared.wire.messages import USUAL_LEARNER, OrderMessage

Asked = tuple[ClientId, OrderMessage]  # an agent and its order


class Simulation(Driver):
    """Drives a run with workers. An agent's memory is a file, named by the step whose report it came with."""

    def __init__(
        self,
        run: Run,
        pool: WorkerPool,
        sources: Mapping[ClientId, Job],
        observer: Observer,
        allowed: AllowedCode = NO_CODE,
    ) -> None:
        super().__init__(run, observer)
        self._pool = pool
        self._sources = sources
        self._allowed = allowed
        self.learner = USUAL_LEARNER  # what the workers train with
        for client in sources:
            self._folder(client).mkdir(parents=True, exist_ok=True)
            self._settle(client)

    def __repr__(self) -> str:
        agents = len(self._sources)
        return f"<Simulation of {agents} agents: {self.run!r}>"

    def answers(self, work: Work) -> list[Effect]:
        """Reports are taken in the order in which the round invited: over-selection must not prefer the first names."""
        ordered = self._as_invited(work)
        answers = self._pool.map([self._job(client, order) for client, order in ordered])
        effects: list[Effect] = []
        for (client, order), answer in zip(ordered, answers, strict=True):
            if "failure" in answer:
                failure = answer["failure"]
                raise UserError(f"{client}: {failure}")
            report = self._report(client)
            if answer.get("disk_full"):
                raise UserError(f"{answer['disk_full']}, then continue with --resume")
            effects += self._accepted(client, order, report)
            self._settle(client)
        return effects

    def _accepted(self, client: ClientId, order: OrderMessage, report: Path) -> list[Effect]:
        """What follows from a report. One that is refused is failed work: the agent would send the same one again."""
        try:
            # no name for the content: the run drops the last reference to it
            return [*self.run.accept(client, report.read_bytes(), self._now)]
        except DecodeError as error:
            self.run.audit.blame("refuse", client, str(error))
            # without the details, so that a run in which all fail is given up with their common reason
            why = f"its report is refused ({error.reason}); if training diverges, choose a smaller training.lr"
            return [*self.run.failed(client, order.step, why, self._now)]

    def _as_invited(self, work: Work) -> Work:
        step = self.run.engine.step
        places: dict[ClientId, int] = {}
        if step is not None:
            for place, invited in enumerate(step.cohort):
                places[invited] = place
        last = len(places)

        def place_of(asked: Asked) -> int:
            client, _ = asked
            return places.get(client, last)

        return sorted(work, key=place_of)

    def _job(self, client: ClientId, order: OrderMessage) -> Job:
        assert order.work is not None  # noqa: S101 - the driver has looked
        models = [str(self.run.orders.file_of(ref.key)) for ref in order.work.models]
        newest = self._memory(client)
        memory = ""
        if newest is not None:
            memory = str(self._memory_file(client, newest))
        return {
            "job": "perform",
            "source": self._sources[client],
            "client": client,
            "order": order.to_bytes(),
            "models": models,
            "memory": memory,
            "report_out": str(self._report(client)),
            "memory_out": str(self._memory_file(client, order.step)),
            "durable": False,
            "allow": sorted(self._allowed.names),
            "learner": self.learner,
        }

    def _settle(self, client: ClientId) -> None:
        """Keep the memory of the newest accepted work; what came with a report that was not accepted never was."""
        newest = self._memory(client)
        for step in self._steps(client):
            if step != newest:
                self._memory_file(client, step).unlink()
        self._report(client).unlink(missing_ok=True)

    def _memory(self, client: ClientId) -> int | None:
        """The step of the newest memory that came with an accepted report."""
        newest_accepted = self.run.facts.accepted.get(client, 0)
        return max([step for step in self._steps(client) if step <= newest_accepted], default=None)

    def _steps(self, client: ClientId) -> list[int]:
        folder = self._folder(client)
        return [int(path.stem.removeprefix("memory-")) for path in folder.glob("memory-*.npz")]

    def _memory_file(self, client: ClientId, step: int) -> Path:
        return self._folder(client) / f"memory-{step}.npz"

    def _report(self, client: ClientId) -> Path:
        return self._folder(client) / "report"

    def _folder(self, client: ClientId) -> Path:
        return self.run.folder / "agents" / client
