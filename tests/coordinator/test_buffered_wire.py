"""Buffered rounds over a broker, with real agents of different speed; and replays of what happened, to the byte."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.disk import spool
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.report_file import ReportFile
from covey.coordinator.run.effects import SendOrder
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.orders import OrderBook
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase
from covey.shared.wire.jobs import Perform
from tests import clock
from tests.kit import small_run
from tests.kit.local_clients import LocalClients
from tests.kit.memory_broker import MemoryBroker
from tests.kit.replay import Arrivals, Replay, Restarted, noted
from tests.kit.small_fleet import Fleet, Numpy
from tests.kit.small_run import fingerprint

AGENTS = 4
SECONDS = {"agent-0": 0.2, "agent-1": 0.3, "agent-2": 1.0, "agent-3": 5.0}  # for each order


class Uneven(Numpy):
    """Agents that take different times."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        self.takes_s = SECONDS[job.client] if isinstance(job, Perform) else 0.0
        return await super().call(job, weight=weight)


scenario = partial(
    small_run.buffered,
    rounds={
        "buffer": 2,
        "count": 8,
        "start_agents": AGENTS,
        "deadline_s": 60.0,
        "timing": {"rollcall_s": 5.0},
    },
    fleet={"agents": AGENTS, "durations": None},
)


def people() -> Mapping[ClientId, Any]:
    return small_run.clients(AGENTS)


def fleet_of(folder: Path, scene: Scenario) -> Fleet:
    fleet = Fleet(folder, scene, rules_of(scene), MemoryBroker(seed=5), people())
    fleet.pool = Uneven(people())
    return fleet


def started(folder: Path, scene: Scenario) -> Run:
    now = asyncio.get_running_loop().time()
    return small_run.begun(folder, scene, now=now)


@pytest.fixture
def arrivals() -> Iterator[Arrivals]:
    with noted() as found:
        yield found


def replayed(folder: Path, of: Run, arrivals: Arrivals) -> Run:
    run = small_run.begun(folder, of.scenario, name=IN_PROCESS)
    samples = {client: (local.examples, local.examples) for client, local in people().items()}
    clients = LocalClients(small_run.local_for(people()))
    return Replay(run, clients).play(samples, arrivals[of.folder])


@pytest.mark.whole
@pytest.mark.parametrize("method", ["fedavg", "kin"])
def test_slow_agents_hold_no_other_up_and_the_replay_has_the_same_bytes(
    tmp_path: Path, arrivals: Arrivals, method: str
) -> None:
    scene = scenario(method)

    async def whole() -> tuple[Fleet, Run]:
        async with fleet_of(tmp_path, scene) as fleet:
            run = await fleet.serve(started(tmp_path / "run", scene))
            return fleet, run

    fleet, run = clock.run(whole())
    reporters: list[str] = []
    staleness: list[int] = []
    for row in fleet.rows:
        if row.get("staleness"):
            reporters += row["reported"]
            staleness += row["staleness"]
    assert run.engine.round == 8
    assert reporters.count("agent-0") > reporters.count("agent-3")
    if method == "fedavg":
        assert max(staleness) > 0
    retained = [topic for topic, _ in fleet.broker.retained.matching("covey/default/clusters/#")]
    versions = [topic for topic in retained if "." in topic]
    assert versions
    assert len(versions) <= AGENTS + 2  # versions that no order names are cleared
    assert fingerprint(replayed(tmp_path / "replay", run, arrivals)) == fingerprint(run)


def test_the_evaluation_of_the_slowest_is_not_waited_for(
    tmp_path: Path, arrivals: Arrivals
) -> None:
    """The slowest agent takes five seconds for its order and then for its evaluation; the others train meanwhile."""
    scene = scenario("fedavg", evaluation={"every": 2})

    async def whole() -> tuple[Fleet, Run]:
        async with fleet_of(tmp_path, scene) as fleet:
            return fleet, await fleet.serve(started(tmp_path / "run", scene))

    fleet, run = clock.run(whole())
    assert run.facts.trains_on
    evaluations = {row["step"] for row in fleet.rows if row.get("phase") == "evaluate"}
    first, *_ = sorted(evaluations)
    assert isinstance(fleet.pool, Uneven)
    worked = fleet.pool.worked
    slowest = worked.index(("agent-3", first))
    meanwhile = [step for _, step in worked[:slowest] if step > first]
    assert meanwhile
    assert fingerprint(replayed(tmp_path / "replay", run, arrivals)) == fingerprint(run)


class Watched(OrderBook):
    """Notes which orders of single agents were brief."""

    def __init__(self, *arguments: Any, **parts: Any) -> None:
        super().__init__(*arguments, **parts)
        self.made: set[int] = set()  # numbers
        self.brief: set[int] = set()  # of these, those that were brief
        self.outdated: list[SendOrder] = []  # of agents at work, during an evaluation

    def make(self, client: ClientId, number: int, phase: Phase, state: Any) -> None:
        super().make(client, number, phase, state)
        self.made.add(number)

    def order_of(self, client: ClientId, state: Any) -> SendOrder:
        send = super().order_of(client, state)
        if send.order.brief is None:
            return send
        self.brief.add(send.order.step)
        for worker, order in self._engine.pace.orders.items():
            if self.is_outdated(order.step):
                self.outdated.append(super().order_of(worker, state))
        return send


@pytest.mark.parametrize("lr", [None, 0.05])
def test_orders_are_brief_while_brokers_retain_what_they_leave_out(
    tmp_path: Path, arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch, lr: float | None
) -> None:
    """If evaluations train at another rate, orders of rounds that are published meanwhile are whole."""
    tune = {} if lr is None else {"lr": lr}
    scene = scenario("fedavg", evaluation={"every": 2, "tune": tune})

    async def whole() -> Run:
        now = asyncio.get_running_loop().time()
        start = small_run.setup(scene)
        monkeypatch.setattr("covey.coordinator.run.parts.OrderBook", Watched)
        run = Run.start(tmp_path / "run", scene, start, rules=rules_of(scene), run="r1", now=now)
        monkeypatch.undo()
        async with fleet_of(tmp_path, scene) as fleet:
            return await fleet.serve(run)

    run = clock.run(whole())
    orders = run.orders
    assert isinstance(orders, Watched)
    assert run.engine.round == 8
    whole_ones = orders.made - orders.brief
    assert bool(whole_ones) == bool(tune)
    assert bool(orders.outdated) == bool(tune)
    assert len(whole_ones) < len(orders.made) / 2
    assert all(send.order.work is not None for send in orders.outdated)
    assert fingerprint(replayed(tmp_path / "replay", run, arrivals)) == fingerprint(run)


@pytest.mark.parametrize(
    ("every", "is_lost"),
    [(0, False), (2, False), (0, True)],
    ids=["between folds", "during an evaluation", "with the reports that waited lost"],
)
def test_a_coordinator_that_is_restarted_over_a_broker_can_be_replayed(
    tmp_path: Path, arrivals: Arrivals, every: int, is_lost: bool
) -> None:
    scene = scenario("fedavg", evaluation={"every": every})
    folder = tmp_path / "run"

    async def whole() -> Run:
        async with fleet_of(tmp_path, scene) as fleet:
            serving = asyncio.create_task(fleet.serve(started(folder, scene)))
            await asyncio.sleep(1.0 if is_lost else 2.0)
            assert fleet.service is not None
            while is_lost and not fleet.service.run.store.reports.kept:  # noqa: ASYNC110 - time is virtual
                await asyncio.sleep(0.01)
            assert 0 < fleet.service.run.engine.round < 8
            fleet.service.stop()
            await serving
            await asyncio.sleep(2.0)
            if is_lost:
                shutil.rmtree(folder / "spool")
            now = asyncio.get_running_loop().time()
            rules = rules_of(scene)
            run, _ = Run.resume(folder, scene, small_run.setup(scene), rules=rules, now=now)
            return await fleet.serve(run)

    run = clock.run(whole())
    restarts = [a.event for a in arrivals[folder] if isinstance(a.event, Restarted)]
    assert [bool(restart.lost) for restart in restarts] == [is_lost]
    assert run.engine.round == 8
    assert fingerprint(replayed(tmp_path / "replay", run, arrivals)) == fingerprint(run)


def test_reports_are_synced_before_a_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def watch(owner: Any, name: str, word: str) -> None:
        real = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            happened.append(word)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(ReportFile, "append", "append")
    watch(spool, "sync_files", "sync")
    watch(Checkpoint, "save", "save")
    scene = scenario("fedavg")

    async def whole() -> Run:
        async with fleet_of(tmp_path, scene) as fleet:
            return await fleet.serve(started(tmp_path / "run", scene))

    clock.run(whole())
    assert ("append", "sync") in pairwise(happened)
    assert ("append", "save") not in pairwise(happened)


def test_another_order_of_arrivals_gives_another_model(tmp_path: Path) -> None:
    """The replay test would be worth nothing if the order did not matter."""
    run = small_run.in_process(tmp_path / "run", small_run.buffered("fedavg"))
    slower = small_run.buffered("fedavg", fleet={"durations": {"median_s": 1.0, "sigma": 0.5}})
    other = small_run.in_process(tmp_path / "other", slower)
    assert fingerprint(run) != fingerprint(other)


def test_a_report_that_is_damaged_while_it_waits_in_a_buffer_is_asked_for_again(
    tmp_path: Path,
) -> None:
    """The coordinator lives on, and finds the damage when it folds the buffer."""
    scene = scenario("fedavg")

    async def whole() -> Run:
        async with fleet_of(tmp_path, scene) as fleet:
            serving = asyncio.create_task(fleet.serve(started(tmp_path / "run", scene)))
            await asyncio.sleep(0.25)  # the first report waits for the second
            damage_reports(tmp_path / "run")
            return await serving

    assert clock.run(whole(), within_s=600).engine.round == 8


def damage_reports(folder: Path) -> None:
    """Change the last bit of the only report in the spool."""
    (path,) = folder.glob("spool/*/reports")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
