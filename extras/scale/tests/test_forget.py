"""What `coordinator lab forget` leaves: what needs `runs` and `scale`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from covey.coordinator.serve.service import Service
from covey.extras.runs.tests.test_control import operator
from covey.extras.scale.tests.test_aggregators import TOPICS, AggregatedFleet, task_is_read
from covey.shared.mqtt.link import Received
from covey.shared.wire.messages import Part
from tests import clock
from tests.coordinator.test_forget import GONE, HISTORY, KEPT, named_in
from tests.kit.small_fleet import PATIENT
from tests.kit.small_run import scenario
from tests.kit.traces import fill, is_in_text, traces


async def half_a_report(fleet: AggregatedFleet, shard: int) -> None:
    """The first of two parts of a report, at the aggregator of a shard."""
    part = Part(digest=bytes(16), index=0, count=2, size=9, about=1, data=b"12345")
    message = Received(TOPICS.report(GONE, 0), part.to_bytes())
    fleet.services[shard].handle([message], asyncio.get_running_loop().time())


@pytest.mark.parametrize("has_reported", [True, False], ids=["in a sum", "awaited"])
def test_nothing_at_brokers_and_aggregators_names_an_agent_that_was_forgotten(
    tmp_path: Path, has_reported: bool
) -> None:
    scene = scenario("fedclust", rounds={"count": 4, "participation": 1.0})
    fleet = AggregatedFleet(tmp_path, scene, 2, **PATIENT)
    fleet.pool.takes_s = 5.0
    shard = fleet.shard(GONE)
    away = min(fleet.living_on(shard) - {GONE})  # the step waits for it

    def left() -> dict[str, set[str]]:
        aggregator = fleet.services[shard]
        assert isinstance(fleet.service, Service)
        retained = {
            topic
            for broker in fleet.brokers
            for topic, payload in broker.retained.matching("#")
            if is_in_text(GONE, topic) or is_in_text(GONE, payload.decode("latin-1"))
        }
        retained.discard(TOPICS.metrics)  # the newest line of rounds.jsonl
        return {
            "aggregator": traces(aggregator, GONE),
            "coordinator": traces(fleet.service, GONE) - KEPT.keys(),
            "files": named_in(aggregator._folder, GONE),
            "run": named_in(tmp_path / "run", GONE) - HISTORY.keys() - {"manifest.json", "reports"},
            "retained": retained,
        }

    async def program() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        async with fleet, asyncio.TaskGroup() as group:
            serving = group.create_task(fleet.serve())
            await task_is_read(fleet, 3)  # clusters exist, and the first round is open
            await half_a_report(fleet, shard)
            await fleet.vanish(away)
            if has_reported:
                await asyncio.sleep(8.0)  # also for the sum, which waits for others
            await fleet.vanish(GONE)
            assert isinstance(fleet.service, Service)
            assert (GONE in fleet.service.run.store.reports.summed(3)) == has_reported
            fill(fleet.services[shard], GONE)
            before = left()
            await operator(fleet.brokers[0], "forget", GONE)
            await asyncio.sleep(2.0)  # what was decided with it is published
            after = left()
            fleet.join(away)
            await serving
            return before, after

    before, after = clock.run(program(), within_s=3600)
    assert {"Summing._answered", "Assembler._senders", "FedClustState.assign"} <= before[
        "aggregator"
    ]
    assert all(before.values())
    assert {place: found for place, found in after.items() if found} == {}
