"""A coordinator that restarts with many agents: nobody's status is dropped, and reports do not wait for all orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.record.notices import Notice, PhaseFolded, RunWaits
from covey.coordinator.run.effects import Announce, Effect, SendOrder
from covey.coordinator.run.run import Run
from covey.coordinator.serve import attendance, service
from covey.coordinator.serve.service import TURN_S, Service
from covey.shared.mqtt import program
from covey.shared.wire.messages import OrderMessage
from tests import clock
from tests.kit.memory_broker import MemoryBroker, MemoryLink
from tests.kit.small_fleet import PATIENT, Fleet
from tests.kit.small_run import begun, clients, rules, scenario, setup

AGENTS = 40
ORDER_S = 1.0  # that a slow broker takes for an order
Prepare = Callable[[], None]


def after_a_restart(folder: Path, prepare: Prepare) -> tuple[float, dict[str, int]]:
    """Stop a coordinator while agents train, `prepare`, and resume: seconds until the next fold, and the refusals."""
    scene = scenario("fedavg", rounds={"participation": 0.05, "start_agents": AGENTS, "count": 2})
    patient = rules(scene, **PATIENT)

    async def program() -> tuple[float, dict[str, int]]:
        loop = asyncio.get_running_loop()
        fleet = Fleet(folder, scene, patient, MemoryBroker(), clients(AGENTS))
        folds: list[float] = []

        def observe(notice: Notice) -> None:
            if isinstance(notice, PhaseFolded):
                now = loop.time()
                folds.append(now)

        fleet.pool.takes_s = 2.0
        async with fleet, asyncio.TaskGroup() as group:
            first = group.create_task(fleet.serve())
            await asyncio.sleep(3.0)  # agents have been inspected, and two of them train
            assert fleet.service is not None
            assert fleet.service.run.engine.step is not None
            fleet.service.stop()
            await first
            prepare()
            began = loop.time()
            again, _ = Run.resume(folder / "run", scene, setup(scene), rules=patient, now=began)
            await fleet.serve(again, observe)
            return folds[0] - began, dict(fleet.service.roster.refusals)

    return clock.run(program())


def test_agents_that_the_run_knows_are_not_limited_as_unknown_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit() -> None:
        monkeypatch.setattr("covey.coordinator.serve.rate.UNKNOWN_STATUSES", (0.01, 5.0))

    _, refusals = after_a_restart(tmp_path, limit)
    assert refusals == {}


def test_reports_do_not_wait_until_every_idle_agent_has_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = MemoryLink.publish

    async def slowly(self: MemoryLink, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        if topic.endswith("/order"):
            await asyncio.sleep(ORDER_S)
        return await publish(self, topic, payload, retain=retain)

    def slow_down() -> None:
        monkeypatch.setattr(service, "ORDERS_AT_ONCE", 1)
        monkeypatch.setattr(program, "AT_ONCE", 1)
        monkeypatch.setattr(MemoryLink, "publish", slowly)

    fold_s, _ = after_a_restart(tmp_path, slow_down)
    assert fold_s < AGENTS * ORDER_S / 2


def order(client: str, step: int) -> SendOrder:
    message = OrderMessage(run="r", step=step, accepted=0, closed=0)
    return SendOrder(client, message)


def test_orders_with_work_do_not_wait_and_the_newest_accepted_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path, scenario("fedavg"))
    for client, step in {"old": 1, "newest": 3}.items():
        run.members.of(client).accepted = step
    notice = Announce(RunWaits("nobody is there", 1))
    works = order("works", 3)
    effects: list[Effect] = [order("new", 0), notice, order("old", 0), works, order("newest", 0)]

    async def act() -> None:
        async with MemoryBroker().link("coordinator") as link:
            one = Service(run, link)
            assert attendance._idle_later(one.desk, effects) == [notice, works]
            monkeypatch.setattr(service, "ORDERS_AT_ONCE", 2)
            monkeypatch.setattr(service, "orders_of", lambda desk, clients: list(clients))
            turns: Any = [one._orders_in_turn(at) for at in (0.0, 0.0, TURN_S)]
            assert turns == [["newest", "old"], [], ["new"]]

    asyncio.run(act())


def test_a_fleet_trains_again_within_ten_seconds_of_its_brokers_return(tmp_path: Path) -> None:
    away_s = 300.0
    scene = scenario("fedavg", rounds={"count": 200, "participation": 1.0, "start_agents": 8})

    async def program() -> tuple[float, int]:
        loop, folds = asyncio.get_running_loop(), asyncio.Queue[float]()

        def observe(notice: Notice) -> None:
            if isinstance(notice, PhaseFolded):
                folds.put_nowait(loop.time())

        broker = MemoryBroker(seed=3)
        fleet = Fleet(tmp_path, scene, rules(scene), broker, clients(scene=scene))
        fleet.pool.takes_s = 1.0
        async with fleet, asyncio.TaskGroup() as group:
            serving = group.create_task(fleet.serve(observer=observe))
            await asyncio.sleep(3.0)
            broker.restart(away_s=away_s)
            await asyncio.sleep(away_s)
            while not folds.empty():
                folds.get_nowait()
            stood_s = await folds.get() - broker.back_at
            online = len(broker.clients)
            serving.cancel()
        return stood_s, online

    stood_s, online = clock.run(program())
    assert stood_s < 10
    assert online == 9


def test_from_the_link_to_the_last_fold_a_run_waits_for_nothing_but_its_agents(
    tmp_path: Path,
) -> None:
    """No time passes on the clock of a fleet whose work takes none, also in a second run on the same task."""
    scene = scenario("fedavg", rounds={"count": 1, "participation": 1.0, "start_agents": 8})

    async def program() -> list[float]:
        fleet, took = Fleet(tmp_path, scene, rules(scene), people=clients(scene=scene)), []
        fleet.pool.takes_s = 0.0
        async with fleet:
            for run in ("first", "second"):
                begin = asyncio.get_running_loop().time()
                this = Run.start(
                    tmp_path / run, scene, setup(scene), rules=fleet.rules, run=run, now=begin
                )
                await fleet.serve(this)
                took.append(asyncio.get_running_loop().time() - begin)
        return took

    assert max(clock.run(program(), within_s=600.0)) < 0.05
