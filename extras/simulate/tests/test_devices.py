"""A record names the kinds of devices that computed the run: what needs `simulate`."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any, NoReturn, cast

import pytest

from covey.coordinator.run.options import RunOptions
from covey.extras.simulate import driver
from covey.extras.simulate.workers import WorkerPool
from covey.shared.errors import UserError
from covey.shared.scenario.fleet import Fleet
from covey.shared.wire.jobs import Answers, Failure, FindDevice
from tests.kit.small_run import scenario


class NoGpu:
    """Workers without a GPU; they are given no other job."""

    def call(self, job: Any) -> Failure:
        assert job == FindDevice(wanted="cuda")
        return Failure(why="training.device: torch can use no cuda here")


def test_a_simulation_refuses_a_missing_device_before_any_agent_trains(tmp_path: Path) -> None:
    scene = scenario("fedavg", training={"device": "cuda"}).model_copy(
        update={"fleet": Fleet(agents=8)}
    )
    options = RunOptions(tmp_path / "run")
    with pytest.raises(UserError, match=r"training\.device: torch can use no cuda here"):
        driver.simulate(scene, options, cast(WorkerPool, NoGpu()), lambda row: None)


@pytest.mark.parametrize(
    ("given", "cores", "agents", "workers"),
    [(0, 2, 8, 2), (0, 64, 3, 3), (5, 2, 8, 5), (5, 64, 3, 3), (0, 1, 8, 1)],
)
def test_there_are_no_more_workers_than_cores_or_agents(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: int,
    cores: int,
    agents: int,
    workers: int,
) -> None:
    """Each takes a second to start and 230 MB. A container may use fewer cores than its machine has."""
    started: list[int] = []

    def pool(size: int, _log: Path) -> NoReturn:
        started.append(size)
        raise UserError("enough")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(driver, "WorkerPool", pool)
    fleet = Fleet(agents=agents, workers=given)
    scene = scenario("fedavg").model_copy(update={"fleet": fleet})
    with pytest.raises(UserError, match="enough"):
        driver.alone(scene, RunOptions(tmp_path / "run"), lambda row: None)
    assert started == [workers]


class Unhurried(WorkerPool):
    """A worker that begins when it is allowed to."""

    def __init__(self, log: Path) -> None:
        super().__init__(1, log)
        self.may_begin = Event()

    def call(self, job: Any) -> Any:
        self.may_begin.wait()
        return Answers(answers=[f"did {one}" for one in getattr(job, "jobs", ())])


def test_a_job_that_is_cancelled_in_time_is_left_out_of_its_group(tmp_path: Path) -> None:
    pool = Unhurried(tmp_path / "log")
    first = pool.submit(cast(Any, "busy"))
    jobs: Any = pool.submit_together(cast(Any, list("abc")))
    assert jobs[1].cancel()
    pool.may_begin.set()
    assert first.result() == Answers(answers=[])
    assert [jobs[0].result(), jobs[2].result()] == ["did a", "did c"]


def test_a_worker_that_dies_fails_all_jobs_of_its_group(tmp_path: Path) -> None:
    class Dying(Unhurried):
        def call(self, job: Any) -> Any:
            raise UserError("a worker process died")

    for job in Dying(tmp_path / "log").submit_together(cast(Any, list("ab"))):
        with pytest.raises(UserError, match="worker process died"):
            job.result()
