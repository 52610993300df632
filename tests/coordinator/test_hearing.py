"""A coordinator leaves the topics of an agent that floods it, and hears it again after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.engine.members import Members
from covey.coordinator.serve import hearing
from covey.coordinator.serve.hearing import AWAY_S, Flooding, Hearing
from covey.coordinator.serve.rate import FLOOD, MAX_PART_BYTES, MIN_PARTS, Rates
from covey.shared.mqtt.program import Subscribe, Unsubscribe
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.topics import Topics
from tests.kit.small_fleet import Fleet, played
from tests.kit.small_run import scenario

TOPICS = Topics("default")
WILD = {TOPICS.every_status, TOPICS.every_report}
FLOODS: dict[str, Callable[[int], tuple[str, bytes]]] = {
    "statuses": lambda number: (
        TOPICS.status("agent-3"),
        AgentStatus(agent="agent-3", session="s", online=True, serial=number).to_bytes(),
    ),
    "garbage": lambda number: (TOPICS.report("agent-3"), b"garbage"),
    "an enrolled agent that was never seen": lambda number: (TOPICS.status("new"), b"garbage"),
}


def rounds(fleet: Fleet) -> list[Any]:
    return [row for row in fleet.events("phase") if row["phase"] == "train"]


def flooded(folder: Path, kind: str) -> tuple[Fleet, list[set[str]], list[bool], list[int]]:
    """A run while an agent floods it, what was subscribed before, in and after it, whether the agent was online, and rounds."""
    patient = {"absence_s": 3600.0}
    scene = scenario(
        "fedavg", rounds={"count": 30, "participation": 1.0, "start_agents": 7, "timing": patient}
    )
    fleet = Fleet(folder, scene)
    fleet.pool.takes_s = 5.0
    seen: list[set[str]] = []
    online: list[bool] = []
    folded: list[int] = []

    def look() -> None:
        folded.append(len(rounds(fleet)))
        seen.append(set(fleet.broker.patterns))
        online.append(fleet.serving.roster.rows({})["agent-3"]["online"])

    async def flood(fleet: Fleet) -> None:
        await asyncio.sleep(12.0)
        look()
        async with fleet.broker.link("flood") as link:
            for number in range(2000):
                topic, payload = FLOODS[kind](number)
                await link.publish(topic, payload)
        await asyncio.sleep(5.0)
        look()
        await asyncio.sleep(AWAY_S + 5.0)
        look()

    played(fleet, flood)
    return fleet, seen, online, folded


@pytest.mark.parametrize("kind", FLOODS)
def test_who_floods_is_left_for_a_while_and_the_others_are_heard(kind: str, tmp_path: Path) -> None:
    fleet, (before, during, after), online, (_, first, last) = flooded(tmp_path, kind)
    flooder = "new" if kind.startswith("an enrolled") else "agent-3"
    others = {*fleet.people} - {flooder}
    named = {TOPICS.report(agent) for agent in others}  # agents subscribe to their own statuses
    assert before >= WILD
    assert not during & WILD
    assert during >= named
    assert TOPICS.report(flooder) not in during
    assert after >= WILD
    assert not after & named
    assert online == [True, flooder == "new", True]
    [left] = fleet.events("left")
    assert left["agent"] == flooder
    assert "sent far more than it could need" in left["why"]
    assert last - first >= AWAY_S // 6.0, "no round waits for who is not heard"
    assert len(rounds(fleet)) == 30
    handled = fleet.serving.roster.refusals
    assert handled.total() < 2000, "what comes after it was left costs nothing"


def members(*agents: str) -> Members:
    found = Members()
    found.listed.update(agents)
    return found


def test_a_second_flooder_is_left_too_and_all_come_back_together() -> None:
    one = Hearing(TOPICS, members("a", "b", "c"))
    one.connected(0, [*WILD, TOPICS.control])
    assert Flooding("a") in one.leave("a", 0, now=0.0)
    assert one.leave("b", 0, now=30.0) == [
        Unsubscribe([TOPICS.status("b"), TOPICS.report("b")], 0),
        Flooding("b"),
    ]
    assert [one.has_left(agent, 0) for agent in "abc"] == [True, True, False]
    assert one.wake_at == AWAY_S
    assert one.back(AWAY_S) == [
        Subscribe(sorted(WILD), 0),
        Unsubscribe([TOPICS.status("c"), TOPICS.report("c")], 0),
    ]
    assert one.wake_at is None
    assert not one.has_left("a", 0)


def test_what_an_aggregator_reads_stays_with_it() -> None:
    one = Hearing(TOPICS, members("a", "b"))
    one.connected(1, [TOPICS.every_status])
    assert Subscribe([TOPICS.status("b")], 1) in one.leave("a", 1, now=0.0)
    assert one.reports(1, wanted=True) == [Subscribe([TOPICS.report("b")], 1)]
    assert one.back(AWAY_S)[0] == Subscribe(sorted(WILD), 1)
    assert one.reports(1, wanted=False) == [Unsubscribe([TOPICS.every_report], 1)]


def test_names_go_in_packets_and_in_a_very_large_fleet_nobody_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agents = [f"a{number}" for number in range(1001)]
    one = Hearing(TOPICS, members(*agents))
    one.connected(0, WILD)
    sizes = [
        len(part.topics) for part in one.leave("a0", 0, now=0.0) if isinstance(part, Subscribe)
    ]
    assert sizes == [500, 500, 500, 500]
    monkeypatch.setattr(hearing, "MAX_NAMES", 1000)
    other = Hearing(TOPICS, members(*agents))
    other.connected(0, WILD)
    assert other.leave("a0", 0, now=0.0) == []
    assert not other.has_left("a0", 0)


def test_a_report_of_many_parts_that_is_repeated_is_no_flood_and_made_up_names_take_no_memory() -> (
    None
):
    rates = Rates(part_bytes=1 << 19)
    parts = 16 * MIN_PARTS
    rates.part("honest", 1 << 19, largest_report=parts << 19, now=0.0)
    _, at_once = FLOOD
    assert not any(rates.floods("honest", 1 << 19, now=0.0) for _ in range(parts // 2))
    assert any(rates.floods("liar", 1 << 19, now=0.0) for _ in range(int(at_once)))
    rates.part("longer", 1 << 19, largest_report=parts << 19, now=0.0)
    longer = MAX_PART_BYTES  # more than a part of this run has
    assert any(rates.floods("longer", longer, now=0.0) for _ in range(2)), (
        "no report has such parts"
    )
    for number in range(20_000):
        rates.floods(f"made-up-{number}", 100, now=0.0)
    assert len(rates) <= 10_000
