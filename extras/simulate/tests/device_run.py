"""Whole runs of devices with files of their own, in this process: the coordinator's run and the worker's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

from covey.agent.training.models import initial
from covey.agent.worker.worker import answer
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver, GivenUpError
from covey.extras.simulate.worker_clients import WorkerClients
from covey.extras.simulate.workers import WorkerPool
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy
from covey.shared.wire.jobs import DataSummary, DeviceData, InspectData, Perform, PerformTogether
from tests.kit.scenes import Scenes

__all__ = ["GivenUpError", "devices", "here", "inspected", "scenes"]


class HerePool:
    """Does the jobs of worker processes in this one."""

    size = 1

    def submit(self, job: Any) -> Future[Any]:
        return self._answered(self.call(job))

    def submit_together(self, jobs: Sequence[Perform]) -> list[Future[Any]]:
        answers = self.call(PerformTogether(jobs=list(jobs))).answers
        return [self._answered(one) for one in answers]

    def _answered(self, answer: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(answer)
        return done

    def call(self, job: Any) -> Any:
        return self.map([job])[0]

    def map(self, jobs: Sequence[Any]) -> list[Any]:
        found = [answer(job) for job in jobs]
        failures = [one.failed for one in found if getattr(one, "failed", "")]
        assert not failures, failures
        return found


def here() -> WorkerPool:
    return cast(WorkerPool, HerePool())


def scenes(task: Mapping[str, Any]) -> Scenes:
    """Three rounds of FedAvg, and fine-tuning for one epoch. The choice of a model at home costs more than all rounds."""
    training = {"epochs": 2, "batch": 8, "lr": 0.1}
    sections = {"rounds": {"count": 3}, "evaluation": {"deliver": "served"}}
    return Scenes.of("own-data", task, seed=1, training=training, **sections)


def inspected(path: Path, scene: Scenario) -> DataSummary:
    """The description of its data that a device sends."""
    source = DeviceData(data=str(path))
    found: DataSummary = answer(InspectData(source=source, task=scene.task.for_agents()))
    return found


def devices(folder: Path, scene: Scenario, files: Mapping[str, Path]) -> Run:
    """The whole run of one device per file."""
    vector, layout = initial(scene.task, entropy(scene.seed, "init", 0))
    setup = setup_of(scene, [vector], layout)
    rules = RoundRules(seed=scene.seed, rounds=scene.rounds.count, start_agents=len(files))
    folder.mkdir(parents=True)
    run = Run.start(folder, scene, setup, rules=rules, run=IN_PROCESS, now=0.0)
    sources = {client: DeviceData(data=str(path)) for client, path in files.items()}
    samples: dict[str, tuple[int, int]] = {}
    for client, path in files.items():
        found = inspected(path, scene)
        assert not found.problem, found
        samples[client] = (found.samples, found.test_samples)
    return Driver(run, WorkerClients(run, here(), sources)).complete(samples)
