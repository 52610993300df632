"""One agent over a broker in memory, with a fake pool and a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from covey.agent.device.identity import Identity
from covey.agent.device.service import Agent, NameTakenError
from covey.agent.policy import OF_THE_OWNER, TAKES_MORE, OwnersRules, Policy
from covey.agent.worker.pool import WorkerLost
from covey.shared.mqtt.link import Received, Up
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.jobs import (
    BadMemory,
    BadModel,
    DataSummary,
    DeviceData,
    Failure,
    InspectData,
    Nothing,
    Perform,
    Performed,
    TryStep,
)
from covey.shared.wire.messages import OrderMessage, Part, ReportContent, digest
from covey.shared.wire.parts import part_count
from covey.shared.wire.topics import Topics
from tests import clock
from tests.agent.orders import MODEL, PART_BYTES, TASK, order, ref, rest, status
from tests.kit.memory_broker import MemoryBroker, MemoryLink

TOPICS = Topics("default")
REPORT_BYTES = 5000


class FakePool:
    """Answers after `takes_s`; a report is as many bytes as asked for."""

    def __init__(self, takes_s: float = 1.0) -> None:
        self.takes_s = takes_s
        self.jobs: list[Any] = []
        self.given_up = 0
        self.lost = False

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        self.jobs.append(job)
        try:
            await asyncio.sleep(self.takes_s)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.lost:
            raise WorkerLost("out of memory")
        if isinstance(job, InspectData):
            return DataSummary(samples=80, test_samples=20, labels=["0", "1"])
        return worked(job)

    @property
    def steps(self) -> list[int]:
        return [
            OrderMessage.from_bytes(job.order).step for job in self.jobs if isinstance(job, Perform)
        ]


def worked(job: Perform) -> Performed:
    """What a worker leaves on disk, and its answer."""
    assert [path.read_bytes() for path in job.models] == [MODEL]
    report = b"r" * REPORT_BYTES
    job.report_out.write_bytes(report)
    job.memory_out.write_bytes(b"memory")
    return Performed(digest=digest(report), size=len(report), memory_digest=b"seal")


class World:
    """A broker, an agent `pi`, and a hand that publishes like a coordinator and keeps what it receives."""

    def __init__(self, folder: Path, broker: MemoryBroker, pool: FakePool) -> None:
        self.folder, self.broker, self.pool = folder, broker, pool
        self.notices: list[dict[str, Any]] = []
        self.statuses: list[AgentStatus] = []
        self.parts: list[Part] = []
        self.hand = broker.link("hand")

    def agent(self, device: str = "device", **options: Any) -> Agent:
        source = DeviceData(data=options.pop("data", "x"))
        identity = Identity("pi", "default", source, self.folder / device, durable=False)
        return Agent(
            identity,
            self.pool,
            observer=lambda notice: self.notices.append(notice.to_json()),
            **options,
        )

    async def live(self, agent: Agent) -> None:
        async with self.broker.link(agent.client_id, agent.will) as link:
            await agent.run(link)

    async def listen(self) -> None:
        async for incoming in self.hand.incoming():
            if isinstance(incoming, Up):
                await self.hand.subscribe([TOPICS.every_status, TOPICS.every_report])
            elif isinstance(incoming, Received) and incoming.topic.endswith("/status"):
                self.statuses.append(AgentStatus.from_bytes(incoming.payload))
            elif isinstance(incoming, Received):
                self.parts.append(Part.from_bytes(incoming.payload))

    async def order(self, message: OrderMessage) -> None:
        await self.publish(TOPICS.order("pi"), message.to_bytes())

    async def model(self, key: str = "0") -> None:
        part = Part(digest=digest(MODEL), index=0, count=1, size=len(MODEL), about=1, data=MODEL)
        await self.publish(f"{TOPICS.model(key)}/0", part.to_bytes())

    async def publish(self, topic: str, payload: bytes) -> None:
        """Retained, and again until the broker has it."""
        for _ in range(20):
            if await self.hand.publish(topic, payload, retain=True):
                return
            await asyncio.sleep(1)
        raise AssertionError("the broker does not take it")

    def reports(self) -> int:
        """How often a whole report has arrived."""
        return len(self.parts) // part_count(REPORT_BYTES, PART_BYTES)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, folder: Path, *, broker: MemoryBroker | None = None, pool: FakePool | None = None
    ) -> AsyncIterator[World]:
        """A world whose hand listens to everything that the agent publishes."""
        world = cls(folder, broker or MemoryBroker(), pool or FakePool())
        async with world.hand:
            listener = asyncio.create_task(world.listen())
            await asyncio.sleep(0.1)
            yield world
            listener.cancel()

    @asynccontextmanager
    async def living(self, **options: Any) -> AsyncIterator[Agent]:
        """An agent that lives until the end of the context, and then ends with a goodbye."""
        agent = self.agent(**options)
        life = asyncio.create_task(self.live(agent))
        await asyncio.sleep(0.1)
        yield agent
        agent.stop()
        await life
        await asyncio.sleep(0.1)


@clock.virtual(within_s=3600)
async def test_the_log_names_what_a_task_does_to_rows(tmp_path: Path) -> None:
    task = {**TASK.for_agents(), "read": {"missing": ["61"]}, "impute": "drop"}
    async with World.open(tmp_path) as world, world.living():
        seen = status(task=True).model_copy(update={"task": task})
        await world.publish(TOPICS.coordinator_status, seen.to_bytes())
        await asyncio.sleep(2)
    [fits] = [one for one in world.notices if one["event"] == "data"]
    assert fits["samples"] == 80
    assert fits["remark"] == (
        "the task counts cells that read ['61'] as missing; the task leaves out rows with a missing cell"
    )


@clock.virtual(within_s=3600)
async def test_an_agent_fetches_works_reports_and_commits(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world, world.living() as agent:
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(2)
        assert world.reports() == 1
        await world.order(rest(accepted=1, closed=1))
        await asyncio.sleep(1)
        assert agent.outbox.memory is not None
        assert agent.outbox.memory.read_bytes() == b"memory"
        assert agent.outbox.report is None
    assert world.pool.steps == [1]
    assert [(part.index, part.about, part.count) for part in world.parts] == [
        (i, 1, 5) for i in range(5)
    ]
    assert b"".join(part.data for part in world.parts) == b"r" * REPORT_BYTES
    assert not world.statuses[-1].online


@clock.virtual(within_s=3600)
async def test_a_report_is_sent_by_the_next_life_without_working_again(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world:
        await world.model()
        await world.order(order(1, ref()))
        agent = world.agent()
        life = asyncio.create_task(world.live(agent))
        await asyncio.sleep(1.5)
        await agent.vanish()
        await life
        assert world.reports() == 1
        life = asyncio.create_task(world.live(second := world.agent()))
        await asyncio.sleep(0.5)
        assert world.reports() == 2
        second.stop()
        await life
    assert world.pool.steps == [1]


@clock.virtual(within_s=3600)
async def test_an_agent_that_vanishes_is_announced_by_its_last_will(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world:
        agent = world.agent()
        life = asyncio.create_task(world.live(agent))
        await asyncio.sleep(1)
        assert world.statuses[-1].online
        await agent.vanish()
        await life
        await asyncio.sleep(0.1)
        assert not world.statuses[-1].online


@clock.virtual(within_s=3600)
async def test_of_two_agents_with_one_id_the_second_ends_with_an_error_that_names_the_option(
    tmp_path: Path,
) -> None:
    async with World.open(tmp_path) as world, world.living(session="a-older") as first:
        await asyncio.sleep(60)
        second = world.agent("clone", session="z-younger")
        with pytest.raises(NameTakenError, match=r"id 'pi' .*--id"):
            await world.live(second)
        await asyncio.sleep(1)
        assert world.statuses[-1].online
        assert world.statuses[-1].session == first.session.status.session


@clock.virtual(within_s=3600)
async def test_an_agent_prints_its_story_with_local_times_and_counts(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world, world.living() as agent:
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(2)
        for _ in range(3):
            await world.order(order(1, ref(), again=1))
            await asyncio.sleep(10)
        agent.show_story()
    (shown,) = [notice for notice in world.notices if notice["event"] == "story"]
    texts = [line["text"] for line in shown["lines"]]
    assert texts[:2] == ["Connected to the broker.", "Joined run run-1."]
    assert texts[-1].startswith("Sent the report of step 1. (")
    assert all(datetime.fromisoformat(line["at"]).tzinfo for line in shown["lines"])


@clock.virtual(within_s=3600)
async def test_an_agent_that_restarts_repeatedly_does_not_conflict_with_itself(
    tmp_path: Path,
) -> None:
    async with World.open(tmp_path) as world:
        for life in range(4):
            agent = world.agent(session=f"life-{life}")
            running = asyncio.create_task(world.live(agent))
            await asyncio.sleep(3)
            world.broker.restart(away_s=0.5)
            await asyncio.sleep(9)
            assert not running.done()
            await agent.vanish()
            await running


@clock.virtual(within_s=3600)
async def test_a_broker_that_restarts_gets_status_and_report_again(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world, world.living():
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(1.2)
        before = len(world.statuses)
        world.broker.restart(away_s=1.0)
        await asyncio.sleep(8)
        assert world.reports() >= 2
        assert len(world.statuses) > before
    assert world.pool.steps == [1]


@clock.virtual(within_s=3600)
async def test_a_new_order_cancels_the_old_job(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world, world.living():
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(0.5)
        await world.order(order(2, ref()))
        await asyncio.sleep(2)
    assert world.pool.steps == [1, 2]
    assert world.pool.given_up == 1
    assert {part.about for part in world.parts} == {2}


class LosingPool(FakePool):
    """Loses the worker of the first jobs."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self.losses = losses

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        answer = await super().call(job, weight=weight)
        if self.losses:
            self.losses -= 1
            raise WorkerLost("out of memory")
        return answer


@clock.virtual(within_s=3600)
async def test_the_work_of_a_dead_worker_is_done_once_more(tmp_path: Path) -> None:
    async with World.open(tmp_path, pool=LosingPool(1)) as world, world.living():
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(2.5)
        assert world.reports() == 1
    assert world.pool.steps == [1, 1]
    assert [event["why"] for event in world.notices if event["event"] == "worker lost"] == [
        "out of memory; the job is done again"
    ]


@clock.virtual(within_s=3600)
async def test_a_worker_that_dies_twice_becomes_a_report_with_the_reason(tmp_path: Path) -> None:
    async with World.open(tmp_path, pool=LosingPool(2)) as world, world.living():
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(2.5)
    content = ReportContent.from_bytes(world.parts[0].data, verified=True)
    assert "out of memory" in str(content.failure)
    assert (content.step, content.client, content.run) == (1, "pi", "run-1")
    assert world.pool.steps == [1, 1]


def flip(path: Path) -> None:
    """One bit of the file's last byte."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@clock.virtual(within_s=3600)
async def test_a_report_that_was_damaged_while_it_waited_is_worked_on_again_and_not_sent_damaged(
    tmp_path: Path,
) -> None:
    async with World.open(tmp_path) as world, world.living() as agent:
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(1.5)
        assert agent.outbox.report is not None
        flip(agent.outbox.report)
        await asyncio.sleep(10)
    assert world.pool.steps == [1, 1]
    assert world.reports() >= 2
    assert {part.data for part in world.parts} == {b"r" * (REPORT_BYTES // 5)}
    assert any(
        "report-run-1-1" in event.get("why", "")
        for event in world.notices
        if event["event"] == "damaged"
    )


@clock.virtual(within_s=3600)
async def test_a_report_that_was_damaged_before_a_restart_is_worked_on_again(
    tmp_path: Path,
) -> None:
    async with World.open(tmp_path) as world:
        await world.model()
        await world.order(order(1, ref()))
        agent = world.agent()
        life = asyncio.create_task(world.live(agent))
        await asyncio.sleep(1.5)
        await agent.vanish()
        await life
        assert agent.outbox.report is not None
        flip(agent.outbox.report)
        life = asyncio.create_task(world.live(second := world.agent()))
        await asyncio.sleep(2)
        second.stop()
        await life
        assert world.reports() == 2
    assert world.pool.steps == [1, 1]
    assert {part.data for part in world.parts} == {b"r" * (REPORT_BYTES // 5)}


@clock.virtual(within_s=3600)
async def test_a_model_that_was_damaged_before_a_restart_is_fetched_again(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world:
        await world.model()
        await world.order(order(1, ref()))
        agent = world.agent()
        life = asyncio.create_task(world.live(agent))
        await asyncio.sleep(0.5)
        await agent.vanish()
        await life
        flip(agent.store.path(digest(MODEL)))
        life = asyncio.create_task(world.live(second := world.agent()))
        await asyncio.sleep(3)
        second.stop()
        await life
        assert world.reports() >= 1
    assert any("the model is damaged" in event.get("why", "") for event in world.notices)


class DoubtingPool(FakePool):
    """Compares each model with its name, as a worker does."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        for path in getattr(job, "models", ()):
            if digest(path.read_bytes()).hex() != path.stem:
                self.jobs.append(job)
                return BadModel(digest=bytes.fromhex(path.stem))
        return await super().call(job, weight=weight)


@clock.virtual(within_s=3600)
async def test_a_model_that_was_damaged_while_the_agent_lives_is_fetched_again(
    tmp_path: Path,
) -> None:
    async with World.open(tmp_path, pool=DoubtingPool()) as world, world.living() as agent:
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(2)
        await world.order(rest(accepted=1, closed=1))
        await asyncio.sleep(1)
        flip(agent.store.path(digest(MODEL)))
        await world.order(order(2, ref(), accepted=1))
        await asyncio.sleep(10)
        assert {part.about for part in world.parts} == {1, 2}
    assert world.pool.steps == [1, 2, 2]
    assert any("the model is damaged" in event.get("why", "") for event in world.notices)


class ForgetfulPool(FakePool):
    """Finds the memory damaged, as a worker does that compares it with its digest."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        answer = await super().call(job, weight=weight)
        return BadMemory() if job.memory else answer


@clock.virtual(within_s=3600)
async def test_damaged_memory_is_named_once_and_the_next_report_marks_it_as_lost(
    tmp_path: Path,
) -> None:
    async with World.open(tmp_path, pool=ForgetfulPool()) as world, world.living():
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(2)
        await world.order(order(2, ref(), accepted=1))
        await asyncio.sleep(3)
    assert world.pool.steps == [1, 2, 2]
    assert [job.client_state for job in world.pool.jobs] == ["whole", "whole", "lost"]
    (why,) = [event["why"] for event in world.notices if event["event"] == "damaged"]
    assert "memory-run-1-1" in why


@clock.virtual(within_s=3600)
async def test_an_accepted_report_that_the_coordinator_lost_is_sent_again_without_new_work(
    tmp_path: Path,
) -> None:
    async with World.open(tmp_path) as world, world.living():
        await world.model()
        await world.order(order(1, ref(), again=1))
        await asyncio.sleep(2)
        await world.order(rest(accepted=1, closed=0, again=1, serial=1))
        await asyncio.sleep(60)
        assert world.reports() == 1
        await world.order(order(1, ref(), again=2))  # a restored coordinator
        await asyncio.sleep(1)
        assert world.reports() == 2
    assert world.pool.steps == [1]
    assert world.parts[: len(world.parts) // 2] == world.parts[len(world.parts) // 2 :]


@clock.virtual(within_s=3600)
async def test_data_is_inspected_for_the_coordinators_task(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world, world.living():
        await world.hand.publish(
            TOPICS.coordinator_status, status(task=True).to_bytes(), retain=True
        )
        await asyncio.sleep(3)
    said = world.statuses[-2]
    assert (said.epoch, said.task, said.samples, said.test_samples) == ("e1", TASK.digest, 80, 20)


class SmallPool(FakePool):
    """A worker whose owner allows the memory of eight samples."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if not isinstance(job, TryStep):
            return await super().call(job, weight=weight)
        self.jobs.append(job)
        why = f"{OF_THE_OWNER}: memory_limit_mb: {TAKES_MORE} 200 MB"
        return Nothing() if job.batch <= 8 else Failure(why=why)


@pytest.mark.parametrize(
    ("batch", "policy", "problem"),
    [
        (8, Policy(memory_limit_mb=200), None),
        (32, Policy(), None),
        (0, Policy(memory_limit_mb=200), None),
        (32, Policy(memory_limit_mb=200), "200 MB; a batch of 8 fits (training.batch); or freeze"),
    ],
)
@clock.virtual(within_s=3600)
async def test_a_device_stays_out_of_a_run_whose_work_exceeds_its_memory_before_the_first_order(
    tmp_path: Path, batch: int, policy: Policy, problem: str | None
) -> None:
    async with (
        World.open(tmp_path, pool=SmallPool()) as world,
        world.living(rules=OwnersRules(policy)),
    ):
        seen = status(task=True, batch=batch)
        await world.hand.publish(TOPICS.coordinator_status, seen.to_bytes(), retain=True)
        await asyncio.sleep(9)
    said = world.statuses[-2]
    assert (said.problem is None) == (problem is None)
    assert problem is None or problem in str(said.problem)


@clock.virtual(within_s=3600)
async def test_a_report_waits_for_what_comes_before_it(tmp_path: Path) -> None:
    async with (
        World.open(tmp_path) as world,
        world.living(before_report=lambda order: asyncio.sleep(5)),
    ):
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(5)
        assert world.reports() == 0
        await asyncio.sleep(2)
        assert world.reports() == 1


@clock.virtual(within_s=3600)
async def test_messages_that_make_no_sense_are_counted_and_shown(tmp_path: Path) -> None:
    async with World.open(tmp_path) as world, world.living():
        await world.hand.publish(TOPICS.order("pi"), b"\xff nonsense", retain=True)
        await world.hand.publish(TOPICS.order("pi"), b"", retain=True)
        await world.order(order(1, ref()))
        await asyncio.sleep(2)
    assert world.statuses[-2].dropped == {"version": 1}


@pytest.mark.parametrize("seed", range(5))
@clock.virtual(within_s=3600)
async def test_bad_habits_of_a_broker_change_neither_work_nor_report(
    tmp_path: Path, seed: int
) -> None:
    broker = MemoryBroker(seed, duplicate=0.2, reorder=0.2, drop_session=0.05)
    async with World.open(tmp_path, broker=broker) as world, world.living():
        await world.order(order(1, ref()))
        await world.model()
        await asyncio.sleep(600)
        assert {part.index for part in world.parts} == set(range(5))
    assert world.pool.steps == [1]


def test_changed_data_is_compared_with_the_task_again_while_the_agent_waits(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"

    async def program() -> list[str]:
        async with World.open(tmp_path) as world, world.living(data=str(data)):
            await world.publish(TOPICS.coordinator_status, status(task=True).to_bytes())
            await asyncio.sleep(20.0)
            data.write_text("repaired")
            await asyncio.sleep(20.0)
            return [job.called for job in world.pool.jobs] + [row["event"] for row in world.notices]

    jobs = clock.run(program())
    assert jobs.count("inspect") == 2
    assert jobs.count("data changed") == 1


def test_data_that_changed_just_before_the_work_is_compared_first(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"

    async def program() -> list[str]:
        async with World.open(tmp_path) as world, world.living(data=str(data)):
            await world.publish(TOPICS.coordinator_status, status(task=True).to_bytes())
            await asyncio.sleep(2.0)
            data.write_text("grown")
            await world.model()
            await world.order(order(1, ref()))
            await asyncio.sleep(3.0)
            return [job.called for job in world.pool.jobs]

    assert clock.run(program()) == ["inspect", "inspect", "perform"]


@pytest.mark.parametrize("lag_s", [0.0, 3.0])
def test_others_know_of_samples_that_came_during_the_work_before_its_report_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag_s: float
) -> None:
    """On a slow link statuses wait their turn: a report that overtook one was refused, and its device soon in quarantine."""

    class Grows(FakePool):
        """A sensor writes ten rows between two looks at the data."""

        samples = 70

        async def call(self, job: Any, *, weight: float = 0) -> Any:
            self.samples += 10
            answer = await super().call(job, weight=weight)
            name = "samples" if isinstance(job, InspectData) else "examples"
            return replace(answer, **{name: self.samples})

    publish = MemoryLink.publish

    async def late(self: MemoryLink, topic: str, payload: bytes, **options: Any) -> bool:
        if topic == TOPICS.status("pi"):
            await asyncio.sleep(lag_s)
        return await publish(self, topic, payload, **options)

    monkeypatch.setattr(MemoryLink, "publish", late)

    async def program() -> list[int]:
        async with World.open(tmp_path, pool=Grows()) as world, world.living(data="x"):
            await world.publish(TOPICS.coordinator_status, status(task=True).to_bytes())
            await asyncio.sleep(2.0 + 4 * lag_s)
            await world.model()
            await world.order(order(1, ref()))
            for _ in range(1000):
                if world.parts:
                    break
                await asyncio.sleep(0.01)
            jobs = [job.called for job in world.pool.jobs]
            assert jobs == ["inspect", "perform", "inspect"]
            return [one.samples for one in world.statuses if one.samples]

    assert clock.run(program())[-1] == 100, "the work had 90"


def test_an_agent_without_a_coordinator_shows_what_it_waits_for(tmp_path: Path) -> None:
    async def program() -> list[dict[str, Any]]:
        async with World.open(tmp_path) as world, world.living():
            await asyncio.sleep(100.0)
            return [row for row in world.notices if row["event"] == "waiting"]

    first, second = clock.run(program())
    assert "no coordinator has connected to this broker in federation 'default' yet" in first["why"]
    assert (first["seconds"], second["seconds"]) == (5, 65)
