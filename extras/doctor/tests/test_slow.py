"""The device that all others wait for: its times are in the record and the roster, and doctor names it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.engine.members import RECENT, Members
from covey.extras.doctor.command import of_fleet, of_folder
from covey.extras.doctor.slow import slow
from covey.extras.in_use.uptake import RetainedFleet
from covey.extras.runs.roster_table import roster_table
from covey.shared.mqtt.link import Received
from covey.shared.wire.messages import OrderMessage
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet, Numpy
from tests.kit.small_run import clients, rules, scenario

NOW = 1_900_000_000.0


def rows(*times: float, rounds: int = 10, last: int = 9) -> dict[str, dict[str, Any]]:
    """A roster in which gw-0 is the last one of most rounds."""
    found = {f"gw-{n}": {"takes": one, "rounds": rounds, "last": 0} for n, one in enumerate(times)}
    found["gw-0"]["last"] = last
    return found


def named(*times: float, **counts: int) -> list[str]:
    return [odd.who for odd in slow(rows(*times, **counts), of_run=False)]


def test_a_device_is_slow_that_takes_ten_times_as_long_and_is_the_last_of_most_rounds() -> None:
    assert named(6.5, 0.25, 0.3, 0.2) == ["gw-0"]
    assert named(2.4, 0.25, 0.3, 0.2) == [], "less than ten times"
    assert named(0.9, 0.01, 0.01, 0.01) == [], "nobody notices"
    assert named(6.5, 0.25, 0.3, 0.2, last=5) == [], "others were as often the last"
    assert named(6.5, 0.25, 0.3, 0.2, rounds=2, last=2) == [], "two rounds are chance"
    assert named(6.5, 0.25) == [], "nobody knows which one of two is slow"
    assert list(slow({}, of_run=False)) == []
    [odd] = slow(rows(6.5, 0.25, 0.3, 0.2), of_run=True)
    assert odd.what == (
        "all wait for it: 6.5 s a round, the others 0.25 s, and the last report of 9 of its newest 10 rounds (last run)"
    )
    assert not re.findall(r"\b(?:agent|broker|coordinator) [a-z]+", odd.next), (
        "no command of ours helps"
    )


def test_a_device_that_becomes_slow_late_in_a_long_run_is_named_as_soon_as_in_a_short_one() -> None:
    members = Members()
    names = [f"gw-{number}" for number in range(5)]
    for number in range(1000):
        members.take_times(
            {name: 0.2 + 0.01 * ((place + number) % 5) for place, name in enumerate(names)}
        )
    for _ in range(RECENT):
        members.take_times(dict.fromkeys(names, 0.2) | {"gw-3": 6.5})
    found = {
        one.id: {"takes": one.takes, "rounds": one.rounds, "last": one.last} for one in members
    }
    assert [odd.who for odd in slow(found, of_run=False)] == ["gw-3"]
    for _ in range(RECENT):
        members.take_times({name: 0.2 + 0.01 * place for place, name in enumerate(names)})
    found = {
        one.id: {"takes": one.takes, "rounds": one.rounds, "last": one.last} for one in members
    }
    assert not list(slow(found, of_run=False)), "and no longer once it is over"


class WithSlowOne(Numpy):
    """The jobs of one agent take fifty times as long."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        done = await super().call(job, weight=weight)
        if getattr(job, "client", "") == "agent-2" and OrderMessage.from_bytes(job.order).work:
            await asyncio.sleep(50 * self.takes_s)
        return done


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_slow_device_is_named_in_a_run_after_it_and_in_its_record(
    tmp_path: Path, is_slow: bool
) -> None:
    scene = scenario("fedavg", rounds={"count": 4, "participation": 1.0})
    people = clients(5, scene)
    fleet = Fleet(tmp_path, scene, rules(scene, start_agents=5, quorum=5), MemoryBroker(), people)
    fleet.pool = WithSlowOne(people) if is_slow else Numpy(people)

    async def story() -> None:
        async with fleet:
            await fleet.serve()

    clock.run(story(), within_s=36_000)
    seen = RetainedFleet(Topics("default"))
    for topic, payload in fleet.broker.retained.matching("#"):
        seen.take(Received(topic, payload, retained=True))
    expected = ["agent-2"] if is_slow else []
    assert [odd.who for odd in of_fleet(seen, NOW) if odd.kind == "slow"] == expected
    assert [odd.who for odd in of_folder(tmp_path / "run") if odd.kind == "slow"] == expected
    ended = [row for row in fleet.events("phase") if row["ends_round"]]
    for row in ended:
        last, agent = max(zip(row["took"], row["reported"], strict=True))
        assert (agent == "agent-2") or not is_slow
        assert (last > 20) == is_slow
    assert seen.pages.message is not None
    table = roster_table(seen.pages.message.model_dump(mode="json"))
    takes = [cells[[one.title for one in table.columns].index("takes")] for cells in table.rows]
    assert all(one.endswith(" s") for one in takes)
