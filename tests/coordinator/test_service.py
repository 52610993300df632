"""The coordinator's shell takes only expected messages from the network and reports a pause."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import IO, Any

import pytest

from covey.agent.device.service import Agent
from covey.coordinator.engine.events import Paused
from covey.coordinator.record.roster_files import read_roster
from covey.coordinator.run.run import Run
from covey.coordinator.serve import intake
from covey.coordinator.serve.roster import MAX_UNKNOWN, Roster
from covey.coordinator.serve.service import Service
from covey.shared.mqtt.link import Received
from covey.shared.wire.documents import AgentStatus, Control, CoordinatorStatus, RosterMessage
from covey.shared.wire.messages import Part, digest
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.cluster import cluster
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, played
from tests.kit.small_run import begun, clients, rules, scenario, setup

TOPICS = Topics("default")


def refusals(folder: Path, *noise: Received) -> dict[str, int]:
    """The refusals of a run that gets these messages while its first phase is open."""

    async def disturb(fleet: Fleet) -> None:
        await asyncio.sleep(1.0)  # the agents have said who they are, and train
        async with fleet.broker.link("noise") as link:
            for message in noise:
                await link.publish(message.topic, message.payload)
                await asyncio.sleep(0.01)

    fleet = Fleet(folder, scenario("fedavg"))
    played(fleet, disturb)
    return dict(fleet.serving.roster.refusals)


async def a_power_cut(fleet: Fleet) -> None:
    await fleet.opens(1)
    await fleet.vanish("agent-3")


def test_a_round_ends_without_an_agent_that_is_lost(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, scenario("fedavg", rounds={"count": 1, "participation": 1.0}))
    played(fleet, a_power_cut)
    assert set(fleet.events("phase")[0]["reported"]) == set(fleet.people) - {"agent-3"}


def test_the_test_that_contributors_read_is_one_of_these() -> None:
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
    [shown] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown in Path(__file__).read_text("utf-8")


def test_a_report_larger_than_any_that_was_asked_for_is_refused_by_its_first_part(
    tmp_path: Path,
) -> None:
    data = bytes(1024)
    part = Part(digest=digest(data), index=0, count=1 << 15, size=1 << 25, about=2, data=data)
    report = Received(TOPICS.report("agent-0", 0), part.to_bytes())
    assert refusals(tmp_path, report)["too large"] == 1


def test_more_agents_than_a_coordinator_can_know_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_AGENTS", 9)
    statuses = [
        AgentStatus(agent=f"stranger-{i}", session="s", online=True, serial=1) for i in range(3)
    ]
    noise = [Received(TOPICS.status(one.agent), one.to_bytes()) for one in statuses]
    assert refusals(tmp_path, *noise)["too many agents"] == 2


def test_the_roster_in_the_runs_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Who reads it while a new one is written finds the old one, and never half a roster."""
    opened: list[IO[bytes]] = []
    found: list[bytes] = []

    def open_roster() -> bytes:
        [path] = tmp_path.rglob("roster.json")
        opened.append(path.open("rb"))
        return path.read_bytes()

    async def look(_: Fleet) -> None:
        await asyncio.sleep(1.5)  # a first roster is there, and the agents still train
        found.append(open_roster())

    played(Fleet(tmp_path, scenario("fedavg")), look)
    [file] = opened
    with file:
        assert file.read() == found[0] != open_roster()
    opened[-1].close()


def test_a_waiting_run_counts_its_agents_after_a_while_and_at_each_change(tmp_path: Path) -> None:
    async def come(fleet: Fleet) -> None:
        await asyncio.sleep(20.0)
        fleet.join("agent-6")
        await asyncio.sleep(20.0)
        fleet.join("agent-7")

    fleet = Fleet(tmp_path, scenario("fedavg", rounds={"count": 1}))
    fleet.late = {"agent-6", "agent-7"}
    played(fleet, come)
    waits = [row["why"] for row in fleet.events("waiting")]
    assert waits == ["6 of 8 agents are online", "7 of 8 agents are online"]


def test_a_run_without_agents_names_its_federation_and_those_in_which_agents_wait(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path, scenario("fedavg", rounds={"count": 1}))
    fleet.late = set(fleet.people)
    for number in range(3):
        status = AgentStatus(agent=f"pi-{number}", session="s", online=number < 2)
        fleet.broker.retained.keep(Topics("pm25").status(f"pi-{number}"), status.to_bytes())

    async def come(fleet: Fleet) -> None:
        await asyncio.sleep(20.0)
        assert not any("covey/+/agents" in pattern for pattern in fleet.broker.patterns)
        assert not fleet.serving.roster.refusals
        for client in fleet.people:
            fleet.join(client)

    played(fleet, come)
    first, second, *_ = [row["why"] for row in fleet.events("waiting")]
    assert "0 of 8 agents are online" in first
    assert "this run is in federation 'default'" in first
    assert "agent start --federation default" in first
    assert "2 in 'pm25'" in second


def test_a_waiting_run_names_the_agent_that_is_there_and_does_not_count(tmp_path: Path) -> None:
    misfit = AgentStatus(
        agent="agent-6", session="s", online=True, serial=1, problem="no column 'label'"
    )

    async def come(fleet: Fleet) -> None:
        async with fleet.broker.link("agent-6") as link:
            await asyncio.sleep(1.0)
            await link.publish(TOPICS.status("agent-6"), misfit.to_bytes())
            await asyncio.sleep(20.0)
        fleet.join("agent-6")
        fleet.join("agent-7")

    fleet = Fleet(tmp_path, scenario("fedavg", rounds={"count": 1}))
    fleet.late = {"agent-6", "agent-7"}
    played(fleet, come)
    first = fleet.events("waiting")[0]["why"]
    assert first.startswith("6 of 8 agents are online; agent-6 (no column 'label') is excluded")
    assert "rounds.start_agents" in first


def test_a_run_that_starts_at_once_reports_no_wait(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, scenario("fedavg"))
    played(fleet)
    assert not fleet.events("waiting")


def test_a_run_that_begins_paused_reports_this_and_how_to_resume_it(tmp_path: Path) -> None:
    async def told() -> list[object]:
        scene, broker = scenario("fedavg"), MemoryBroker()
        run = begun(tmp_path / "run", scene, now=asyncio.get_running_loop().time())
        run.handle(Paused(), asyncio.get_running_loop().time())

        async def resume() -> None:
            await asyncio.sleep(5.0)  # of virtual time: the agents are there, and nothing has begun
            async with broker.link("operator") as link:
                await link.publish(TOPICS.control, Control(command="resume").to_bytes())

        async with (
            Fleet(tmp_path, scene, rules(scene), broker) as fleet,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(resume())
            await fleet.serve(run)
            return [
                row.get("command", row["event"])
                for row in fleet.rows
                if row["event"] in ("control", "phase")
            ]

    assert clock.run(told())[:3] == ["pause", "resume", "phase"]


def test_a_report_from_before_a_power_cut_is_accepted_before_its_agent_has_looked_at_its_data(
    tmp_path: Path,
) -> None:
    """The first status of a restarted agent has no samples yet, and its finished report comes right after it."""
    scene = scenario("fedavg", rounds={"count": 1, "participation": 1.0})
    fleet = Fleet(tmp_path, scene, rules(scene, **PATIENT))
    fleet.pool.takes_s = 5.0

    async def power_cut(fleet: Fleet) -> None:
        await asyncio.sleep(8.0)  # the agents have looked at their data, and train
        fleet.broker.restart(away_s=10.0)
        await asyncio.sleep(9.0)  # the reports are finished, and nobody has got them
        await fleet.vanish("agent-3")
        while sum(row["up"] for row in fleet.events("link")) < 2:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        fleet.join("agent-3")

    played(fleet, power_cut)
    assert not fleet.events("refused")
    assert len(fleet.events("phase")[0]["reported"]) == 8


def test_the_newest_of_too_many_statuses_is_read_and_the_rest_are_counted(tmp_path: Path) -> None:
    async def flood(fleet: Fleet) -> None:
        await asyncio.sleep(1.0)
        async with fleet.broker.link("flood") as link:
            for i in range(200):
                status = AgentStatus(agent="flood", session="s", online=True, serial=i, samples=i)
                await link.publish(TOPICS.status("flood"), status.to_bytes())

    fleet = Fleet(tmp_path, scenario("fedavg"))
    played(fleet, flood)
    roster = fleet.serving.roster.rows({})
    assert roster["flood"]["samples"] == 199, "the newest status is the one that counts"
    assert fleet.serving.roster.refusals["rate"] > 100
    assert roster["flood"]["refusals"]["rate"] > 100
    assert all(roster[client]["refusals"] == {} for client in clients()), "nobody else is limited"


def statuses_of_late(folder: Path, *messages: tuple[AgentStatus, bool]) -> dict[str, Any]:
    """What the roster of a run has of the agent "late" after these statuses, which arrive at once; True: retained."""

    async def arrive(fleet: Fleet) -> None:
        await asyncio.sleep(1.0)
        service, now = fleet.serving, asyncio.get_running_loop().time()
        topic = TOPICS.status("late")
        arrived = [Received(topic, status.to_bytes(), kept) for status, kept in messages]
        read = [item for one in arrived for item in service.read(one, now)]
        service.handle([item for item in read if isinstance(item, intake.StatusQueued)], now)

    fleet = Fleet(folder, scenario("fedavg"))
    played(fleet, arrive)
    return fleet.serving.roster.rows({})["late"]


def of_late(session: str, serial: int) -> AgentStatus:
    return AgentStatus(agent="late", session=session, online=True, serial=serial, samples=serial)


def test_a_status_that_a_newer_one_has_overtaken_does_not_take_its_place(tmp_path: Path) -> None:
    """Both wait to be judged: the newer one would be lost, and the agent would not count until it has news."""
    live = [(of_late("s", 3), False), (of_late("s", 2), False)]
    assert statuses_of_late(tmp_path, *live)["samples"] == 3


def test_what_a_broker_remembers_of_an_earlier_session_does_not_take_the_place_of_a_live_status(
    tmp_path: Path,
) -> None:
    both = [(of_late("new", 1), False), (of_late("old", 8), True)]
    assert statuses_of_late(tmp_path, *both)["samples"] == 1


def test_a_status_of_megabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    labels = ["x" * 4000] * 1000
    whole = AgentStatus.model_construct(agent="agent-0", session="s", online=True, labels=labels)
    status = Received(TOPICS.status("agent-0"), whole.to_bytes())
    assert refusals(tmp_path, status)["too long"] == 1


def test_after_a_flood_of_made_up_agents_the_roll_is_called_again_and_no_honest_agent_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.coordinator.serve.rate.UNKNOWN_STATUSES", (1.0, 20.0))

    async def flood(fleet: Fleet) -> None:
        await asyncio.sleep(2.0)
        async with fleet.broker.link("flood") as link:
            for i in range(200):
                made_up = AgentStatus(agent=f"made-up-{i}", session="s", online=True, serial=1)
                await link.publish(TOPICS.status(made_up.agent), made_up.to_bytes())
        fleet.join("agent-7")  # its first status is lost in the flood; the run waits for it

    fleet = Fleet(tmp_path, scenario("fedavg"))
    fleet.late = {"agent-7"}
    played(fleet, flood)
    assert fleet.serving.roster.refusals["rate"] > 100


def test_made_up_agents_leave_the_roster_again_and_members_stay() -> None:
    roster = Roster("task")
    member = AgentStatus(agent="member", session="s", online=True, task="task")
    roster.seen(member, retained=False, epoch="", now=0.0)
    for i in range(5000):
        labels, problem = ["l" * 4000] * 3, "p" * 4000
        made_up = AgentStatus(
            agent=f"made-up-{i}", session="s", online=True, labels=labels, problem=problem
        )
        roster.seen(made_up, retained=False, epoch="", now=float(i))
    assert len(roster.entries) == 1 + MAX_UNKNOWN
    assert "member" in roster.entries
    assert len(RosterMessage(agents=roster.rows({})).to_bytes()) < 1 << 20
    assert roster.forgotten == 5000 - MAX_UNKNOWN


def test_a_coordinator_reports_a_refused_subscription_and_runs_once_it_is_granted(
    tmp_path: Path,
) -> None:
    async def grant(fleet: Fleet) -> None:
        await asyncio.sleep(30.0)
        assert not fleet.events("phase")
        fleet.broker.denied = set()

    fleet = Fleet(tmp_path, scenario("fedavg"))
    fleet.broker.denied = {TOPICS.every_status}
    played(fleet, grant)
    refused = [row["refused"] for row in fleet.events("subscriptions")]
    assert refused == [[TOPICS.every_status], []]


def test_an_agents_status_names_a_refused_subscription_and_it_works_once_it_is_granted(
    tmp_path: Path,
) -> None:
    scene = scenario("fedavg", rounds={"participation": 1.0})
    problems: list[str] = []

    async def grant(fleet: Fleet) -> None:
        await asyncio.sleep(30.0)  # without agent-3 no phase has a quorum
        problems.append(fleet.serving.roster.rows({})["agent-3"]["problem"])
        fleet.broker.denied = set()

    fleet = Fleet(tmp_path, scene, rules(scene, quorum=8))
    fleet.broker.denied = {TOPICS.order("agent-3")}
    played(fleet, grant)
    assert problems == [
        f"the broker refuses the subscription to {TOPICS.order('agent-3')}; it is asked again. Check "
        "its access rules for this user, and that all of its nodes are up"
    ]
    assert fleet.serving.roster.entries["agent-3"].here


class Spread(Fleet):
    """Half of its agents are at another node of the broker."""

    other: MemoryBroker

    async def _live(self, client: str, agent: Agent) -> None:
        node = self.other if int(client[-1]) % 2 else self.broker
        async with node.link(client, agent.will) as link:
            await agent.run(link)


def test_agents_at_a_node_that_does_not_get_what_others_retain_are_named_while_the_run_continues(
    tmp_path: Path,
) -> None:
    scene = scenario("fedavg", rounds={"count": 2})
    first, other = cluster(2, shares_retained=False)
    fleet = Spread(tmp_path, scene, rules(scene, deadline_s=3600.0), first)
    fleet.other = other
    played(fleet)
    problems = fleet.events("problem")
    assert {row["agent"] for row in problems} == {one for one in clients() if int(one[-1]) % 2}
    assert all("RabbitMQ" in row["why"] for row in problems)


def test_a_run_continues_after_all_retained_messages_were_cleared_and_its_agents_restarted(
    tmp_path: Path,
) -> None:
    scene = scenario("fedavg", rounds={"count": 2})
    fleet = Fleet(tmp_path, scene, rules(scene, **PATIENT))
    fleet.pool.takes_s = 30.0

    async def clear(fleet: Fleet) -> None:
        await asyncio.sleep(40.0)  # their data is read, and all agents train
        async with fleet.broker.link("operator") as link:
            for topic, _ in list(fleet.broker.retained.matching("covey/#")):
                await link.publish(topic, b"", retain=True)
                await asyncio.sleep(0.01)
        for client in fleet.people:
            await fleet.vanish(client)
            shutil.rmtree(tmp_path / "agents" / client)  # the model, too, must come again
            fleet.join(client)

    run = played(fleet, clear)
    assert run.engine.now < 600.0, "no step waited for its deadline"


def test_a_run_that_is_resumed_after_its_end_keeps_the_roster_of_its_end(tmp_path: Path) -> None:
    scene, broker = scenario("fedavg", rounds={"count": 1}), MemoryBroker()
    own_rules = rules(scene)

    async def program() -> None:
        async with Fleet(tmp_path, scene, own_rules, broker) as fleet:
            await fleet.serve()
        now = asyncio.get_running_loop().time()
        again, first = Run.resume(tmp_path / "run", scene, setup(scene), rules=own_rules, now=now)
        async with broker.link("coordinator") as link:
            assert await Service(again, link).serve(first) == ""

    clock.run(program())
    roster = read_roster(tmp_path / "run")
    assert len(roster.agents) == 8


async def left_alone(fleet: Fleet, run: Run, paused: bool = False) -> str | None:
    """Why a run ends whose agents all leave and do not come back."""
    async with fleet.broker.link("coordinator") as link, asyncio.TaskGroup() as group:
        service = Service(run, link, give_up_after_s=600.0)
        serving = group.create_task(service.serve())
        await asyncio.sleep(1.2)
        for client in list(fleet.lives):
            await fleet.vanish(client)
        if paused:
            await link.publish(TOPICS.control, Control(command="pause").to_bytes())
            await asyncio.sleep(7200.0)
            service.stop()
        return await serving


def test_a_run_whose_agents_have_all_left_is_given_up_after_a_while_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    scene, broker = scenario("fedavg", rounds={"count": 2}), MemoryBroker()
    own_rules, begin = rules(scene), setup(scene)

    async def program() -> tuple[str | None, float, CoordinatorStatus, int]:
        now = asyncio.get_running_loop().time
        async with Fleet(tmp_path, scene, own_rules, broker) as fleet:
            run = Run.start(tmp_path / "run", scene, begin, rules=own_rules, run="r1", now=now())
            why, ended = await left_alone(fleet, run), now()
            [(_, left)] = broker.retained.matching(TOPICS.coordinator_status)
            for client in clients():
                fleet.join(client)
            again, _ = Run.resume(tmp_path / "run", scene, begin, rules=own_rules, now=now())
            await fleet.serve(again)
        return why, ended, CoordinatorStatus.from_bytes(left), again.engine.round

    why, ended, left, rounds = clock.run(program())
    assert why is not None
    assert why.startswith("nothing could happen for 600 s: 0 agents online")
    assert "; all agents have left; last heard: agent-0 at" in why
    assert 600.0 < ended < 700.0
    assert (left.state, left.given_up, rounds) == ("stopped", True, 2)


def test_a_pause_is_no_reason_to_give_a_run_up(tmp_path: Path) -> None:
    scene = scenario("fedavg")

    async def program() -> str | None:
        async with Fleet(tmp_path, scene) as fleet:
            run = Run.start(
                tmp_path / "run", scene, setup(scene), rules=rules(scene), run="r1", now=0.0
            )
            return await left_alone(fleet, run, paused=True)

    assert clock.run(program()) is None
