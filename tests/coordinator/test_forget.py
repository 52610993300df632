"""What `coordinator lab forget` leaves: nothing, but for what is stated here with its reason.

The memory of a run is searched as a whole, and every collection of agents in it has the agent before it is forgotten.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.engine.events import Failed, Forget, Joined
from covey.coordinator.record.notices import AgentForgotten, PhaseFolded
from covey.coordinator.run.result import result_of
from covey.coordinator.run.run import Run
from covey.coordinator.serve.service import Service
from covey.extras.runs.tests.test_control import operator
from covey.extras.scale.tests.test_aggregators import TOPICS, AggregatedFleet, task_is_read
from covey.extras.secure.progress import Progress, SealedState, SummedFigures
from covey.shared.mqtt.link import Received
from covey.shared.wire.messages import Part
from tests import clock
from tests.coordinator.test_recovery import ALL, half_reported
from tests.kit import small_run
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet
from tests.kit.small_run import clients, driver, rules, scenario, setup
from tests.kit.traces import fill, is_in_text, traces

GONE = "agent-1"
KEPT = {
    "Members.departed": "an order repeats it, should the agent come back with the report",
    **dict.fromkeys(
        (f"PhaseFolded.{one.name}" for one in fields(PhaseFolded)),
        "the newest line of rounds.jsonl",
    ),
    **dict.fromkeys(
        (f"AgentForgotten.{one.name}" for one in fields(AgentForgotten)), "that it was forgotten"
    ),
    "Publish.messages": "the newest line of rounds.jsonl, on its way",
    "Journal.newest": "the newest line of a file of the history",
    "RoundRules.newcomers": "agents of the scenario, which the operator wrote",
    "RunState.ledger": "the same account, as the checkpoint has it",
    "Ledger.sums": "what was released of an agent cannot be taken back",
    "Ledger.signatures": "as above",
    "Ledger.local": "as above",
    "Ledger.entered": "as above: one report counts once",
}
HISTORY = {
    "audit.jsonl": "a chain: it states what happened",
    "rounds.jsonl": "a line for each round: it states who took part",
}
PRIVATE = {"client": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}}


def run_of(folder: Path, kind: str) -> Run:
    """A run with an open step, or with orders of single agents."""
    scene = small_run.buffered("fedavg") if kind == "buffered" else scenario("fedavg")
    if kind == "private":
        scene = scenario("fedavg", privacy=PRIVATE, rounds=ALL)
    if kind == "secure":
        scene = scenario("fedavg", privacy={"secure": {"clip": 1.0}}, rounds=ALL)
    run = driver(folder, scene).run
    for client in clients():
        run.handle(Joined(client), 0.0)
    return run


def test_the_state_of_secure_sums_names_no_agent_that_was_forgotten(tmp_path: Path) -> None:
    run = run_of(tmp_path, "secure")
    both = [GONE, "agent-2"]
    named: dict[str, Any] = {
        "blamed": [*both],
        "standing": {"0": {"bound": [*both], "members": [*both]}},
        "ends": [{"cluster": "0", "reported": [*both]}],
        "figures": SummedFigures(groups=[[*both]]),
    }
    run.state = SealedState(run.state.inner, Progress(**named))
    of_sums = {f"Progress.{name}" for name in named if name != "figures"}
    assert traces(run.state, GONE) == {*of_sums, "SummedFigures.groups"}
    run.handle(Forget(GONE), 1.0)
    assert traces(run.state, GONE) == set()
    assert tuple(run.state.progress.blamed) == ("agent-2",)


@pytest.mark.parametrize("kind", ["in step", "buffered", "private", "secure"])
def test_nothing_in_the_memory_of_a_run_names_an_agent_that_was_forgotten(
    tmp_path: Path, kind: str
) -> None:
    run = run_of(tmp_path, kind)
    filled = fill(run, GONE)
    assert {"Members._by_id", "Members.troubled"} <= filled
    run.handle(Forget(GONE), 1.0)
    assert traces(run, GONE) - KEPT.keys() == set()


def test_nothing_in_the_memory_of_a_service_names_an_agent_that_was_forgotten(
    tmp_path: Path,
) -> None:
    scene, broker = scenario("fedclust", rounds={"count": 4, "participation": 1.0}), MemoryBroker()

    async def program() -> tuple[set[str], set[str]]:
        fleet = Fleet(tmp_path, scene, rules(scene, **PATIENT), broker, clients())
        async with fleet, asyncio.TaskGroup() as group:
            serving = group.create_task(fleet.serve())
            await asyncio.sleep(1.7)  # clusters exist, and the first round is open
            await fleet.vanish(GONE)
            assert isinstance(fleet.service, Service)
            filled = fill(fleet.service, GONE)
            await operator(broker, "forget", GONE)
            await asyncio.sleep(2.0)  # what was decided with it is published
            left = traces(fleet.service, GONE)
            await serving
            return filled, left | traces(fleet.service, GONE)

    filled, left = clock.run(program())
    assert {"Members.listed", "Intake._refused", "Placement._homes"} <= filled
    assert left - KEPT.keys() == set()


def named_in(folder: Path, agent: str) -> set[str]:
    """The files of a folder that have this name, in their names or contents."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.name
        for path in files
        if is_in_text(agent, path.name) or is_in_text(agent, path.read_bytes().decode("latin-1"))
    }


def test_a_forgotten_agent_is_in_no_file_of_the_run_but_its_history_and_its_accepted_step(
    tmp_path: Path,
) -> None:
    run, _ = half_reported(tmp_path)
    run.handle(Failed("agent-7", run.engine.number, "private reason of the device"), 0.5)
    for agent in (GONE, "agent-7"):
        run.handle(Forget(agent), 1.0)
    assert "failures" not in result_of(run, None).to_json()
    saved = Checkpoint(tmp_path / "checkpoint").facts()
    saved["run"].pop("accepted")
    assert not [agent for agent in (GONE, "agent-7") if is_in_text(agent, json.dumps(saved))]
    left = named_in(tmp_path, GONE)
    assert left - HISTORY.keys() - {"manifest.json", "reports"} == set()


def test_a_resume_does_not_bring_a_forgotten_agent_back(tmp_path: Path) -> None:
    run, _ = half_reported(tmp_path)
    run.handle(Forget(GONE), 1.0)
    scene = run.scenario
    again, _ = Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=2.0)
    assert traces(again, GONE) - KEPT.keys() == set()


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
