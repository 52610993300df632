"""A simulated fleet over a broker in memory: who is present when, who dies, who is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from covey.agent.fleet.fleet import FaultPlan, FleetRun, write_partition
from covey.agent.learner_choice import NUMPY, TORCH
from covey.shared.errors import UserError
from covey.shared.mqtt.link import Received, Up
from covey.shared.scenario.fleet import Faults, Fleet, Timeline
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.jobs import Failure, FleetShare, WritePartition
from covey.shared.wire.messages import OrderMessage
from covey.shared.wire.topics import Topics
from tests import clock
from tests.agent.orders import TASK, order, ref, status
from tests.agent.test_service import FakePool, World
from tests.kit.memory_broker import MemoryBroker

TOPICS = Topics("default")


def scene(agents: int = 10, **changes: Any) -> Scenario:
    fleet = Fleet(agents=agents, **changes)
    return Scenario(name="s", seed=3, task=TASK, strategy={"name": "fedavg"}, fleet=fleet)


def fault_plan(agents: int = 10, *timeline: Timeline, **faults: Any) -> FaultPlan:
    return FaultPlan(Fleet(agents=agents, timeline=timeline, faults=Faults(**faults)), 3)


def present(plan: FaultPlan, round_: int) -> list[int]:
    return [index for index in range(10) if plan.present(index, round_)]


def test_agents_join_leave_and_return_in_their_rounds() -> None:
    plan = fault_plan(
        10,
        Timeline(agents=(1,), joins=2),
        Timeline(agents=(2, 3), leaves=1),
        Timeline(agents=(3,), leaves=1),
    )
    assert present(plan, 0) == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert present(plan, 1) == [0, 4, 5, 6, 7, 8, 9]
    assert present(plan, 2) == [0, 1, 4, 5, 6, 7, 8, 9]
    returner = fault_plan(10, Timeline(agents=(4,), leaves=1, returns=3))
    assert [4 in present(returner, round_) for round_ in range(5)] == [
        True,
        False,
        False,
        True,
        True,
    ]


def test_a_share_of_the_fleet_is_slow() -> None:
    plan = fault_plan(slow=0.2, slow_s=4.0)
    assert sorted(plan.delay_s(index) for index in range(10)) == [0.0] * 8 + [4.0] * 2


def test_deaths_are_drawn_for_each_agent_and_step() -> None:
    plan = fault_plan(die=0.3)
    deaths = [plan.dies(index, step) for index in range(10) for step in range(100)]
    assert 0.25 < sum(deaths) / 1000 < 0.35
    assert deaths == [
        fault_plan(die=0.3).dies(index, step) for index in range(10) for step in range(100)
    ]
    assert not any(
        fault_plan(die=0.0).dies(index, step) for index in range(10) for step in range(10)
    )


SOURCE = FleetShare(scenario=Path("s.yaml"))


class Hall:
    """A fleet over a broker in memory, and the set of its agents that are online."""

    def __init__(self, folder: Path, scenario: Scenario, learner: str = TORCH) -> None:
        self.broker = MemoryBroker()
        self.pool = FakePool(0.5)
        self.events: list[dict[str, Any]] = []
        self.online: set[str] = set()
        self.hand = self.broker.link("hand")
        self.fleet = FleetRun(
            scenario,
            SOURCE,
            folder,
            open_link=self.broker.link,
            pool=self.pool,
            observer=lambda notice: self.events.append(notice.to_json()),
            learner=learner,
        )

    async def listen(self) -> None:
        async for incoming in self.hand.incoming():
            if isinstance(incoming, Up):
                await self.hand.subscribe([TOPICS.every_status])
            elif isinstance(incoming, Received):
                said = AgentStatus.from_bytes(incoming.payload)
                (self.online.add if said.online else self.online.discard)(said.agent)

    async def round(self, round_: int) -> None:
        await self.hand.publish(
            TOPICS.coordinator_status, status(round=round_).to_bytes(), retain=True
        )
        await asyncio.sleep(1)

    async def order(self, agent: str, message: OrderMessage) -> None:
        await World.model(self)  # type: ignore[arg-type]
        await self.hand.publish(TOPICS.order(agent), message.to_bytes(), retain=True)

    async def publish(self, topic: str, payload: bytes) -> None:
        await self.hand.publish(topic, payload, retain=True)


@asynccontextmanager
async def hosted(folder: Path, scenario: Scenario, learner: str = TORCH) -> AsyncIterator[Hall]:
    """A fleet that runs, two seconds after its start."""
    hall = Hall(folder, scenario, learner)
    async with hall.hand:
        tasks = [asyncio.create_task(hall.listen()), asyncio.create_task(hall.fleet.run())]
        await asyncio.sleep(2)
        yield hall
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@clock.virtual(within_s=3600)
async def test_the_fleet_follows_the_coordinators_rounds(tmp_path: Path) -> None:
    timeline = (Timeline(agents=(1,), joins=1), Timeline(agents=(2,), leaves=2, returns=3))
    async with hosted(tmp_path, scene(3, timeline=timeline)) as hall:
        assert hall.online == {"agent-0", "agent-2"}
        await hall.round(1)
        assert hall.online == {"agent-0", "agent-1", "agent-2"}
        await hall.round(2)
        assert hall.online == {"agent-0", "agent-1"}
        await hall.round(3)
        assert hall.online == {"agent-0", "agent-1", "agent-2"}


@clock.virtual(within_s=3600)
async def test_an_agent_that_dies_during_an_order_comes_back_and_does_the_work(
    tmp_path: Path,
) -> None:
    async with hosted(tmp_path, scene(1, faults=Faults(die=1.0, back_after_s=3.0))) as hall:
        await hall.order("agent-0", order(1, ref()))
        await asyncio.sleep(1)
        assert hall.online == set()
        assert hall.pool.steps == []
        await asyncio.sleep(5)
        assert hall.online == {"agent-0"}
        assert hall.pool.steps == [1]
        assert [event["event"] for event in hall.events].count("dies") == 1


@clock.virtual(within_s=3600)
async def test_the_report_of_a_slow_agent_is_held_back(tmp_path: Path) -> None:
    async with hosted(tmp_path, scene(1, faults=Faults(slow=1.0, slow_s=20.0))) as hall:
        await hall.order("agent-0", order(1, ref()))
        await asyncio.sleep(10)
        assert "sent" not in [event["event"] for event in hall.events]
        await asyncio.sleep(11)
        assert "sent" in [event["event"] for event in hall.events]


@clock.virtual(within_s=3600)
@pytest.mark.parametrize("learner", [TORCH, NUMPY])
async def test_all_work_of_a_fleet_names_its_learner(tmp_path: Path, learner: str) -> None:
    async with hosted(tmp_path, scene(1), learner) as hall:
        await hall.order("agent-0", order(1, ref()))
        await asyncio.sleep(5)
        assert {job.rules.learner for job in hall.pool.jobs} == {learner}
        assert hall.pool.steps == [1]


async def test_a_worker_writes_the_partition_and_its_failure_is_a_user_error(
    tmp_path: Path,
) -> None:
    class Refusing(FakePool):
        async def call(self, job: Any, *, weight: float = 0) -> Failure:
            assert job == WritePartition(source=SOURCE, out=tmp_path / "deep" / "p.npz")
            return Failure(why="agent 3 gets no sample")

    with pytest.raises(UserError, match="agent 3"):
        await write_partition(Refusing(), SOURCE, tmp_path / "deep" / "p.npz")


def test_an_invalid_scenario_is_refused_with_the_key(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ntask: {features: [4], clases: 2}\nstrategy: {name: fedavg}\n")
    with pytest.raises(UserError, match=r"task\.clases: unknown key, line 2"):
        load_without_files(path)
    with pytest.raises(UserError, match="this file does not exist"):
        load_without_files(tmp_path / "none.yaml")


def test_relative_paths_of_a_scenario_start_at_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sub" / "s.yaml"
    path.parent.mkdir()
    path.write_text(
        "name: s\ntask: {features: [4], init: start.npz}\nstrategy: {name: fedavg}\n"
        "fleet: {agents: 2, partition: split.npz}\n"
    )
    monkeypatch.chdir(tmp_path)
    found = load_without_files(Path("sub/s.yaml"))
    assert found.fleet is not None
    folder = path.parent.resolve()
    assert (found.task.init, found.fleet.partition) == (
        str(folder / "start.npz"),
        str(folder / "split.npz"),
    )


def test_a_scenario_without_a_fleet_cannot_be_simulated(tmp_path: Path) -> None:
    alone = scene().model_copy(update={"fleet": None})
    with pytest.raises(UserError, match="no section 'fleet'"):
        FleetRun(
            alone,
            SOURCE,
            tmp_path,
            open_link=MemoryBroker().link,
            pool=FakePool(),
            observer=lambda event: None,
        )
