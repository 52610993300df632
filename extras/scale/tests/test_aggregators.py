"""Aggregators near the brokers of a run: the bytes are those of a run without them, whatever happens to them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from covey.coordinator.run.run import Run
from covey.extras.scale import service
from covey.extras.scale.aggregators import FOR_AGGREGATORS
from covey.extras.scale.service import AggregatorService, Precedence, RivalReaction
from covey.extras.scale.service import last_will as aggregator_will
from covey.extras.scale.summing import OpenStep, read_task
from covey.extras.scale.tests.test_shards import ShardedFleet
from covey.extras.secure.tests.secure_run import OPTIONS, Watch, rows, sums
from covey.shared.mqtt.link import Link, Received
from covey.shared.mqtt.program import Show
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.aggregates import AggregatorStatus, AggregatorTask
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.format import FORMAT, NONE
from covey.shared.wire.messages import Part, digest
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import played
from tests.kit.small_run import clients, fingerprint, in_process, scenario, setup
from tests.methods import of_each_kind

TOPICS = Topics("default")
ALL = {"count": 2, "participation": 1.0}


class AggregatedFleet(ShardedFleet):
    """A fleet on several brokers, each with an aggregator."""

    with_aggregators = True

    def __init__(self, folder: Path, scene: Scenario, shards: int = 2, **changes: Any) -> None:
        super().__init__(folder, scene, shards, **changes)
        self.aggregating: dict[int, asyncio.Task[None]] = {}
        self.links: dict[int, Link] = {}
        self.services: dict[int, AggregatorService] = {}
        self.said: list[str] = []
        self.without: set[int] = set()  # shards that start without an aggregator

    async def __aenter__(self) -> AggregatedFleet:
        for shard in range(len(self.brokers)):
            if shard not in self.without:
                self.aggregate(shard)
        await super().__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await super().__aexit__(*raised)
        for task in self.aggregating.values():
            task.cancel()
        await asyncio.gather(*self.aggregating.values(), return_exceptions=True)

    def aggregate(self, shard: int, session: str = "") -> None:
        """Start the aggregator of a shard."""
        self.aggregating[shard] = asyncio.create_task(
            self._aggregate(shard, session or f"s{shard}")
        )

    async def _aggregate(self, shard: int, session: str) -> None:
        will = aggregator_will(TOPICS, session)
        async with self.brokers[shard].link(f"aggregator-{session}", will) as link:
            self.links[shard] = link
            service = AggregatorService(link, TOPICS, session, show=self.said.append)
            self.services[shard] = service
            await service.run()

    async def kill_aggregator(self, shard: int) -> None:
        await self.links[shard].abort()
        self.aggregating[shard].cancel()

    @property
    def sums(self) -> list[str]:
        """Lines of the aggregators about sums that they sent."""
        return [line for line in self.said if "the sum of" in line]


@pytest.mark.parametrize("method", ["ifca", "kin"])
def test_a_run_with_aggregators_has_the_bytes_of_one_without(method: str, tmp_path: Path) -> None:
    scene = scenario(method, rounds=ALL)
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    summed = played(fleet)
    direct = in_process(tmp_path / "direct", scene)
    assert fingerprint(summed) == fingerprint(direct)
    assert fleet.sums


@pytest.mark.parametrize(
    "method", of_each_kind("masked sums", ("fedprox", "ditto", "kin", "feddane"))
)
def test_masked_reports_are_added_up_near_each_broker_in_groups_of_its_own_as_plain_integers(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch.of(monkeypatch)
    brokers = ["mqtt://a.local", "mqtt://b.local"]
    masked = {"privacy": {"secure": {"clip": 10.0, "cap": 100}}, "rounds": {**ALL, "count": 1}}
    scene = scenario(method, **masked, strategy=OPTIONS.get(method, {}), brokers=brokers)
    fleet = AggregatedFleet(tmp_path, scene)
    summed = played(fleet)
    groups = sums(tmp_path / "run")
    assert watch.check(tmp_path / "run") == 2 * (len(groups) + 1)  # of an evaluation
    [trained] = [row["step"] for row in rows(tmp_path / "run") if row.get("phase") == "train"]
    of_work = sorted(line.split(" (")[0] for line in fleet.sums if f"step {trained}:" in line)
    assert of_work == [f"step {trained}: sent the sum of {members} reports" for members in (3, 5)]
    if not summed.strategy.assignment(summed.state):
        homes = [fleet.living_on(0), fleet.living_on(1)]
        assert [set(group["reported"]) for group in groups[-1]] == homes


def test_an_aggregator_keeps_the_state_of_one_step_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs for months, and a state holds every cluster's model."""
    found: list[int] = []

    def counted(task: AggregatorTask, folder: Path, allowed: AllowedCode) -> OpenStep:
        places = [place for place in folder.parent.iterdir() if place.is_dir()]
        found.append(len(places))
        return read_task(task, folder, allowed)

    monkeypatch.setattr(service, "read_task", counted)
    scene = scenario("fedavg", rounds=ALL)
    played(AggregatedFleet(tmp_path / "summed", scene))
    assert len(found) > 2
    assert set(found) == {1}


def test_an_aggregator_is_sent_what_its_work_takes_and_no_address_of_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_out: list[str] = []

    def overheard(task: AggregatorTask, folder: Path, allowed: AllowedCode) -> OpenStep:
        sent_out.append(task.scenario)
        return read_task(task, folder, allowed)

    monkeypatch.setattr(service, "read_task", overheard)
    brokers = ["mqtt://run:geheim@a.local", "mqtt://run:geheim@b.local"]
    played(AggregatedFleet(tmp_path / "summed", scenario("fedavg", rounds=ALL, brokers=brokers)))
    assert sent_out
    assert all(set(json.loads(one)) == FOR_AGGREGATORS for one in sent_out)
    assert not any("geheim" in one for one in sent_out)


def test_reports_that_stay_incomplete_are_removed_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time while their step is open, and at once when the next one begins."""
    monkeypatch.setattr(service, "MAX_AGE_S", 2.0)
    monkeypatch.setattr(service, "TIDY_S", 1.0)
    scene = scenario("fedavg", rounds={"count": 2, "participation": 1.0})
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    fleet.pool.takes_s = 8.0
    halves: list[list[str]] = []

    def half(agent: str, number: int) -> Received:
        part = Part(digest=bytes([number] * 16), index=0, count=2, size=9, about=1, data=b"12345")
        return Received(TOPICS.report(agent, 0), part.to_bytes())

    def files(of: AggregatorService) -> list[str]:
        return [place.name for place in of._folder.iterdir() if place.is_file()]

    async def tear(_: Any) -> None:
        await task_is_read(fleet, 1)
        first = fleet.services[0]
        one, other = sorted(first.summing._samples)[:2]
        first.handle([half(one, 1)], asyncio.get_running_loop().time())
        halves.append(files(first))
        await asyncio.sleep(3.0)
        first.handle([half(other, 2)], asyncio.get_running_loop().time())
        halves.append(files(first))
        await task_is_read(fleet, 2)
        halves.append(files(first))

    played(fleet, tear)
    assert [len(found) for found in halves] == [1, 1, 0]
    assert halves[0] != halves[1]


def test_a_whole_report_that_comes_again_is_read_again(tmp_path: Path) -> None:
    """A coordinator that was started again may need what came of it before."""
    fleet = AggregatedFleet(tmp_path / "summed", scenario("fedavg", rounds=ALL))
    fleet.pool.takes_s = 5.0
    read: list[str] = []
    content = b"a report"
    part = Part(digest=digest(content), index=0, count=1, size=8, about=1, data=content)

    async def send_twice(_: Any) -> None:
        await task_is_read(fleet, 1)
        first = fleet.services[0]
        topic = TOPICS.report(min(first.summing._samples), 0)
        message = Received(topic, part.to_bytes())
        with patch.object(first.summing, "accept", lambda agent, *_: read.append(agent)):
            first.handle([message, message], asyncio.get_running_loop().time())

    played(fleet, send_twice)
    assert len(read) == 2


def bytes_without(folder: Path, scene: Scenario) -> list[bytes]:
    return fingerprint(in_process(folder / "direct", scene))


async def task_is_read(fleet: AggregatedFleet, step: int) -> None:
    """Wait until both aggregators have begun with a step."""
    while sum(line.startswith(f"step {step} (") for line in fleet.said) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def test_the_agents_of_a_dead_aggregator_are_asked_for_their_reports(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds=ALL)
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    fleet.pool.takes_s = 5.0

    async def kill(_: Any) -> None:
        await task_is_read(fleet, 2)
        await asyncio.sleep(1.0)
        await fleet.kill_aggregator(1)

    run = played(fleet, kill)
    assert fingerprint(run) == bytes_without(tmp_path, scene)
    assert [row["up"] for row in fleet.events("aggregator")] == [True, True, False]
    assert sum(line.startswith("step 3: sent") for line in fleet.said) == 1


def test_the_reports_of_a_silent_aggregator_are_missing_from_its_round_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection hangs without a last will: its agents are stragglers until it is known to be gone."""
    scene = scenario("fedavg", rounds=ALL)
    fleet = AggregatedFleet(tmp_path / "summed", scene, deadline_s=60.0)
    fleet.pool.takes_s = 5.0

    async def freeze(_: Any) -> None:
        await task_is_read(fleet, 2)
        killed = asyncio.Event()

        async def hang(*_: Any, **__: Any) -> bool:
            await killed.wait()
            return False

        monkeypatch.setattr(fleet.links[1], "publish", hang)
        await asyncio.sleep(70.0)
        await fleet.kill_aggregator(1)
        killed.set()
        await asyncio.sleep(1.0)
        fleet.aggregate(1, "s1-again")

    run = played(fleet, freeze)
    reported = [set(row["reported"]) for row in fleet.events("phase")]
    assert reported[0] == set(clients())
    assert reported[1] == fleet.living_on(0)
    assert reported[-1] == set(clients())
    assert run.engine.round == 2


def test_an_aggregator_that_is_stopped_and_started_again_loses_nothing(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds=ALL)
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    fleet.pool.takes_s = 5.0

    async def restart(_: Any) -> None:
        await task_is_read(fleet, 2)
        fleet.aggregating[1].cancel()
        fleet.aggregate(1, "s1-again")

    run = played(fleet, restart)
    assert fingerprint(run) == bytes_without(tmp_path, scene)


def test_a_killed_coordinator_continues_with_its_aggregators(tmp_path: Path) -> None:
    scene = scenario("fedclust", rounds=ALL)
    fleet = AggregatedFleet(tmp_path / "summed", scene)

    async def whole() -> Run:
        async with fleet:
            first = asyncio.create_task(fleet.serve())
            await task_is_read(fleet, 3)
            await asyncio.sleep(0.7)
            first.cancel()
            await asyncio.wait({first})
            await asyncio.sleep(5.0)
            now = asyncio.get_running_loop().time()
            again, _ = Run.resume(
                tmp_path / "summed/run", scene, setup(scene), rules=fleet.rules, now=now
            )
            return await fleet.serve(again)

    run = clock.run(whole(), within_s=3600)
    assert fingerprint(run) == bytes_without(tmp_path, scene)


def test_a_run_without_any_aggregator_reads_the_reports_itself(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds=ALL)
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    fleet.without = {0, 1}
    run = played(fleet)
    assert fingerprint(run) == bytes_without(tmp_path, scene)


def test_an_aggregator_that_comes_late_adds_up_from_the_next_step_on(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 3, "participation": 1.0})
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    fleet.pool.takes_s = 5.0
    fleet.without = {1}

    async def come(_: Any) -> None:
        while not any(step == 2 for _, step in fleet.pool.worked):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        fleet.aggregate(1)

    run = played(fleet, come)
    assert fingerprint(run) == bytes_without(tmp_path, scene)
    assert [step for step in range(1, 5) if sums_of(fleet, step) == 2] == [3, 4]


def sums_of(fleet: AggregatedFleet, step: int) -> int:
    return sum(line.startswith(f"step {step}: sent the sum") for line in fleet.said)


def test_a_second_aggregator_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    """Both would add the same reports up, and the second sum of them would be refused."""
    scene = scenario("fedavg", rounds={"count": 3, "participation": 1.0})
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    fleet.pool.takes_s = 5.0

    async def twin(_: Any) -> None:
        await task_is_read(fleet, 1)
        first_link, first = fleet.links[1], fleet.aggregating[1]
        fleet.aggregate(1, "s1-twin")
        await task_is_read(fleet, 2)
        await asyncio.sleep(1.0)
        await first_link.abort()
        first.cancel()

    run = played(fleet, twin)
    assert fingerprint(run) == bytes_without(tmp_path, scene)
    assert not fleet.events("sum refused")
    assert [sums_of(fleet, step) for step in range(1, 5)] == [2, 1, 2, 2]
    assert sum("takes over" in line for line in fleet.said) == 1


def status(session: str, *, online: bool = True) -> AggregatorStatus:
    return AggregatorStatus(session=session, online=online)


def test_the_older_of_two_aggregators_works() -> None:
    younger = Precedence("2")
    assert younger.observe(status("2")) is RivalReaction.NOTHING
    assert younger.observe(status("3")) is RivalReaction.ANNOUNCE
    assert younger.observe(status("1")) is RivalReaction.STAND_BY
    assert younger.observe(status("1")) is RivalReaction.NOTHING
    assert younger.observe(status("3", online=False)) is RivalReaction.NOTHING
    assert younger.stands_by
    assert younger.observe(status("1", online=False)) is RivalReaction.TAKE_OVER
    assert not younger.stands_by
    older = Precedence("1")
    assert older.observe(status("2")) is RivalReaction.ANNOUNCE
    assert older.observe(status("2", online=False)) is RivalReaction.ANNOUNCE


def test_a_method_that_turns_out_to_need_reports_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its terms can only be known with a report at hand."""
    scene = scenario("ifca", rounds=ALL)
    expected = bytes_without(tmp_path, scene)
    monkeypatch.setattr("covey.extras.scale.summing.Summing._seen", lambda *_: _no_terms())
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    run = played(fleet)
    assert fingerprint(run) == expected
    assert [line for line in fleet.said if "no sum" in line]


@pytest.mark.parametrize("number", [NONE, FORMAT + 1])
def test_an_aggregator_of_another_format_is_excluded_with_the_reason_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It would give other meanings to what it adds up: the reports of its agents come to the coordinator."""
    scene = scenario("fedavg", rounds=ALL)

    class Other(AggregatorStatus):
        format: int = number

    monkeypatch.setattr(service, "AggregatorStatus", Other)
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    run = played(fleet)
    assert fingerprint(run) == bytes_without(tmp_path, scene)
    assert len(fleet.events("aggregator excluded")) == 2
    assert f"speaks format {number}" in fleet.events("aggregator excluded")[0]["why"]
    assert not fleet.events("aggregator")


def test_an_aggregator_names_a_coordinator_of_another_format() -> None:
    link = MemoryBroker().link("aggregator")
    this = AggregatorService(link, TOPICS, "s1")
    status = CoordinatorStatus(online=True, epoch="e.1", version="9.9.9", format=FORMAT + 1)
    effects = this.handle([Received(TOPICS.coordinator_status, status.to_bytes())], 0.0)
    [text] = [one.notice for one in effects if isinstance(one, Show)]
    assert text.startswith(f"the coordinator speaks format {FORMAT + 1} (Covey 9.9.9)")
    assert text.endswith("update this aggregator")


def _no_terms() -> Any:
    raise ValueError("the fold compares single reports")


def test_the_shard_of_an_aggregator_that_died_with_its_broker_takes_part_in_the_same_round(
    tmp_path: Path,
) -> None:
    """A power cut near the broker: no last will is published, and "online" stays in the broker's database."""
    scene = scenario("fedavg", rounds=ALL)
    fleet = AggregatedFleet(tmp_path / "summed", scene)
    fleet.pool.takes_s = 5.0

    async def cut(_: Any) -> None:
        await task_is_read(fleet, 1)
        dead = fleet.aggregating[1]
        fleet.brokers[1].restart(away_s=1e9)
        dead.cancel()
        await asyncio.wait({dead})
        fleet.brokers[1].restart(away_s=1.0)

    run = played(fleet, cut)
    assert fingerprint(run) == bytes_without(tmp_path, scene)
    assert [row["up"] for row in fleet.events("aggregator")] == [True, True, False]
    assert run.engine.round == 2
