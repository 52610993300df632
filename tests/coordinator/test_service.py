"""The coordinator's shell: what it takes from the network is bounded by what it has asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.memory import MemoryBroker
from coordinator import service
from shared.link import Message
from shared.messages import AgentStatus, Part, digest
from shared.topics import Topics
from tests import clock
from tests.small_fleet import Fleet
from tests.small_run import clients, rules, scenario

TOPICS = Topics("default")


async def refusals(folder: Path, *noise: Message) -> dict[str, int]:
    """What a run refuses of these messages, which arrive while its first phase is open."""
    scene, broker = scenario("fedavg"), MemoryBroker()

    async def disturb() -> None:
        await asyncio.sleep(1.0)  # of virtual time: the agents have said who they are, and train for half a second each
        async with broker.link("noise") as link:
            for message in noise:
                await link.publish(message.topic, message.payload)

    async with Fleet(folder, scene, rules(scene), broker, clients()) as fleet, asyncio.TaskGroup() as group:
        group.create_task(disturb())
        await fleet.serve()
        assert fleet.service is not None
        return dict(fleet.service.roster.refusals)


def test_a_report_larger_than_any_that_was_asked_for_is_refused_by_its_first_part(tmp_path: Path) -> None:
    data = bytes(1024)
    part = Part(digest=digest(data), index=0, count=1 << 15, size=1 << 25, about=2, data=data)
    assert clock.run(refusals(tmp_path, Message(TOPICS.report("agent-0", 0), part.to_bytes())))["too large"] == 1


def test_more_agents_than_a_coordinator_can_know_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_AGENTS", 9)
    statuses = [AgentStatus(agent=f"stranger-{i}", session="s", online=True, serial=1) for i in range(3)]
    noise = [Message(TOPICS.status(one.agent), one.to_bytes()) for one in statuses]
    assert clock.run(refusals(tmp_path, *noise))["too many agents"] == 2
