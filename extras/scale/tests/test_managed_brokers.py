"""Runs over each managed broker stay within its limits, and fail where the clients do not know them: what needs `scale`."""

from __future__ import annotations

from pathlib import Path

from covey.coordinator.run.run import Run
from covey.extras.scale.tests.test_aggregators import AggregatedFleet
from tests import clock
from tests.conformance.test_managed_brokers import BY_NAME, MANY, PATIENCE_S, Trial, start_of
from tests.kit.limited_broker import LimitedBroker
from tests.kit.small_fleet import PATIENT
from tests.kit.small_run import fingerprint


def test_an_aggregator_fetches_its_task_in_the_window_that_its_broker_allows(
    tmp_path: Path,
) -> None:
    trial = Trial(BY_NAME["aws"], **MANY, agents=8)
    broker = LimitedBroker(trial.profile)
    fleet = AggregatedFleet(tmp_path / "summed", trial.scene, shards=1, **PATIENT)
    fleet.brokers = [broker]
    fleet.people = fleet.pool.people = trial.fleet

    async def whole() -> Run:
        async with fleet:
            start = start_of(trial.scene, trial.fleet)
            return await fleet.serve(
                Run.start(tmp_path / "run", fleet.scene, start, rules=fleet.rules, run="r1", now=0)
            )

    summed = clock.run(whole(), within_s=PATIENCE_S)
    assert fingerprint(summed) == fingerprint(trial.alone(tmp_path / "alone"))
    assert fleet.sums
    assert not broker.offences
