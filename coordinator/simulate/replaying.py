"""`coordinator replay`: do what a buffered run has recorded once more, and compare the models."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.coordinator.processes import launch
from covey.coordinator.processes.finish import finish
from covey.coordinator.processes.workers import WorkerPool
from covey.coordinator.run.checkpoint import Checkpoint
from covey.coordinator.run.event_log import Arrival, arrivals_of
from covey.coordinator.run.folder import IN_PROCESS, START, prepared
from covey.coordinator.run.notices import Observer
from covey.coordinator.run.options import Options
from covey.coordinator.run.records import MIXED
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.driver import fleet_at_hand, source_of, tester
from covey.coordinator.simulate.simulation import GivenUpError
from covey.coordinator.simulate.timed import ReplaySimulation
from covey.shared.errors import UserError
from covey.shared.scenario.code import check_code
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.messages import USUAL_LEARNER, learner_of

MODELS = "models"  # of a run's folder


@dataclass(frozen=True)
class Replayed:
    """A replay and how its models compare with those of the run."""

    folder: Path
    result: Mapping[str, Any]  # as result.json has it
    models: tuple[str, ...]  # names of the files that were compared
    different: tuple[str, ...]  # those that are not byte-identical, or are missing on one side


def replay(record: Path, options: Options, observer: Observer) -> Replayed:
    """Replay a run in another folder.

    Args:
        record: the folder of the run.
        options: of the replay, with its folder.
        observer: gets the notices of the replay.

    Raises:
        UserError: the run cannot be replayed, or its record ends early.
    """
    arrivals = arrivals_of(record)
    scenario = load(record / "scenario.yaml")
    saved = replayable(record, scenario)
    check_code(scenario, options.allowed)
    check_new(options.folder)
    fleet = scenario.fleet
    workers = 0 if fleet is None else fleet.workers
    with (
        prepared(scenario, options, in_process=True),
        WorkerPool(workers, options.folder / "workers.log") as pool,
    ):
        start = record / START
        if start.exists():
            shutil.copyfile(start, options.folder / START)
        run = _replay(scenario, options, pool, arrivals, saved, observer)
        source = source_of(options.folder.resolve(), options.data_root)
        result = asyncio.run(finish(run, options.data_root, options.allowed, tester(pool, source)))
    models, different = compared(record / MODELS, options.folder / MODELS)
    return Replayed(folder=options.folder, result=result, models=models, different=different)


def check_new(folder: Path) -> None:
    """A replay begins from nothing and is never resumed. Raises UserError for a folder with files."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"{folder}: there are files in it already; choose another with --out, or remove it yourself"
        )


def replayable(record: Path, scenario: Scenario) -> Mapping[str, Any]:
    """The run's own state in the checkpoint. Raises UserError for a run whose reports cannot be computed here."""
    if scenario.fleet is None:
        raise UserError(
            f"{record}: the data of this run is on its devices; only runs of a simulated fleet can be replayed"
        )
    saved: Mapping[str, Any] = Checkpoint(record / "checkpoint").facts()["run"]
    if saved["origin"]:
        raise UserError(
            f"{record}: this run continues another one (--from); only runs that began from nothing can be replayed"
        )
    return saved


def learner_of_run(saved: Mapping[str, Any]) -> str:
    """What all agents of a run trained with. Raises UserError if they differ: the workers of a replay have one learner."""
    learners = sorted({learner_of(device) for device in saved["devices"].values()})
    if len(learners) > 1 or MIXED in saved["devices"].values():
        kinds = ", ".join(sorted(set(saved["devices"].values())))
        raise UserError(
            f"this run was computed on several kinds of devices ({kinds}); only a run on one kind can be replayed"
        )
    return learners[0] if learners else USUAL_LEARNER


def _replay(
    scenario: Scenario,
    options: Options,
    pool: WorkerPool,
    arrivals: list[Arrival],
    saved: Mapping[str, Any],
    observer: Observer,
) -> Run:
    """The run after all its events, in a folder that is prepared."""
    fleet = fleet_at_hand(scenario, replace(options, resume=False), pool, observer)
    folder = options.folder.resolve()
    setup = launch.started(folder, scenario)
    rules = rules_of(scenario)
    began_at = 0.0
    for first in arrivals[:1]:
        began_at = first.at
    run = Run.start(folder, scenario, setup, rules, IN_PROCESS, began_at)
    run.spool.durable = False
    run.orders.own.durable = False
    run.orders.evaluates_busy = saved["run"] == IN_PROCESS
    if saved.get("trains_on"):
        run.train_on()
    simulation = ReplaySimulation(run, pool, fleet.sources, observer, options.allowed)
    simulation.learner = learner_of_run(saved)
    try:
        simulation.replay(fleet.people, arrivals)
    except GivenUpError as error:
        raise UserError(f"this run cannot be replayed to its end: {error}") from None
    return simulation.run


def compared(run: Path, replay: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of all model files, and of those that differ."""
    names: set[str] = set()
    for folder in (run, replay):
        for path in folder.glob("*"):
            names.add(path.name)
    different: list[str] = []
    for name in sorted(names):
        before = run / name
        after = replay / name
        if not before.exists() or not after.exists() or before.read_bytes() != after.read_bytes():
            different.append(name)
    return tuple(sorted(names)), tuple(different)
