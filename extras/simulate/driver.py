"""A simulated fleet without a broker: the orders of a run go straight to worker processes.

The workers, the codecs and the coordinator's half are those of a run over a broker, so the bytes are the same; what is
left out is the agents' half of the protocol. Time is made up: no agent is late or vanishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.versions import START
from covey.coordinator.odd import doctor
from covey.coordinator.processes import launch
from covey.coordinator.processes.finish import FILE as PARTITION
from covey.coordinator.processes.finish import finish
from covey.coordinator.record.notices import AgentExcluded, ModelChosen, Observer
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.folder import IN_PROCESS, Origin, copy_start, origin_of, prepared
from covey.coordinator.run.options import RunOptions
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.serve.signals import interrupts_stay_interrupts
from covey.coordinator.simulate.virtual_clock import Driver, GivenUpError
from covey.extras.simulate.worker_clients import WorkerClients
from covey.extras.simulate.workers import WorkerPool
from covey.shared import extras
from covey.shared.errors import UserError
from covey.shared.programs.child import cores
from covey.shared.scenario.code import check_code
from covey.shared.scenario.fleet import Faults, Fleet
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.base import ClientId
from covey.shared.wire.jobs import (
    DataSource,
    Failure,
    FindDevice,
    FleetShare,
    InspectData,
    JobRules,
    WritePartition,
    WriteStart,
)
from covey.shared.wire.messages import ALWAYS_THERE

A = TypeVar("A")
Samples = tuple[int, int]  # for training and for tests

MOST_REASONS = 10  # of agents whose data does not fit, in a message


@interrupts_stay_interrupts()
def alone(scenario: Scenario, options: RunOptions, observer: Observer) -> dict[str, Any]:
    """One run with workers of its own. Raises UserError, and KeyboardInterrupt where the operator stopped it."""
    fleet = _simulated(scenario)
    check_code(scenario, options.allowed)
    with (
        prepared(scenario, options, in_process=True) as resume,
        WorkerPool(fleet.workers_on(cores()), options.folder / "workers.log") as pool,
    ):
        return _run(scenario, replace(options, resume=resume), pool, observer)


@interrupts_stay_interrupts()
def simulate(
    scenario: Scenario, options: RunOptions, pool: WorkerPool, observer: Observer
) -> dict[str, Any]:
    """Run to the end, or on from where it was interrupted, and return the result. Raises UserError."""
    _simulated(scenario)
    check_code(scenario, options.allowed)
    with prepared(scenario, options, in_process=True) as resume:
        return _run(scenario, replace(options, resume=resume), pool, observer)


def _run(
    scenario: Scenario, options: RunOptions, pool: WorkerPool, observer: Observer
) -> dict[str, Any]:
    """`simulate` in a folder that is prepared."""
    _simulated(scenario)
    at_hand = fleet_at_hand(scenario, options, pool, observer)
    folder = options.folder.resolve()
    run, first = _started(scenario, folder, options, at_hand.origin)
    observer(ModelChosen(scenario.task.model.name, list(run.setup.whole.frozen)))
    clients = WorkerClients(run, pool, at_hand.sources, options.allowed)
    try:
        Driver(run, clients, observer).complete(at_hand.people, first)
    except GivenUpError as error:
        raise UserError(f"the run was given up after round {run.engine.round}: {error}") from None
    finally:
        clients.close()
    look = doctor()
    return finish(run, None if look is None else look.at_the_end(run, at_hand.left_out))


@dataclass(frozen=True)
class FleetAtHand:
    """The agents of a simulated fleet, ready to work without a broker."""

    sources: Mapping[ClientId, DataSource]  # where a worker finds the data of each agent
    people: Mapping[ClientId, Samples]  # those whose data fits
    origin: Origin | None  # the finished run that this one continues
    left_out: Mapping[ClientId, str]  # those whose data does not, with the reason


def fleet_at_hand(
    scenario: Scenario, options: RunOptions, pool: WorkerPool, observer: Observer
) -> FleetAtHand:
    """Divide the data, inspect every agent's part of it, and build the initial models.

    Raises UserError where the data does not fit, or a worker fails.
    """
    fleet = _fleet_of(scenario)
    folder = options.folder.resolve()
    source = source_of(folder, options.data_root)
    device = scenario.training.device
    if device not in ALWAYS_THERE:
        # a missing device is reported before an agent trains
        _done(pool.call(FindDevice(wanted=device)))
    _done(pool.call(WritePartition(source=source, out=folder / PARTITION)))
    sources = {agent_name(i, fleet.agents): replace(source, index=i) for i in range(fleet.agents)}
    people, left_out = _people(scenario, pool, sources, observer)
    allowed = options.allowed
    origin: Origin | None = None
    if options.origin is not None and not options.resume:
        origin = origin_of(options.origin, scenario)
        copy_start(origin, folder)
    if launch.wants_start(folder, scenario):
        rules = JobRules(allow=sorted(allowed.names))
        _done(pool.call(WriteStart(source=source, out=folder / START, rules=rules)))
    return FleetAtHand(sources, people, origin, left_out)


def source_of(folder: Path, data_root: Path | None) -> FleetShare:
    """Where a worker finds the scenario and the data."""
    root = None if data_root is None else data_root.resolve()
    return FleetShare(scenario=folder / "scenario.yaml", data_root=root)


def _started(
    scenario: Scenario, folder: Path, options: RunOptions, origin: Origin | None
) -> tuple[Run, Sequence[Effect]]:
    """A new run, or the one that the folder holds, and what it does first."""
    setup = launch.started(folder, scenario)
    rules = rules_of(scenario)
    key: bytes | None = None
    if options.audit_key is not None:
        key = extras.part("audit", "key", "--audit-key").read_key(options.audit_key)
    if not options.resume:
        run = Run.start(
            folder,
            scenario,
            setup,
            rules=rules,
            run=IN_PROCESS,
            now=0.0,
            audit_key=key,
            origin=origin,
        )
        return run, ()
    clock = Checkpoint(folder / "checkpoint").facts()["run"].get("clock") or 0.0
    run, effects = Run.resume(folder, scenario, setup, rules=rules, now=clock, audit_key=key)
    desired = run.desired()
    return run, [*effects, *desired]


def _fleet_of(scenario: Scenario) -> Fleet:
    if scenario.fleet is None:
        raise UserError(
            f"{scenario.name} has no section fleet: without a broker there are no agents to train; add the section, or name a broker"
        )
    return scenario.fleet


def _simulated(scenario: Scenario) -> Fleet:
    """The fleet, if it can be simulated without a broker."""
    fleet = _fleet_of(scenario)
    if fleet.timeline or fleet.faults != Faults():
        raise UserError(
            "fleet.timeline and fleet.faults happen in real time and need a broker: leave --in-process out, "
            "or the sections"
        )
    return fleet


def _people(
    scenario: Scenario, pool: WorkerPool, sources: Mapping[ClientId, DataSource], observer: Observer
) -> tuple[dict[ClientId, Samples], dict[ClientId, str]]:
    """Training and test samples of all agents whose data fits, and why that of the others does not."""
    task = scenario.task.model_dump(mode="json")
    jobs = [InspectData(source=source, task=task) for source in sources.values()]
    answers = pool.map(jobs)
    people: dict[ClientId, Samples] = {}
    left_out: dict[ClientId, str] = {}
    for client, answer in zip(sources, answers, strict=True):
        inspected = _done(answer)
        if inspected.problem:
            why = inspected.detail or inspected.problem
            left_out[client] = why
            observer(AgentExcluded(client, why))
        else:
            people[client] = (inspected.samples, inspected.test_samples)
    if not people:
        excluded = [f"{client}: {why}" for client, why in left_out.items()]
        rest = len(excluded) - MOST_REASONS
        more = [f"and {rest} more"] if rest > 0 else []
        reasons = ["the data of no agent fits the task:", *excluded[:MOST_REASONS], *more]
        raise UserError("\n  ".join(reasons))
    return people, left_out


def _done(answer: A | Failure) -> A:
    """The answer of a worker. Raises UserError where the job failed."""
    if isinstance(answer, Failure):
        raise UserError(answer.in_full)
    return answer
