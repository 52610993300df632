"""The operator's commands: each returns once the coordinator has carried it out, and the audit log records it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from covey.extras.audit.story import story_of
from covey.extras.runs.control import carry_out, send
from covey.extras.runs.status import from_broker
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Received, Up
from covey.shared.storage.json_text import loads
from covey.shared.wire.documents import Control, CoordinatorStatus, RosterMessage
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, played
from tests.kit.small_run import rules, scenario

TOPICS = Topics("default")


async def operator(broker: MemoryBroker, command: str, agent: str | None = None) -> bool:
    control = Control.model_validate({"command": command, "agent": agent})
    async with broker.link("operator") as link:
        return await carry_out(link, TOPICS, control)


def audited(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = (folder / "run" / "audit.jsonl").read_text().splitlines()
    records = [loads(line) for line in lines]
    return [record["fields"] for record in records if record["event"] == event]


def test_a_pause_ends_the_open_phase_and_opens_no_other_until_the_run_is_resumed(
    tmp_path: Path,
) -> None:
    answers: list[bool] = []

    async def pause(fleet: Fleet) -> None:
        await asyncio.sleep(1.2)  # agents train
        answers.extend(
            [await operator(fleet.broker, "pause"), await operator(fleet.broker, "pause")]
        )
        engine = fleet.serving.run.engine
        opened = engine.number
        await asyncio.sleep(60.0)
        assert engine.number == opened, "no phase opened"
        assert engine.round == opened, "the open phase was folded"
        answers.append(await operator(fleet.broker, "resume"))

    played(Fleet(tmp_path, scenario("fedavg")), pause)
    assert answers == [True, False, True]
    assert [one["why"] for one in audited(tmp_path, "control")] == ["pause", "resume"]


def test_a_forgotten_agent_leaves_nothing_behind_and_comes_back_as_a_newcomer(
    tmp_path: Path,
) -> None:
    scene = scenario("fedclust", rounds={"count": 4, "participation": 1.0})
    kept: list[str] = []

    async def forget(fleet: Fleet) -> None:
        await asyncio.sleep(1.7)  # clusters exist, and the first round is open
        await fleet.vanish("agent-3")
        run = fleet.serving.run
        assert "agent-3" in run.strategy.assignment(run.state)
        await operator(fleet.broker, "forget", "agent-3")
        assert "agent-3" not in run.engine.known
        assert "agent-3" not in run.strategy.assignment(run.state)
        assert "agent-3" not in fleet.serving.roster.entries
        kept.extend(topic for topic, _ in fleet.broker.retained.matching("#") if "agent-3" in topic)
        assert len(loads((tmp_path / "run" / "roster.json").read_bytes())["agents"]) == 7
        fleet.join("agent-3")

    run = played(Fleet(tmp_path, scene, rules(scene, **PATIENT)), forget)
    assert kept == []
    assert run.engine.round == 4, "no deadline was waited for"
    assert "agent-3" in run.strategy.assignment(run.state)
    assert audited(tmp_path, "forget") == [{"agent": "agent-3"}]
    story = [sentence.text for sentence in story_of("agent-3", tmp_path / "run").sentences]
    forgotten = story.index("Forgotten by the operator.")
    assert any("entry" in sentence for sentence in story[forgotten:]), story


def test_a_run_stops_when_the_operator_commands_it(tmp_path: Path) -> None:
    async def stop(fleet: Fleet) -> None:
        await asyncio.sleep(1.2)
        assert await operator(fleet.broker, "stop")

    assert played(Fleet(tmp_path, scenario("fedavg")), stop).engine.round < 3
    assert audited(tmp_path, "stop")
    kept = CoordinatorStatus.from_bytes((tmp_path / "run" / "status.json").read_bytes())
    assert (kept.state, kept.online, kept.name) == ("stopped", True, "small-fedavg")


@pytest.mark.parametrize(
    ("retained", "command", "message"),
    [
        (None, "pause", "no run of federation 'default' answered within 5 s"),
        (CoordinatorStatus(online=False, state="stopped"), "pause", "no coordinator is running"),
        (CoordinatorStatus(online=True, state="finished"), "stop", "no coordinator is running"),
        (CoordinatorStatus(online=True, state="open"), "pause", "the coordinator's credentials"),
        (CoordinatorStatus(online=True, state="open"), "stop", "the coordinator's credentials"),
    ],
)
def test_a_command_that_cannot_be_carried_out_reports_what_is_missing(
    retained: CoordinatorStatus | None, command: str, message: str
) -> None:
    broker = MemoryBroker()

    async def program() -> None:
        if retained is not None:
            async with broker.link("coordinator") as link:
                await link.subscribe(["x"])
                await link.publish(TOPICS.coordinator_status, retained.to_bytes(), retain=True)
        await operator(broker, command)

    with pytest.raises(UserError, match=message):
        clock.run(program())


@pytest.mark.parametrize("then", ["open", "finished"])
def test_a_run_is_resumed_that_comes_back_after_its_broker_even_if_only_its_end_is_left(
    then: str,
) -> None:
    """A broker that is stopped publishes the last wills, and keeps them over its restart."""
    broker = MemoryBroker()

    async def program() -> bool:
        async with broker.link("coordinator") as link:
            await link.subscribe([TOPICS.control])

            async def show(**fields: Any) -> None:
                status = CoordinatorStatus.model_validate(fields)
                await link.publish(TOPICS.coordinator_status, status.to_bytes(), retain=True)

            await show(online=False, state="stopped")
            command = asyncio.create_task(operator(broker, "resume"))
            await asyncio.sleep(1.0)
            assert not command.done()
            await show(online=True, state="paused")
            async for incoming in link.incoming():
                if isinstance(incoming, Received):
                    await show(online=True, state=then)
                    return await command
        return False

    assert clock.run(program())


@pytest.mark.parametrize("command", ["forget", "release"])
@pytest.mark.parametrize(
    ("left", "within_s"),
    [({"state": "stopped"}, 0.1), ({"state": "finished"}, 0.1), ({"online": False}, 5.1)],
)
def test_a_command_about_an_agent_does_not_wait_for_a_coordinator_that_is_not_there(
    command: str, left: dict[str, Any], within_s: float
) -> None:
    """Before: half a minute, after which it named the credentials."""
    broker = MemoryBroker()
    row = {"quarantined": "it lies"}
    status = CoordinatorStatus.model_validate({"online": True, "run": "r1", **left})
    broker.route(TOPICS.roster, RosterMessage(agents={"gw-1": row}).to_bytes(), retain=True)
    broker.route(TOPICS.coordinator_status, status.to_bytes(), retain=True)

    async def ask() -> float:
        now = asyncio.get_running_loop().time
        began = now()
        with pytest.raises(UserError, match="no coordinator is running"):
            await operator(broker, command, "gw-1")
        return now() - began

    assert clock.run(ask()) <= within_s


def test_a_broker_that_ends_the_connection_of_an_agent_explains_who_may_command() -> None:
    """Mosquitto does so where the access rules forbid to publish."""
    broker = MemoryBroker()
    running = CoordinatorStatus(online=True, state="open")

    async def cut_off() -> None:
        async with broker.link("rules") as link:
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        await link.subscribe([TOPICS.control])
                        topic = TOPICS.coordinator_status
                        await link.publish(topic, running.to_bytes(), retain=True)
                    case Received():
                        broker.disconnect("operator")
                        return

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(cut_off())
            await asyncio.sleep(1.0)
            with pytest.raises(UserError, match="only the coordinator's credentials may"):
                await operator(broker, "pause")

    clock.run(program())


def test_a_busy_run_still_names_each_command_in_the_audit_log(tmp_path: Path) -> None:
    """Late reports and refusals of agents must not use up the lines of the operator."""

    async def command(fleet: Fleet) -> None:
        await asyncio.sleep(1.2)
        for number in range(100):
            fleet.serving.run.audit.blame("ignored", f"agent-{number}", "late")
        await operator(fleet.broker, "pause")
        await operator(fleet.broker, "resume")

    played(Fleet(tmp_path, scenario("fedavg")), command)
    assert [one["why"] for one in audited(tmp_path, "control")] == ["pause", "resume"]


@pytest.mark.parametrize("ask", ["status", "pause"])
def test_a_broker_that_is_down_is_named_once_before_the_reason(ask: str) -> None:
    url = BrokerUrl.parse("mqtt://127.0.0.1:1")
    asked = (
        from_broker(url, "default")
        if ask == "status"
        else send(url, "default", Control(command="pause"))
    )
    with pytest.raises(UserError, match=r"^mqtt://127\.0\.0\.1:1: Connection refused"):
        asyncio.run(asked)
