"""A run whose folder is taken away ends with one sentence, and its status states it: in every state, in whatever way."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.coordinator.processes.finish import finish
from covey.coordinator.record.notices import Notice
from covey.coordinator.record.store import Store
from covey.coordinator.run.run import Run
from covey.coordinator.serve.service import Service
from covey.shared.errors import UserError
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import rules, scenario, setup

SCENE = scenario("fedavg", rounds={"count": 4})
TOPIC = Topics(SCENE.federation).coordinator_status


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def a_file(folder: Path) -> None:
    moved(folder)
    folder.write_text("")


def another_folder(folder: Path) -> None:
    """As an unmounted disk leaves it."""
    moved(folder)
    folder.mkdir()


HOW: dict[str, Callable[[Path], object]] = {
    "deleted": shutil.rmtree,
    "moved": moved,
    "a file": a_file,
    "another": another_folder,
}
WHEN = ("waiting for agents", "in a round", "after the last fold", "at the close")


def served(
    folder: Path, lose: Callable[[Path], object], when: str
) -> tuple[str, CoordinatorStatus]:
    """How a run ends whose folder is lost, and the status that the broker keeps of it."""
    fleet, run_folder = Fleet(folder, SCENE), folder / "run"
    if when == "waiting for agents":
        fleet.late = set(fleet.people)

    def watch(notice: Notice) -> None:
        row = notice.to_json()
        is_last = row["event"] == "phase" and row["round"] == 3 and row["ends_round"]
        if when == "after the last fold" and is_last:
            lose(run_folder)

    async def ended(service: Service, serving: asyncio.Task[str | None]) -> str:
        try:
            await serving
            lose(run_folder)
            async with service.ends_in_order():
                finish(service.run)
        except UserError as error:
            return str(error)
        return "it has not ended"

    async def whole() -> str:
        now = asyncio.get_running_loop().time
        async with fleet, fleet.broker.link("coordinator") as link:
            run = Run.start(
                run_folder, SCENE, setup(SCENE), rules=rules(SCENE), run="r1", now=now()
            )
            service = Service(run, link, observer=watch)
            serving = asyncio.create_task(service.serve())
            if when == "in a round":
                await fleet.opens(2)
            if when == "waiting for agents":
                await asyncio.sleep(30)
            if when in ("waiting for agents", "in a round"):
                lose(run_folder)
            return await ended(service, serving)

    said = clock.run(whole(), within_s=36_000)
    [(_, left)] = fleet.broker.retained.matching(TOPIC)
    return said, CoordinatorStatus.from_bytes(left)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("how", HOW)
def test_a_run_whose_folder_is_lost_ends_with_a_sentence_and_its_status_states_it(
    tmp_path: Path, how: str, when: str
) -> None:
    said, status = served(tmp_path, HOW[how], when)
    assert f"{tmp_path / 'run'}: " in said
    assert "put it back" in said
    assert "--resume" in said
    assert (status.online, status.state) == (True, "stopped")
    assert "folder" in status.trouble
    assert str(tmp_path) not in status.trouble, "devices read it"


def test_a_run_that_a_fault_ends_states_it_on_the_broker_and_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: its status stayed online, as that of a run at work."""

    def broken(*_: object) -> None:
        raise PermissionError(errno.EACCES, "why", str(tmp_path / "run" / "models"))

    fleet = Fleet(tmp_path, SCENE)

    async def story() -> None:
        async with fleet:
            serving = asyncio.create_task(fleet.serve())
            await fleet.opens(2)
            monkeypatch.setattr(Store, "commit", broken)
            with pytest.raises(PermissionError):
                await serving

    clock.run(story(), within_s=36_000)
    [(_, left)] = fleet.broker.retained.matching(TOPIC)
    for content in (left, (tmp_path / "run" / "status.json").read_bytes()):
        status = CoordinatorStatus.from_bytes(content)
        assert (status.online, status.state) == (True, "stopped")
        assert status.trouble == "PermissionError; its log has more"


def test_a_status_names_at_once_what_the_run_waits_for(tmp_path: Path) -> None:
    fleet, known = Fleet(tmp_path, SCENE), list[str]()

    async def story() -> None:
        async with fleet:
            serving = asyncio.create_task(fleet.serve())
            await fleet.opens(2)
            room = fleet.serving.run.room
            assert room.notify is not None
            for room.trouble in ("no room is left on the disk of its runs; free some", ""):
                room.notify("as a thread that waits for it does")
                await asyncio.sleep(0.01)
                [(_, left)] = fleet.broker.retained.matching(TOPIC)
                known.append(CoordinatorStatus.from_bytes(left).trouble)
            await serving

    clock.run(story(), within_s=36_000)
    assert known == ["no room is left on the disk of its runs; free some", ""]
