"""What a coordinator finds after a kill, a freeze or a power cut, and what it does about it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.engine.events import Joined, Left, Paused, Tick
from covey.coordinator.record.notices import PhaseFolded, ReportDamaged, RoundVoid
from covey.coordinator.run.effects import Announce, Effect, SendOrder
from covey.coordinator.run.run import Run
from covey.shared.errors import UserError, os_errors_as_user_errors
from covey.shared.mqtt.link import Link, Received
from covey.shared.strategies.base import ClientId
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.messages import OrderMessage, ReportContent
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit import spooled
from tests.kit.local_clients import report_on
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import (
    begun,
    clients,
    driver,
    fingerprint,
    in_process,
    local_for,
    rules,
    samples_of,
    scenario,
    setup,
)

ALL = {"participation": 1.0}


def flip(path: Path) -> None:
    """One bit of the file's last byte."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def orders_in(effects: list[Effect]) -> dict[ClientId, OrderMessage]:
    return {effect.client: effect.order for effect in effects if isinstance(effect, SendOrder)}


def report_of(run: Run, client: ClientId, order: OrderMessage) -> bytes:
    local = local_for(clients(scene=run.scenario))(client, order)
    return report_on(run, client, order, local)[0].to_bytes()


def half_reported(
    folder: Path, method: str = "fedavg", quorum: int = 1
) -> tuple[Run, dict[ClientId, OrderMessage]]:
    """A run whose open step has the reports of the first four of eight agents."""
    scene = scenario(method, rounds=ALL)
    laws = rules(scene, quorum=quorum)
    run = Run.start(folder, scene, setup(scene), rules=laws, run="r1", now=0.0)
    effects: list[Effect] = []
    for client in clients():
        run.members.of(client).samples = (24, 24)
        effects += run.handle(Joined(client), 0.0)
    orders = orders_in(effects)
    for client in sorted(orders)[:4]:
        run.accept(client, report_of(run, client, orders[client]), 0.0)
    return run, orders


def resumed(folder: Path) -> tuple[Run, list[Effect]]:
    scene = scenario("fedavg", rounds=ALL)
    run, effects = Run.resume(folder, scene, setup(scene), rules=rules(scene), now=0.0)
    run.members.note_samples(dict.fromkeys(clients(), (24, 24)))
    return run, effects


def reports_of(run: Run) -> Path:
    return spooled.file_of(run.folder, run.engine.number)


@pytest.mark.parametrize("damage", [spooled.flip, spooled.lose], ids=["damaged", "gone"])
def test_an_accepted_report_that_is_damaged_or_gone_after_a_kill_is_asked_for_again(
    tmp_path: Path, damage: Callable[[Path, str], None]
) -> None:
    run, before = half_reported(tmp_path)
    damage(reports_of(run), "agent-1")
    run, effects = resumed(tmp_path)
    orders = orders_in(run.desired())
    assert orders["agent-1"].step == before["agent-1"].step
    assert orders["agent-1"].accepted == before["agent-1"].accepted
    assert orders["agent-1"].again > before["agent-1"].again
    assert orders["agent-0"].accepted == before["agent-0"].step
    notices = [effect.notice for effect in effects if isinstance(effect, Announce)]
    reasons = [notice.why for notice in notices if isinstance(notice, ReportDamaged)]
    assert any("agent-1" in why for why in reasons) == (damage is spooled.flip)


def test_an_accepted_report_that_goes_while_the_run_is_at_work_is_asked_for_again_at_the_fold(
    tmp_path: Path,
) -> None:
    """CFL compares reports with each other, so its fold needs every one of them."""
    run, orders = half_reported(tmp_path, "cfl")
    *others, last = sorted(orders)
    for client in others[4:]:
        run.accept(client, report_of(run, client, orders[client]), 0.0)
    spooled.cut_before(reports_of(run), others[-1])
    effects = run.accept(last, report_of(run, last, orders[last]), 0.0)
    assert run.engine.round == 0
    gone = others[-1]
    again = orders_in(effects)[gone]
    assert (again.step, again.accepted) == (orders[gone].step, orders[gone].accepted)
    assert again.again > orders[gone].again
    run.accept(gone, report_of(run, gone, again), 0.0)
    assert run.engine.round == 1


def test_a_step_that_comes_to_nothing_needs_none_of_its_reports(tmp_path: Path) -> None:
    """Before: the reports were read to count their values, and one that was gone ended the run with a traceback."""
    run, _ = half_reported(tmp_path, quorum=8)
    spooled.flip(reports_of(run), "agent-0")
    spooled.cut_before(reports_of(run), "agent-1")
    step = run.engine.step
    assert step is not None
    effects: list[Effect] = []
    for client in clients():  # nobody else will report
        effects += run.handle(Left(client), 0.0)
    effects += run.handle(Tick(), 1e9)
    notices = [effect.notice for effect in effects if isinstance(effect, Announce)]
    assert [notice.step for notice in notices if isinstance(notice, RoundVoid)] == [step.number]
    size = run.setup.layout.size
    assert run.traffic["up_vectors"] == 4 * size


def test_a_report_that_is_in_the_sums_already_is_not_needed_again(tmp_path: Path) -> None:
    models = []
    for name in ("whole", "gone"):
        run, orders = half_reported(tmp_path / name)
        if name == "gone":
            reports_of(run).unlink()
        for client in sorted(orders)[4:]:
            run.accept(client, report_of(run, client, orders[client]), 0.0)
        assert run.engine.round == 1
        models.append(run.state.model.tobytes())
    assert models[0] == models[1]


def test_a_kill_after_reports_were_lost_and_saved_over_does_not_leave_them_accepted(
    tmp_path: Path,
) -> None:
    """The checkpoint lists folded reports as accepted; only the spool holds those of the open step."""
    run, orders = half_reported(tmp_path)
    run.store.changed()
    run.store.commit(run)
    shutil.rmtree(reports_of(run).parent)
    run, _ = resumed(tmp_path)
    assert {order.accepted for order in orders_in(run.desired()).values()} == {0}
    assert {order.step for order in orders_in(run.desired()).values()} == {orders["agent-1"].step}


def test_a_restart_whose_clock_went_back_gives_newer_orders_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_reported(tmp_path)
    first = resumed(tmp_path)[0].facts.incarnation
    monkeypatch.setattr(time, "time", lambda: 0.0)
    second = resumed(tmp_path)[0].facts.incarnation
    third = resumed(tmp_path)[0].facts.incarnation
    assert first < second < third


def test_an_older_folder_that_is_put_back_within_a_second_of_a_restart_gives_newer_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_reported(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "older")
    incarnations = []
    for folder, seconds in (("run", 7.5), ("older", 7.9)):
        monkeypatch.setattr(time, "time", lambda now=seconds: 1_700_000_000 + now)
        incarnations.append(resumed(tmp_path / folder)[0].facts.incarnation)
    assert incarnations[0] < incarnations[1]


def test_a_report_that_began_with_lost_memory_is_named_in_the_record(tmp_path: Path) -> None:
    run, orders = half_reported(tmp_path)
    effects: list[Effect] = []
    for client in sorted(orders)[4:]:
        content = report_of(run, client, orders[client])
        if client == "agent-5":
            content = (
                ReportContent.from_bytes(content, verified=True)
                .model_copy(update={"client_state": "lost"})
                .to_bytes()
            )
        effects += run.accept(client, content, 0.0)
    notices = [effect.notice for effect in effects if isinstance(effect, Announce)]
    (phase,) = [notice for notice in notices if isinstance(notice, PhaseFolded)]
    assert phase.client_state == {"agent-5": "lost"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which only root may have."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("this user may not mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_resume_on_a_read_only_disk_names_the_read_only_disk(small_disk: Path) -> None:
    """The message was that this is a file."""
    half_reported(small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(UserError, match="read-only"), os_errors_as_user_errors():
        resumed(small_disk / "run")


def test_a_run_on_a_full_disk_waits_and_ends_in_the_same_bytes(
    small_disk: Path, tmp_path: Path
) -> None:
    """It ended in a traceback: OSError 28."""
    scene = scenario("fedavg", rounds=ALL)
    calm = fingerprint(in_process(tmp_path / "calm", scene))
    ballast = small_disk / "ballast"
    said: list[str] = []

    def make_room(why: str) -> None:
        said.append(why)
        ballast.unlink(missing_ok=True)

    run, orders = half_reported(small_disk / "run")
    run.room.notify = make_room
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    waiting = {client: order for client, order in orders.items() if client in sorted(orders)[4:]}
    while waiting:
        client, order = waiting.popitem()
        effects = run.accept(client, report_of(run, client, order), 0.0)
        waiting |= {one: new for one, new in orders_in(effects).items() if new.work is not None}
    assert "no room is left" in said[0]
    assert "can be written to again" in said[1]
    assert run.engine.stage.value == "finished"
    assert fingerprint(run) == calm


# the service: frozen, and agents that have heard of another coordinator

DEADLINE_S = 30.0
FREEZE_S = 60.0


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something to become true, in virtual time."""
    while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.01)


def jump(seconds: float) -> None:
    """What a program sees that was stopped: time has passed, and nothing has happened."""
    loop: Any = asyncio.get_running_loop()
    loop._clock.now += seconds


def test_a_coordinator_that_was_frozen_beyond_its_deadline_voids_nothing(tmp_path: Path) -> None:
    scene = scenario(
        "fedavg", rounds={**ALL, "deadline_s": DEADLINE_S, "quorum": 8, "start_agents": 8}
    )
    calm = fingerprint(in_process(tmp_path / "calm", scene))

    async def program() -> tuple[Run, list[str]]:
        async with Fleet(tmp_path, scene, rules(scene), MemoryBroker(), clients()) as fleet:
            serving = asyncio.create_task(fleet.serve())
            await until(lambda: any(row["event"] == "phase" for row in fleet.rows))
            await asyncio.sleep(0.2)  # the next phase is open, nobody has reported it
            jump(FREEZE_S)
            run = await serving
            return run, [row["event"] for row in fleet.rows]

    run, events = clock.run(program(), within_s=3600)
    assert "void" not in events
    assert "frozen" in events
    assert fingerprint(run) == calm


def test_an_agent_that_answers_another_coordinators_roll_call_hears_this_one_again(
    tmp_path: Path,
) -> None:
    """It may have ignored what is retained, because that seems older than what it has seen."""
    scene = scenario("fedavg", rounds={"start_agents": 8, "timing": {"start_wait_s": 1000.0}})
    topics = Topics(scene.federation)

    async def program() -> int:
        broker = MemoryBroker()
        heard: list[CoordinatorStatus] = []
        async with Fleet(tmp_path, scene, rules(scene, start_agents=9), broker, clients()) as fleet:
            serving = asyncio.create_task(fleet.serve())
            await asyncio.sleep(30.0)
            async with broker.link("late") as link:
                listener = asyncio.create_task(listen(link, heard))
                await link.subscribe([topics.coordinator_status])
                status = AgentStatus(
                    agent="late", session="s", serial=1, online=True, epoch="somebody else's"
                )
                await link.publish(topics.status("late"), status.to_bytes(), retain=True)
                await asyncio.sleep(10.0)
                listener.cancel()
            assert fleet.service is not None
            fleet.service.stop()
            await asyncio.wait({serving})
        return len(heard)

    async def listen(link: Link, heard: list[CoordinatorStatus]) -> None:
        async for incoming in link.incoming():
            if (
                isinstance(incoming, Received)
                and incoming.topic == topics.coordinator_status
                and not incoming.retained
            ):
                heard.append(CoordinatorStatus.from_bytes(incoming.payload))

    assert clock.run(program(), within_s=3600) >= 1


def test_an_order_that_the_broker_did_not_take_is_published_again(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds=ALL)

    async def program() -> int:
        async with Fleet(tmp_path, scene, rules(scene), MemoryBroker(), clients()) as fleet:
            serving = asyncio.create_task(fleet.serve())
            await until(lambda: fleet.service is not None)
            link: Any = fleet.service.link  # type: ignore[union-attr]  # it was waited for
            publish, refused = link.publish, list[str]()

            async def picky(topic: str, payload: bytes, *, retain: bool = False) -> bool:
                if topic.endswith("agent-3/order") and len(refused) < 3:
                    refused.append(topic)
                    return False
                taken: bool = await publish(topic, payload, retain=retain)
                return taken

            link.publish = picky
            await serving
            return len(refused)

    assert clock.run(program(), within_s=60) == 3


def test_reports_leave_the_spool_once_a_checkpoint_is_past_their_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenario("fedavg", rounds={**ALL, "count": 2})
    played = driver(tmp_path, scene)
    run, drop = played.run, played.run.store.reports.drop
    dropped: list[int] = []

    def dropped_after_checkpoint(newest: int) -> None:
        step = run.store.checkpoint.facts()["engine"]["step"]
        assert step is None or step["number"] > newest
        dropped.append(newest)
        drop(newest)

    monkeypatch.setattr(run.store.reports, "drop", dropped_after_checkpoint)
    played.complete(samples_of(clients(scene=scene)))
    assert len(dropped) > 2


def test_a_pause_survives_a_kill(tmp_path: Path) -> None:
    scene = scenario("fedavg")
    run = begun(tmp_path / "run", scene)
    run.handle(Paused(), 1.0)
    # nothing else is written: the process is killed here
    again, _ = Run.resume(tmp_path / "run", scene, setup(scene), rules=rules(scene), now=2.0)
    assert again.engine.paused
