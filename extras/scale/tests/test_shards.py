"""A federation with several brokers: the same bytes as with one, and a dead broker costs its agents only."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from covey.agent.device.service import Agent
from covey.coordinator.run.run import Run
from covey.coordinator.serve.placement import PATIENCE_S, Placement, SilentShards
from covey.coordinator.serve.service import Service, last_will
from covey.extras.scale.sharded_link import ShardedLink
from covey.shared.errors import UserError
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.shards import shard_of
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.documents import AgentStatus, Control
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet, played
from tests.kit.small_run import begun, clients, fingerprint, rules, scenario, setup

SHARDS = 4
TOPICS = Topics("default")


class ShardedFleet(Fleet):
    """A fleet whose agents live on several brokers, by the rule of `broker enroll`."""

    with_aggregators = False  # whether the coordinator gives them work

    def __init__(self, folder: Path, scene: Scenario, shards: int = SHARDS, **changes: Any) -> None:
        self.brokers = [MemoryBroker(seed) for seed in range(shards)]
        self.moved: dict[str, int] = {}  # agents that live elsewhere than by the rule
        people = clients(scene=scene)
        super().__init__(folder, scene, rules(scene, **changes), self.brokers[0], people)

    def shard(self, client: str) -> int:
        return self.moved.get(client, shard_of(client, len(self.brokers)))

    def living_on(self, shard: int) -> set[str]:
        return {client for client in clients() if self.shard(client) == shard}

    async def _live(self, client: str, agent: Agent) -> None:
        async with self.brokers[self.shard(client)].link(client, agent.will) as link:
            await agent.run(link)

    async def serve(self, run: Run | None = None, observer: Any = None) -> Run:
        now = asyncio.get_running_loop().time()
        this = run or Run.start(
            self.folder / "run", self.scene, setup(self.scene), rules=self.rules, run="r1", now=now
        )
        async with AsyncExitStack() as stack:
            links = []
            for broker in self.brokers:
                link = broker.link("coordinator", last_will(TOPICS))
                links.append(await stack.enter_async_context(link))
            merged = await stack.enter_async_context(ShardedLink(links, TOPICS))
            self.service = Service(
                this, merged, observer=observer or self._keep, aggregators=self.with_aggregators
            )
            why = await self.service.serve()
        assert not why, why
        return this


@pytest.mark.whole
@pytest.mark.parametrize("method", ["fedrep", "kin"])
def test_a_run_over_four_brokers_has_the_bytes_of_one_over_one_broker(
    method: str, tmp_path: Path
) -> None:
    scene = scenario(method)
    four = played(ShardedFleet(tmp_path / "four", scene))
    one = played(Fleet(tmp_path / "one", scene))
    assert fingerprint(four) == fingerprint(one)


def test_each_model_goes_to_each_broker_once_and_each_order_to_one(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 1, "participation": 1.0})
    fleet = ShardedFleet(tmp_path, scene)
    played(fleet)
    for number, broker in enumerate(fleet.brokers):
        retained = dict(broker.retained.matching("covey/default/#"))
        orders = {topic.split("/")[3] for topic in retained if topic.endswith("/order")}
        assert orders == fleet.living_on(number)
        assert TOPICS.model("0") + "/0" in retained
        assert TOPICS.roster in retained


def test_a_round_continues_without_the_agents_of_a_dead_broker_and_has_the_bytes_of_its_participants(
    tmp_path: Path,
) -> None:
    """The reference: one broker, and the same agents lose their power in the same round."""
    scene = scenario("fedavg", rounds={"count": 4, "participation": 1.0})
    sharded = ShardedFleet(tmp_path / "four", scene)
    dead = 1
    lost = sharded.living_on(dead)
    assert 0 < len(lost) < 8

    async def kill(fleet: Fleet) -> None:
        await fleet.opens(2)
        sharded.brokers[dead].restart(away_s=1e9)

    async def power_cut(fleet: Fleet) -> None:
        await fleet.opens(2)
        await asyncio.gather(*[fleet.vanish(client) for client in sorted(lost)])

    after = played(sharded, kill)
    reference = played(Fleet(tmp_path / "one", scene), power_cut)
    assert fingerprint(after) == fingerprint(reference)
    [down] = [row for row in sharded.events("shard") if not row["up"]]
    assert down["shard"] == dead
    assert down["agents"] == len(lost)
    reported = [set(row["reported"]) for row in sharded.events("phase")]
    assert reported[0] == set(clients())
    assert reported[1] == reported[-1] == set(clients()) - lost


def test_the_agents_of_a_broker_that_comes_back_take_part_again(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 9, "participation": 1.0})
    fleet = ShardedFleet(tmp_path, scene)
    fleet.pool.takes_s = 10.0

    async def outage(these: Fleet) -> None:
        await these.opens(2)
        fleet.brokers[0].restart(keep_retained=False, away_s=4 * PATIENCE_S)

    played(fleet, outage)
    sizes = [len(row["reported"]) for row in fleet.events("phase")]
    assert min(sizes) == 8 - len(fleet.living_on(0))
    assert sizes[-1] == 8


def test_a_broker_that_is_back_at_once_costs_no_agent(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 3, "participation": 1.0})
    fleet = ShardedFleet(tmp_path, scene)

    async def outage(these: Fleet) -> None:
        await these.opens(2)
        fleet.brokers[0].restart(keep_retained=False, away_s=1.0)

    played(fleet, outage)
    assert [len(row["reported"]) for row in fleet.events("phase")] == [8] * 4


def test_time_stands_still_while_all_brokers_are_away(tmp_path: Path) -> None:
    patient = {"count": 4, "participation": 1.0, "timing": {"rollcall_s": 60.0}}
    scene = scenario("fedavg", rounds=patient)
    fleet = ShardedFleet(tmp_path, scene, deadline_s=60.0, rollcall_s=60.0)

    async def outage(these: Fleet) -> None:
        await these.opens(2)
        for broker in fleet.brokers:
            broker.restart(away_s=200.0)

    played(fleet, outage)
    assert [len(row["reported"]) for row in fleet.events("phase")] == [8] * 5
    assert not fleet.events("void")


def test_a_broker_that_is_dead_from_the_start_does_not_delay_the_others(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 2, "participation": 1.0, "start_agents": 4})
    fleet = ShardedFleet(tmp_path, scene, start_agents=4)
    fleet.brokers[0].back_at = 1e9
    played(fleet)
    assert len(fleet.events("phase")) == 3


def test_an_agent_that_turns_to_another_broker_keeps_its_part_in_the_run(tmp_path: Path) -> None:
    """Its last will at the old broker comes later, and does not count."""
    scene = scenario("fedavg", rounds={"count": 5, "participation": 1.0})
    fleet = ShardedFleet(tmp_path, scene)
    agent = "agent-0"
    old = shard_of(agent, SHARDS)
    new = (old + 1) % SHARDS

    async def move(these: Fleet) -> None:
        await these.opens(2)
        will = these.agents[agent].will
        these.agents[agent].stop()
        await these.lives[agent]
        fleet.moved[agent] = new
        these.join(agent)
        await asyncio.sleep(1.0)
        async with fleet.brokers[old].link("late will") as link:
            await link.publish(will.topic, will.payload, retain=True)

    played(fleet, move)
    assert agent in fleet.events("phase")[-1]["reported"]
    topics = {
        topic for topic, _ in fleet.brokers[old].retained.matching("covey/default/agents/+/order")
    }
    assert TOPICS.order(agent) not in topics


def test_a_command_on_any_broker_reaches_the_coordinator(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 50, "participation": 1.0})
    fleet = ShardedFleet(tmp_path, scene)

    async def stop(these: Fleet) -> None:
        await these.opens(2)
        async with fleet.brokers[-1].link("operator") as link:
            await link.publish(TOPICS.control, Control(command="stop").to_bytes())

    async def whole() -> None:
        async with fleet, asyncio.TaskGroup() as group:
            group.create_task(stop(fleet))
            with pytest.raises(AssertionError, match="None"):
                await fleet.serve()

    fleet.serve = _serve_until_stopped(fleet)  # type: ignore[method-assign]
    clock.run(whole(), within_s=3600)
    assert len(fleet.events("phase")) < 10


def _serve_until_stopped(fleet: ShardedFleet) -> Any:
    serve = fleet.serve

    async def stopped() -> Run:
        run = await serve()
        assert run.engine.round == 50, "None: it was stopped"
        return run

    return stopped


def test_a_killed_coordinator_finds_its_agents_on_their_brokers_again(tmp_path: Path) -> None:
    """The checkpoint does not hold where agents live: they are asked, and get their orders where they answer."""
    scene = scenario("fedclust", rounds={"count": 4, "participation": 1.0})
    fleet = ShardedFleet(tmp_path / "killed", scene)
    fleet.pool.takes_s = 2.0

    async def whole() -> Run:
        async with fleet:
            first = asyncio.create_task(fleet.serve())
            await fleet.opens(2)
            first.cancel()
            await asyncio.wait({first})
            await asyncio.sleep(5.0)
            now = asyncio.get_running_loop().time()
            again = Run.resume(
                tmp_path / "killed/run", scene, setup(scene), rules=fleet.rules, now=now
            )
            resumed, _ = again
            return await fleet.serve(resumed)

    run = clock.run(whole(), within_s=3600)
    undisturbed = played(ShardedFleet(tmp_path / "whole", scene))
    assert fingerprint(run) == fingerprint(undisturbed)


def test_a_second_coordinator_on_one_of_the_brokers_gives_way(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 6})
    fleet = ShardedFleet(tmp_path, scene)
    fleet.pool.takes_s = 3.0

    async def second(these: Fleet) -> None:
        await these.opens(2)
        run = begun(tmp_path / "other", scene, name="r2")
        async with fleet.brokers[2].link("second", last_will(TOPICS)) as link:
            with pytest.raises(UserError, match="another coordinator is at work"):
                await Service(run, link, session="z-younger").serve()

    assert played(fleet, second).engine.round == 6


def test_a_report_from_a_broker_where_its_agent_does_not_live_is_refused(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 3})
    fleet = ShardedFleet(tmp_path, scene)
    stranger = (shard_of("agent-0", SHARDS) + 1) % SHARDS

    async def forge(these: Fleet) -> None:
        await these.opens(2)
        async with fleet.brokers[stranger].link("rogue") as link:
            await link.publish(TOPICS.report("agent-0"), b"a part of a report")
            younger = AgentStatus(agent="agent-0", session="zzz", online=True, serial=9)
            await link.publish(TOPICS.status("agent-0"), younger.to_bytes())

    played(fleet, forge)
    assert fleet.service is not None
    assert fleet.service.roster.refusals["other broker"] == 2


# -- the rules, by themselves ------------------------------------------------------------------------------------------


WALL = 1_800_000_000.0
# where the rule puts the agent of a test, by the name of the agent
AT_0, AT_2 = "pi", "pi-1"


def session(age_s: float) -> str:
    return session_id(WALL - age_s, "abcd1234")


def status(
    agent: str, age_s: float = 50, serial: int = 1, *, online: bool = True, **changes: Any
) -> AgentStatus:
    fields = {"agent": agent, "session": session(age_s), "online": online, "serial": serial}
    return AgentStatus(**{**fields, **changes})


def placed(agent: str, shard: int = 0) -> Placement:
    """An agent that is online on a shard of three, all of which are up."""
    placement = Placement(3)
    for number in range(3):
        placement.connected(number)
    assert placement.admits(status(agent), shard, retained=False, wall=WALL)
    assert placement.take_moved(agent) == (True, None)
    return placement


def test_the_agents_of_these_tests_belong_where_they_say() -> None:
    assert [shard_of(name, 3) for name in (AT_0, AT_2)] == [0, 2]


MOVES: list[tuple[dict[str, Any], bool, bool]] = [
    ({"serial": 2}, False, True),  # it has moved
    ({"serial": 1}, False, False),  # the same message, over a bridge
    ({"serial": 0}, False, False),  # an older message that was on its way
    ({"age_s": 10, "serial": 0}, False, True),  # it was started again
    (
        {"age_s": 90, "serial": 9},
        False,
        False,
    ),  # another device with this id, which was there before
    ({"age_s": 10, "serial": 9}, True, False),  # an old document
    ({"serial": 9, "online": False}, False, False),  # the last will of the connection before
    ({"session": "zzzz"}, False, False),  # not the time of a start
    ({"age_s": -90_000}, False, False),  # a start that has not come
]


@pytest.mark.parametrize(("other", "retained", "admitted"), MOVES)
def test_a_status_from_another_broker(
    other: dict[str, Any], retained: bool, admitted: bool
) -> None:
    """The agent is enrolled elsewhere than by the rule, and the status does not come from the shard of the rule."""
    placement = placed(AT_2, 0)
    assert placement.admits(status(AT_2, **other), 1, retained=retained, wall=WALL) is admitted
    assert placement.where(AT_2) == (1 if admitted else 0)


def test_no_broker_speaks_for_an_agent_that_is_online_where_the_rule_puts_it() -> None:
    """Before: a live status with the session zzz moved it, and the agent itself was refused, after a restart too."""
    placement = placed(AT_0, 0)
    for forged in (status(AT_0, 1), status(AT_0, session="zzzz"), status(AT_0, -90_000)):
        assert not placement.admits(forged, 1, retained=False, wall=WALL)
    assert placement.where(AT_0) == 0
    placement.gone([AT_0])
    assert placement.admits(status(AT_0, 1), 1, retained=False, wall=WALL), "it has failed over"
    assert placement.admits(status(AT_0, 50, 7), 0, retained=False, wall=WALL), "it is back"
    assert placement.where(AT_0) == 0


def test_a_status_at_another_broker_does_not_outlive_a_restart_of_the_agent() -> None:
    placement = placed(AT_2, 0)
    assert placement.admits(status(AT_2, 10), 1, retained=False, wall=WALL)
    assert placement.admits(status(AT_2, 0), 0, retained=False, wall=WALL)


def test_an_older_session_may_come_from_another_broker_once_the_first_one_is_down() -> None:
    placement = placed(AT_0)
    assert not placement.admits(status(AT_0, 90), 1, retained=False, wall=WALL)
    assert placement.take_rival(AT_0)
    placement.disconnected(0)
    assert placement.admits(status(AT_0, 90), 1, retained=False, wall=WALL)
    assert placement.take_moved(AT_0) == (True, 0)


def test_agents_of_a_lost_broker_count_as_offline_once_it_had_time_to_come_back() -> None:
    silent = SilentShards(rollcall_s=10.0)
    silent.lost(1, ["b", "a"], now=100.0)
    assert silent.take_overdue(100.0) == []
    silent.heard("a")
    assert silent.wake_at == 100.0 + PATIENCE_S
    assert silent.take_overdue(100.0 + PATIENCE_S) == ["b"]
    silent.lost(1, ["c"], now=200.0)
    silent.back(1, now=201.0)
    assert silent.take_overdue(208.0) == []
    assert silent.take_overdue(211.0) == ["c"]
    assert silent.wake_at is None


def test_invented_names_do_not_fill_the_memory() -> None:
    placement = Placement(2)
    for number in range(5000):
        stranger = AgentStatus(agent=f"x{number}", session="s", online=True, serial=1)
        placement.admits(stranger, 0, retained=False, wall=WALL)
    placement.tidy({"x7"})
    assert placement.where("x7") == 0
    assert placement.where("x8") is None


def test_the_rule_moves_agents_only_to_a_new_broker() -> None:
    names = [f"agent-{number}" for number in range(2000)]
    four = [shard_of(name, 4) for name in names]
    five = [shard_of(name, 5) for name in names]
    assert all(after in (before, 4) for before, after in zip(four, five, strict=True))
    counts = [five.count(shard) for shard in range(5)]
    assert min(counts) > 330
    assert shard_of("pi-7", 4) == 2  # devices are enrolled by this rule: it never changes


def test_a_broker_that_is_not_read_does_not_stop_the_others() -> None:
    async def story() -> list[int]:
        brokers = [MemoryBroker(0), MemoryBroker(1)]
        async with (
            brokers[0].link("c") as first,
            brokers[1].link("c") as second,
            ShardedLink([first, second], TOPICS) as merged,
        ):
            await merged.all_up()
            brokers[1].restart(away_s=1e9)
            assert await merged.publish(TOPICS.control, b"x")
            await merged.subscribe([TOPICS.control])
            await merged.publish(TOPICS.control, b"y")
            shards = []
            async for item in merged.incoming():
                shards.append(item.shard)
                if isinstance(item, Received):
                    return shards
        return []

    assert clock.run(story(), within_s=60) == [0, 1, 1, 0]


def test_metrics_show_which_brokers_are_up(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 1, "start_agents": 4})
    fleet = ShardedFleet(tmp_path, scene, start_agents=4)
    fleet.brokers[0].back_at = 1e9
    played(fleet)
    assert fleet.service is not None
    assert fleet.service.shards_up == {0: False, 1: True, 2: True, 3: True}


def test_a_broker_that_cannot_be_reached_is_named() -> None:
    async def story() -> None:
        brokers = [MemoryBroker(0), MemoryBroker(1)]
        brokers[1].back_at = 1e9
        async with (
            brokers[0].link("c") as first,
            brokers[1].link("c") as second,
            ShardedLink([first, second], TOPICS) as merged,
        ):
            await merged.all_up()

    with pytest.raises(UserError, match=r"brokers \[1\]"):
        clock.run(story(), within_s=60)
