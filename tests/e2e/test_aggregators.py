"""Two real brokers with an aggregator each: the models are those of a run without, also if one of them is killed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from covey.coordinator.run.run import Run
from tests.mosquitto_fleet import MosquittoFleet
from tests.processes import Program, free_port, mosquitto, needs_mosquitto, program, until
from tests.small_fleet import PATIENT
from tests.small_run import fingerprint, in_process, rules, scenario

SCENE = scenario("fedclust", rounds={"count": 2, "participation": 1.0})
RULES = rules(SCENE, **PATIENT)
KILLED = 1  # the shard whose aggregator is killed
SUMMED = 2  # the first step that is summed; the one before compares signatures


class FleetWithAggregators(MosquittoFleet):
    """Agents on two Mosquittos. One aggregator is killed while the agents work on the second round."""

    def __init__(self, folder: Path, urls: list[str], aggregators: list[Program]) -> None:
        super().__init__(folder, SCENE, RULES, urls, aggregators=True)
        self.aggregators = aggregators
        self.jobs.takes_s = 0.2

    async def kill(self) -> None:
        victim = self.aggregators[KILLED]
        while f"step {SUMMED + 1} (train)" not in victim.output:  # noqa: ASYNC110 - a few polls
            await asyncio.sleep(0.01)
        victim.kill()


def is_connected(aggregator: Program) -> bool:
    return "connected" in aggregator.output


@pytest.mark.broker
@needs_mosquitto
def test_a_killed_aggregator_costs_no_bytes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls: list[str] = []
        aggregators: list[Program] = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            port = free_port()
            stack.enter_context(mosquitto(folder, port))
            url = f"mqtt://127.0.0.1:{port}"
            command = ["covey.coordinator.cli", "aggregate", "--broker", url]
            this = stack.enter_context(program(*command, log=folder / "aggregator.log"))
            urls.append(url)
            aggregators.append(this)
        for one in aggregators:
            until(partial(is_connected, one), 60.0, one)

        async def story() -> Run:
            fleet = FleetWithAggregators(tmp_path, urls, aggregators)
            async with fleet, asyncio.TaskGroup() as group:
                group.create_task(fleet.kill())
                run = await fleet.coordinate()
            ups = [row["up"] for row in fleet.rows if row["event"] == "aggregator"]
            assert ups == [True, True, False]
            return run

        summed = asyncio.run(story())
        first, second = aggregators
        for step in (SUMMED, SUMMED + 1):
            assert f"step {step}: sent the sum of" in first.output
        assert f"step {SUMMED}: sent the sum of" in second.output
    assert fingerprint(summed) == fingerprint(in_process(tmp_path / "direct", SCENE))
