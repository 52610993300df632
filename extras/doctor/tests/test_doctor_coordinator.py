"""The first row of `coordinator doctor` is the program that judges: whether it was killed, stands still, or was stopped."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.coordinator.odd import COORDINATOR, KINDS, Odd
from covey.coordinator.serve.service import last_will
from covey.extras.doctor import command
from covey.extras.doctor.command import of_fleet, of_folder
from covey.extras.doctor.devices import DAY_S
from covey.extras.doctor.own_row import at_broker, in_folder
from covey.extras.in_use.uptake import RetainedFleet
from covey.extras.runs.roster_table import status_lines
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.mqtt.link import Received
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus, RosterMessage
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import clients, rules, scenario

TOPICS = Topics("default")
RUN = {"run": "r1", "name": "pumps", "round": 3, "rounds": 60}
NOW = 1_900_000_000.0


def status(**changed: Any) -> CoordinatorStatus:
    return CoordinatorStatus(**{"online": True, "state": "open", **RUN, **changed})


def words(found: CoordinatorStatus | None, *, answers: bool = True, run: str = "r1") -> list[str]:
    rows = {"gw-1": {"seen": NOW}, "gw-2": {"seen": NOW - 9}}
    roster = RosterMessage(run=run, round=22, agents=rows)
    return [
        f"{one.who} {one.what}" for one in at_broker(found, roster, {}, "default", answers=answers)
    ]


def test_a_coordinator_is_named_by_how_it_ended() -> None:
    gone = status(online=False, state="stopped")
    ended = "coordinator it ended without a word in pumps, after round 22 of 60"
    assert words(gone) == [ended]
    assert words(gone, run="r0") == [ended.replace("22", "3")], "the roster is that of another run"
    assert words(status(state="stopped")) == [
        "coordinator it was stopped before its last round in pumps, after round 22 of 60"
    ]
    assert "gave the run up" in words(status(state="stopped", given_up=True))[0]
    assert "does not answer" in words(status(), answers=False)[0]
    assert words(CoordinatorStatus(online=False, state="stopped")) == [
        "coordinator it ended without a word"
    ], "one of an earlier version"


def test_a_coordinator_that_a_fault_has_ended_or_that_waits_for_its_disk_is_named_with_the_reason() -> (
    None
):
    gone = status(state="stopped", trouble="the folder of the run is gone")
    why = (
        "ended before its last round in pumps, after round 22 of 60: the folder of the run is gone"
    )
    assert words(gone) == [f"coordinator it {why}"]
    [odd] = in_folder("stopped", gone, Path("runs/a"), 22, NOW)
    assert (odd.what, "--resume" in odd.next) == (f"it {why}", True)
    full = status(trouble="no room is left on the disk of its runs; free some")
    [odd] = at_broker(full, None, {}, "default", answers=True)
    assert odd.what.startswith(
        "it waits for its disk in pumps, after round 3 of 60: no room is left"
    )
    assert "continues by itself" in odd.next
    assert "does not answer" in words(full, answers=False)[0]


@pytest.mark.parametrize("state", ["gathering", "open", "paused", "folding", "finished"])
def test_a_coordinator_at_work_or_done_is_not_odd(state: str) -> None:
    assert words(status(state=state)) == []
    assert words(None) == []


def test_its_row_is_the_first_and_names_the_command_and_the_time() -> None:
    gone = status(online=False, state="stopped")
    roster = RosterMessage(run="r1", round=22, agents={"gw-1": {"seen": NOW}})
    [odd] = at_broker(gone, roster, {}, "default", answers=True)
    assert (odd.since, odd.next) == (NOW, "`coordinator run SCENARIO --out FOLDER --resume`")
    assert next(iter(KINDS)) == odd.kind
    [odd] = in_folder("killed", status(), Path("runs/a"), 22, NOW)
    assert odd.next == "`coordinator run runs/a/scenario.yaml --out runs/a --resume`"
    assert "after round 22 of 60" in odd.what
    assert list(in_folder("running", status(), Path("runs/a"), 22, NOW)) == []


def clocks(
    doctor: float, coordinator: float, devices: float = 0.0, *, asks: bool = True
) -> list[str]:
    """The list of a fleet at work by the seconds that each clock is ahead of the true time; gw-1 compares its data with the task.

    The coordinator was started a minute ago.
    """
    theirs = NOW + coordinator
    caller = status(epoch=f"{session_id(theirs - 60, 'ab')}.1", task_digest="t1", clock=theirs)
    rows, wrong = {"gw-1": {"seen": theirs - 9}}, Odd((COORDINATOR,), "clock", "its clock", "")
    odd = [wrong.to_json()] if abs(coordinator - devices) > 600 else []
    fleet = RetainedFleet(TOPICS)
    fleet.take(Received(TOPICS.coordinator_status, caller.to_bytes(), retained=True))
    fleet.take(Received(TOPICS.roster, RosterMessage(agents=rows, odd=odd).to_bytes(), True))
    for name in ("gw-1", "gw-2", "gw-3"):
        own = AgentStatus(
            agent=name,
            session=session_id(NOW + devices - 30, "cd"),
            serial=1,
            online=True,
            epoch=caller.epoch,
            task="" if name == "gw-1" else "t1",
            clock=NOW + devices - 5,
        )
        fleet.take(Received(TOPICS.status(name), own.to_bytes(), retained=True))
    found = of_fleet(fleet, NOW + doctor, clock=theirs if asks else None)
    return [one.sentence for one in found]


def test_a_wrong_clock_of_the_machine_that_asks_is_one_row_and_nobody_else_is_late() -> None:
    """Before: nothing, or a device that had compared its data for a day."""
    assert clocks(0, 0) == []
    ahead = "doctor: the clock of this machine is 1 day ahead of the coordinator's; next: on this machine: timedatectl"
    assert clocks(DAY_S, 0) == [ahead]
    assert clocks(-DAY_S, 0) == [ahead.replace("ahead of", "behind")]
    unasked = ahead.replace("ahead of the coordinator's", "behind 3 of 3 devices")
    assert clocks(-DAY_S, 0, asks=False) == [unasked]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("off", [DAY_S, -DAY_S])
def test_a_wrong_clock_of_the_coordinator_is_not_blamed_on_the_machine_that_asks(
    off: float, asks: bool
) -> None:
    for doctor in (0.0, off):  # it runs on the coordinator's machine
        found = clocks(doctor, off, asks=asks)
        assert [one.partition(":")[0] for one in found] == ["coordinator"], found


def test_a_federation_of_nobody_is_odd() -> None:
    [odd] = of_fleet(RetainedFleet(Topics("defualt")), NOW)
    assert (odd.who, odd.kind) == ("broker", "federation")
    assert "neither a device nor a run of federation 'defualt'" in odd.what


def test_what_a_killed_coordinator_leaves_names_its_run_and_round(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 20})
    fleet = Fleet(tmp_path, scene, rules(scene), MemoryBroker(), clients(scene=scene))

    async def story() -> None:
        async with fleet:
            serving = asyncio.create_task(fleet.serve())
            await fleet.opens(3)
            await asyncio.sleep(1.5)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            topic, will = TOPICS.coordinator_status, last_will(TOPICS, fleet.serving.run)
            fleet.broker.route(topic, will.payload, retain=True)

    clock.run(story(), within_s=36_000)
    seen = RetainedFleet(TOPICS)
    for topic, payload in fleet.broker.retained.matching("#"):
        seen.take(Received(topic, payload, retained=True))
    done = fleet.serving.run.engine.round
    assert done > 0
    odd = of_fleet(seen, NOW)[0]
    assert f"ended without a word in small-fedavg, after round {done} of 20" in odd.what
    assert seen.coordinator is not None
    assert seen.pages.message is not None
    lines = status_lines(
        {
            "status": seen.coordinator.model_dump(mode="json"),
            "roster": seen.pages.message.model_dump(mode="json"),
            "devices": {},
        }
    )
    assert lines[0] == f"small-fedavg: its coordinator ended without a word, round {done} of 20"
    # and by its folder
    folder = tmp_path / "run"
    assert f"after round {done} of 20" in of_folder(folder)[0].what
    os.truncate(folder / "status.json", 3)
    assert all(one.kind != "coordinator" for one in of_folder(folder))


def test_a_disk_that_folder_and_roster_know_of_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [Odd((COORDINATOR,), "disk", "3 MB free on the disk of its runs", "").to_json()]
    roster = RosterMessage(run="r1", odd=known)
    (tmp_path / "roster.json").write_bytes(roster.to_bytes())
    full = SimpleNamespace(free=1_000_000)
    monkeypatch.setattr("covey.extras.doctor.command.shutil.disk_usage", lambda _: full)
    done = CliRunner().invoke(app, ["doctor", str(tmp_path), "--json"])
    [row] = json.loads(done.stdout)["odd"]
    assert (row["devices"], row["kind"]) == (["coordinator"], "disk")
    assert row["what"].startswith("1 MB free"), "as it is now"


def test_an_answer_that_nobody_can_read_ends_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    async def heard(*_: object, **__: object) -> AsyncIterator[Received]:
        yield Received(TOPICS.coordinator_status, b"no status")

    class Silent:
        async def publish(self, *_: object) -> None:
            return

    monkeypatch.setattr(command, "until_quiet", heard)
    link: Any = Silent()
    assert asyncio.run(command._answer(link, TOPICS)) is None
