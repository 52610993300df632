"""Two real brokers with an aggregator each: the models are those of a run without, whichever process is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from covey.coordinator.run.result import write_models
from covey.coordinator.run.run import Run
from tests.e2e.conftest import finish
from tests.kit.small_fleet import PATIENT
from tests.kit.small_run import fingerprint, in_process, layout_text, rules, scenario, setup
from tests.mosquitto_fleet import MosquittoFleet
from tests.processes import (
    Program,
    free_port,
    model_bytes,
    mosquitto,
    needs_mosquitto,
    program,
    until,
)

SCENE = scenario("fedclust", rounds={"count": 2, "participation": 1.0})
RULES = rules(SCENE, **PATIENT)
KILLED = 1  # the shard whose aggregator is killed
SUMMED = 2  # the first step that is summed; the one before compares signatures


class FleetWithAggregators(MosquittoFleet):
    """Agents on two Mosquittos. One aggregator is killed while the agents work on the second round."""

    def __init__(self, folder: Path, urls: list[str], aggregators: list[Program]) -> None:
        super().__init__(folder, SCENE, RULES, urls, aggregators=True)
        self.aggregators = aggregators
        self.gate = self.hold(KILLED, SUMMED + 1)[SUMMED + 1]

    async def kill(self) -> None:
        victim = self.aggregators[KILLED]
        while f"step {SUMMED + 1} (train)" not in victim.output:  # noqa: ASYNC110 - a few polls
            await asyncio.sleep(0.01)
        victim.kill()
        self.gate.set()


@dataclass
class Site:
    """A broker, and the aggregator near it."""

    url: str
    aggregator: Program


def has_sum(folder: Path, step: int) -> bool:
    return any((folder / "spool" / str(step)).glob("*.sum"))


def says(program: Program, line: str) -> bool:
    return line in program.output


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[list[Site]]:
    with ExitStack() as stack:
        sites: list[Site] = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            port = free_port()
            stack.enter_context(mosquitto(folder, port))
            url = f"mqtt://127.0.0.1:{port}"
            command = ["covey.coordinator.cli", "lab", "aggregate", "--broker", url]
            log = folder / "aggregator.log"
            aggregator = stack.enter_context(program(*command, log=log))
            sites.append(Site(url, aggregator))
        for site in sites:
            until(partial(says, site.aggregator, "connected"), 60.0, site.aggregator)
        yield sites


@pytest.mark.whole
@pytest.mark.broker
@needs_mosquitto
def test_a_killed_aggregator_costs_no_bytes(tmp_path: Path, sites: list[Site]) -> None:
    urls = [site.url for site in sites]
    first, second = [site.aggregator for site in sites]

    async def story() -> Run:
        fleet = FleetWithAggregators(tmp_path, urls, [first, second])
        async with fleet, asyncio.TaskGroup() as group:
            group.create_task(fleet.kill())
            run = await fleet.coordinate()
        ups = [row["up"] for row in fleet.rows if row["event"] == "aggregator"]
        assert ups == [True, True, False]
        return run

    summed = asyncio.run(story())
    for step in (SUMMED, SUMMED + 1):
        assert f"step {step}: sent the sum of" in first.output
    assert f"step {SUMMED}: sent the sum of" in second.output
    assert fingerprint(summed) == fingerprint(in_process(tmp_path / "direct", SCENE))


class FleetWithCoordinator(MosquittoFleet):
    """The coordinator is a program of its own. It is killed while agents of one broker wait to work on a summed step."""

    def __init__(self, folder: Path, urls: list[str]) -> None:
        super().__init__(folder, SCENE, RULES, urls)
        self.gates = self.hold(KILLED, SUMMED, SUMMED + 1)

    def coordinator(self, *more: str) -> Program:
        """`coordinator run --aggregators`. A file has the initial models, so that nobody imports torch."""
        start = self.folder / "start.npz"
        starts = np.stack(setup(SCENE).starts)
        np.savez(start, starts=starts, layout=layout_text(SCENE))
        scene = SCENE.model_dump(mode="json", exclude_unset=True)
        scene["task"]["init"] = str(start)
        path = self.folder / "scenario.yaml"
        path.write_text(yaml.safe_dump(scene))
        command = ["covey.coordinator.cli", "run", str(path), "--aggregators", "--json", *more]
        command += ["--out", str(self.folder / "run")]
        for url in self.urls:
            command += ["--broker", url]
        return Program(command, self.folder / "coordinator.log")


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.broker
@needs_mosquitto
def test_a_killed_coordinator_continues_with_its_aggregators(
    tmp_path: Path, sites: list[Site]
) -> None:
    """It is killed twice: when the first aggregator has sent its sum, and when that sum is on the coordinator's disk."""
    folder = tmp_path / "run"
    urls = [site.url for site in sites]
    first, second = [site.aggregator for site in sites]

    async def kills() -> None:
        fleet = FleetWithCoordinator(tmp_path, urls)
        async with fleet:
            for step, more in ((SUMMED, ()), (SUMMED + 1, ("--resume",))):
                this = fleet.coordinator(*more)
                sent = f"step {step}: sent the sum of"
                has_sent = partial(says, first, sent)
                await asyncio.to_thread(until, has_sent, 60.0, this)
                if step > SUMMED:
                    is_kept = partial(has_sum, folder, step)
                    await asyncio.to_thread(until, is_kept, 60.0, this)
                this.kill()
                fleet.gates[step].set()
            await asyncio.to_thread(finish, fleet.coordinator("--resume"))

    asyncio.run(kills())
    for step in (SUMMED, SUMMED + 1):
        assert f"step {step}: sent the sum of" in second.output
    direct = in_process(tmp_path / "direct", SCENE)
    write_models(direct)
    assert model_bytes(folder) == model_bytes(direct.folder)
