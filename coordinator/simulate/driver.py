"""A simulated fleet without a broker: the orders of a run go straight to worker processes.

The workers, the codecs and the coordinator's half are those of a run over a broker, so the bytes are the same; what is
left out is the agents' half of the protocol. Time is made up: nobody is late, nobody vanishes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.coordinator.processes import launch
from covey.coordinator.processes.finish import finish
from covey.coordinator.processes.workers import WorkerPool
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.folder import IN_PROCESS, START, prepared
from covey.coordinator.run.notices import AgentExcluded, Observer
from covey.coordinator.run.options import Options
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.simulation import Driver, GivenUpError, Work
from covey.shared.audit import read_key
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import UserError
from covey.shared.scenario.code import check_code
from covey.shared.scenario.fleet import Faults, Fleet
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.base import ClientId
from covey.shared.wire.frames import Job
from covey.shared.wire.messages import ALWAYS_THERE, OrderMessage


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
        self._pool, self._sources, self._allowed = pool, sources, allowed
        for client in sources:
            self._folder(client).mkdir(parents=True, exist_ok=True)
            self._settle(client)

    def __repr__(self) -> str:
        return f"<Simulation of {len(self._sources)} agents: {self.run!r}>"

    def answers(self, work: Work) -> list[Effect]:
        """Reports are taken in the order in which the round invited: over-selection must not prefer the first names."""
        step = self.run.engine.step
        places = (
            {client: place for place, client in enumerate(step.cohort)} if step is not None else {}
        )
        ordered = sorted(work, key=lambda item: places.get(item[0], len(places)))
        effects: list[Effect] = []
        for (client, _), answer in zip(
            ordered, self._pool.map([self._job(*item) for item in ordered]), strict=True
        ):
            if "failure" in answer:
                raise UserError(f"{client}: {answer['failure']}")
            effects += self.run.accept(client, self._report(client).read_bytes(), self._now)
            self._settle(client)
        return effects

    def _job(self, client: ClientId, order: OrderMessage) -> Job:
        assert order.work is not None  # noqa: S101 - the driver has looked
        memory = self._memory(client)
        return {
            "job": "perform",
            "source": self._sources[client],
            "client": client,
            "order": order.to_bytes(),
            "models": [str(self.run.orders.file_of(ref.key)) for ref in order.work.models],
            "memory": str(self._folder(client) / f"memory-{memory}.npz")
            if memory is not None
            else "",
            "report_out": str(self._report(client)),
            "memory_out": str(self._folder(client) / f"memory-{order.step}.npz"),
            "durable": False,
            "allow": sorted(self._allowed.names),
        }

    def _settle(self, client: ClientId) -> None:
        """Keep the memory of the newest accepted work; what came with a report that was not accepted never was."""
        newest = self._memory(client)
        for step in self._steps(client):
            if step != newest:
                (self._folder(client) / f"memory-{step}.npz").unlink()
        self._report(client).unlink(missing_ok=True)

    def _memory(self, client: ClientId) -> int | None:
        accepted = self.run.facts.accepted.get(client, 0)
        return max((step for step in self._steps(client) if step <= accepted), default=None)

    def _steps(self, client: ClientId) -> list[int]:
        return [
            int(path.stem.removeprefix("memory-"))
            for path in self._folder(client).glob("memory-*.npz")
        ]

    def _report(self, client: ClientId) -> Path:
        return self._folder(client) / "report"

    def _folder(self, client: ClientId) -> Path:
        return self.run.folder / "agents" / client


def alone(scenario: Scenario, options: Options, observer: Observer) -> dict[str, Any]:
    """One run with workers of its own. Raises UserError, and KeyboardInterrupt where the operator stopped it."""
    fleet = _simulated(scenario)
    check_code(scenario, options.allowed)
    with (
        prepared(scenario, options, in_process=True) as resume,
        WorkerPool(fleet.workers, options.folder / "workers.log") as pool,
    ):
        return _run(scenario, replace(options, resume=resume), pool, observer)


def simulate(
    scenario: Scenario, options: Options, pool: WorkerPool, observer: Observer
) -> dict[str, Any]:
    """Run to the end, or on from where it was interrupted, and return the result. Raises UserError."""
    _simulated(scenario)
    check_code(scenario, options.allowed)
    with prepared(scenario, options, in_process=True) as resume:
        return _run(scenario, replace(options, resume=resume), pool, observer)


def _run(
    scenario: Scenario, options: Options, pool: WorkerPool, observer: Observer
) -> dict[str, Any]:
    """`simulate` in a folder that is prepared."""
    fleet = _simulated(scenario)
    folder = options.folder.resolve()
    root = str(options.data_root.resolve()) if options.data_root is not None else None
    source = {"scenario": str(folder / "scenario.yaml"), "data_root": root}
    if scenario.training.device not in ALWAYS_THERE:
        _done(
            pool.call({"job": "device", "wanted": scenario.training.device})
        )  # said before anybody trains
    _done(pool.call({"job": "partition", "source": source, "out": str(folder / "partition.npz")}))
    sources = {agent_name(i, fleet.agents): {**source, "index": i} for i in range(fleet.agents)}
    people = _people(scenario, pool, sources, observer)
    if launch.wants_start(folder, scenario):
        allow = sorted(options.allowed.names)
        _done(
            pool.call(
                {"job": "start", "source": source, "out": str(folder / START), "allow": allow}
            )
        )
    setup, rules = launch.started(folder, scenario), rules_of(scenario)
    first: Sequence[Effect] = ()
    key = read_key(options.audit_key) if options.audit_key is not None else None
    if options.resume:
        run, first = Run.resume(folder, scenario, setup, rules, 0.0, key)
        first = [*first, *run.desired()]
    else:
        run = Run.start(folder, scenario, setup, rules, IN_PROCESS, 0.0, key)
    run.spool.durable = False
    try:
        Simulation(run, pool, sources, observer, options.allowed).complete(people, first)
    except GivenUpError as error:
        raise UserError(f"the run was given up after round {run.engine.round}: {error}") from None
    return asyncio.run(finish(run, options.data_root, options.allowed))


def _simulated(scenario: Scenario) -> Fleet:
    fleet = scenario.fleet
    if fleet is None:
        raise UserError(
            f"{scenario.name} has no section fleet: without a broker there is nobody to train"
        )
    if fleet.timeline or fleet.faults != Faults():
        raise UserError(
            "fleet.timeline and fleet.faults happen in real time and need a broker: leave --in-process out, "
            "or the sections"
        )
    return fleet


def _people(
    scenario: Scenario, pool: WorkerPool, sources: Mapping[ClientId, Job], observer: Observer
) -> dict[ClientId, tuple[int, int]]:
    """Training and test samples of everybody whose data fits."""
    task = scenario.task.model_dump(mode="json")
    found = pool.map(
        [{"job": "inspect", "source": source, "task": task} for source in sources.values()]
    )
    people = {}
    for client, answer in zip(sources, found, strict=True):
        inspected = _done(answer)
        problem = inspected.get("problem")
        if problem:
            observer(AgentExcluded(client, inspected.get("detail") or problem))
        else:
            people[client] = (inspected["samples"], inspected["test_samples"])
    if not people:
        raise UserError("the data of no agent fits the task")
    return people


def _done(answer: Job) -> Job:
    if "failure" in answer:
        raise UserError(answer.get("detail") or answer["failure"])
    return answer
