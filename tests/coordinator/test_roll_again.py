"""A roll call is repeated while agents are missing: a broker drops what it queues for one client without a word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from covey.coordinator.record.notices import Notice, RunWaits
from covey.shared.wire.documents import AgentStatus
from tests import clock
from tests.kit.memory_broker import MemoryBroker, MemoryLink
from tests.kit.small_fleet import PATIENT, Fleet
from tests.kit.small_run import clients, rules, scenario


def served(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lost_calls: int, within_s: float = 300.0
) -> tuple[int, list[str]]:
    """Serve a run over a broker that loses all answers to the first roll calls: roll calls in all, and what was waited for."""
    publish = MemoryLink.publish
    answered: set[str] = set()
    shown: list[str] = []

    async def lossy(self: MemoryLink, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        if "/agents/" in topic and topic.endswith("/status") and payload:
            status = AgentStatus.from_bytes(payload)
            call = status.epoch.rpartition(".")[2]
            answered.add(status.epoch)
            if status.online and (not call or int(call) <= lost_calls):
                return True
        return await publish(self, topic, payload, retain=retain)

    monkeypatch.setattr(MemoryLink, "publish", lossy)
    scene = scenario("fedavg", rounds={"count": 1, "participation": 1.0, "start_agents": 4})

    def observe(notice: Notice) -> None:
        if isinstance(notice, RunWaits):
            shown.append(notice.why)

    async def program() -> None:
        fleet = Fleet(folder, scene, rules(scene, **PATIENT), MemoryBroker(), clients(4))
        async with fleet, asyncio.timeout(within_s):
            await fleet.serve(observer=observe)

    clock.run(program())
    return len(answered - {""}), shown


def test_agents_whose_answers_the_broker_has_dropped_are_asked_until_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, _ = served(tmp_path, monkeypatch, lost_calls=3)
    assert calls == 4


def test_a_run_that_misses_nobody_calls_the_roll_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, _ = served(tmp_path, monkeypatch, lost_calls=0)
    assert calls == 1


def test_a_run_that_misses_many_agents_names_the_queue_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.coordinator.serve.service.SHORT_QUEUE", 3)
    _, shown = served(tmp_path, monkeypatch, lost_calls=2)
    assert any("max_queued_messages" in why for why in shown)
