"""The world of one history: a loop, brokers, and processes that can be killed."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

from covey.agent.device.service import Agent
from covey.broker.testing.memory_broker import HELD_S, MemoryBroker, MemoryLink
from covey.coordinator.aggregate.service import AggregatorService
from covey.coordinator.aggregate.service import last_will as aggregator_will
from covey.coordinator.run.notices import Notice
from covey.coordinator.run.run import Run
from covey.coordinator.serve.service import Service, last_will
from covey.coordinator.serve.sharded_link import ShardedLink
from covey.shared.errors import UserError
from covey.shared.mqtt.link import Message
from covey.shared.mqtt.shards import shard_of
from covey.shared.wire.topics import Topics
from tests import clock
from tests.simulator.plan import HABITS, Fault, Plan
from tests.small_fleet import PATIENT, Fleet
from tests.small_run import clients, fingerprint, in_process, rules, scenario, setup

TOPICS = Topics("default")
AGENTS = 3
LIMIT_S = 30_000.0  # below the deadline of a step: a report that never comes is a stand-still
WALL_S = 1_700_000_000.0  # what the wall clock shows at virtual zero
LONGEST_CALL_S = 0.2  # off the loop


@dataclass(eq=False)
class Life:
    """A process from its start to its kill."""

    name: str
    killed: bool = False


OWNER: ContextVar[Life | None] = ContextVar("OWNER", default=None)  # whose call it is


class SeededLoop(clock.VirtualLoop):
    """Calls off the loop end after a delay; those of a killed process do nothing."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._delays = random.Random(f"delays {seed}")  # noqa: S311  bad luck, no secrets

    def run_in_executor(  # type: ignore[override]  # as in the loop below
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()
        owner = OWNER.get()

        def end() -> None:
            if owner is not None and owner.killed:
                return
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self._delays.uniform(0.001, LONGEST_CALL_S), end)
        return future


class FaultyBroker(MemoryBroker):
    """A broker whose deliveries go wrong."""

    def __init__(self, seed: int, faults: tuple[Fault, ...], struck: Counter[str]) -> None:
        super().__init__(seed)
        self.habits = {fault.kind: fault.chance for fault in faults if fault.kind in HABITS}
        self.struck = struck

    def _strikes(self, kind: str) -> bool:
        if not self._chance(self.habits.get(kind, 0.0)):
            return False
        self.struck[kind] += 1
        return True

    def _deliver(self, link: MemoryLink, message: Message) -> None:
        if self._strikes("lost"):
            link._lose("the broker lost the session")
            return
        late_s = self.random.uniform(0, HELD_S) if self._strikes("late") else 0.0
        link._receive(message, late_s)
        if self._strikes("doubled"):
            link._receive(message, self.random.uniform(0, HELD_S))


@dataclass
class History:
    """What came of a plan."""

    failure: str = ""  # empty: every invariant held
    story: list[str] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)

    @property
    def digest(self) -> str:
        """Of the story: equal for two runs of one seed in any process."""
        return hashlib.sha256("\n".join(self.story).encode()).hexdigest()


class World(Fleet):
    """A fleet with processes that are killed and started again according to the plan."""

    def __init__(self, folder: Path, plan: Plan, history: History) -> None:
        scene = scenario(
            plan.method, rounds={"count": 2, "participation": 1.0, "start_agents": AGENTS}
        )
        self.plan, self.history = plan, history
        self.brokers = [
            FaultyBroker(plan.seed * 10 + shard, plan.faults, history.struck)
            for shard in range(plan.shards)
        ]
        people = clients(AGENTS, scene)
        super().__init__(folder, scene, rules(scene, **PATIENT), self.brokers[0], people)
        self._incarnation = 0
        # round and models that each report counted for, by its digest
        self._accepted: dict[str, dict[str, str]] = {}
        self._coordinating: asyncio.Task[None] | None = None
        self._owner = Life("coordinator")
        self._links: list[MemoryLink] = []
        self._aggregating: dict[int, tuple[asyncio.Task[None], list[MemoryLink]]] = {}
        self.ended: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self.run_folder = folder / "run"

    def say(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        self.history.story.append(f"{now:10.3f}  {text}")

    def _keep(self, notice: Notice) -> None:
        self.say(str(sorted(notice.to_json().items(), key=lambda item: item[0])))

    # -- processes ---------------------------------------------------------------------------------

    async def _live(self, client: str, agent: Agent) -> None:
        OWNER.set(Life(client))
        broker = self.brokers[shard_of(client, len(self.brokers))]
        async with broker.link(client, agent.will) as link:
            await agent.run(link)

    def start_coordinator(self, name: str = "coordinator", *, fresh: bool = False) -> None:
        self._owner, self._links = Life(name), []
        self._coordinating = asyncio.create_task(
            self._coordinate(self._owner, self._links, self.run_folder, fresh=fresh)
        )

    async def _coordinate(
        self, owner: Life, links: list[MemoryLink], folder: Path, *, fresh: bool
    ) -> None:
        OWNER.set(owner)
        now = asyncio.get_running_loop().time()
        try:
            if fresh:
                start = setup(self.scene)
                run, first = Run.start(folder, self.scene, start, self.rules, "r1", now), []
            else:
                run, effects = Run.resume(folder, self.scene, setup(self.scene), self.rules, now)
                first = list(effects)
            self._watch(run)
            if run.facts.incarnation <= self._incarnation and not fresh:
                raise AssertionError("an incarnation did not grow")
            self._incarnation = run.facts.incarnation
            async with AsyncExitStack() as stack:
                for broker in self.brokers:
                    link = broker.link(owner.name, last_will(TOPICS))
                    links.append(await stack.enter_async_context(link))
                link = links[0]
                merged = (
                    link
                    if len(links) == 1
                    else await stack.enter_async_context(ShardedLink(links, TOPICS))
                )
                service = Service(
                    run, merged, observer=self._keep, aggregators=self.plan.aggregators
                )
                why = await service.serve(first)
            if why is not None and not self.ended.done():
                assert not why, why
                self.ended.set_result(run)
        except UserError as error:
            self.say(f"{owner.name} ends: {error}")
        except Exception as error:
            if not owner.killed and not self.ended.done():
                self.ended.set_exception(error)

    def _watch(self, run: Run) -> None:
        """Compare what all coordinators of the run accept: a report belongs to the models that it came from."""
        note = run.audit.note

        def watched(event: str, **fields: Any) -> None:
            note(event, **fields)
            if event != "accept":
                return
            now = {"round": str(run.engine.round), **run.orders.digests()}
            first = self._accepted.setdefault(fields["report"], now)
            # models are encoded when an order names them: a key that one side lacks shows nothing
            differs = [key for key in first.keys() & now.keys() if first[key] != now[key]]
            if differs and not self.ended.done():
                why = f"a report of {fields['agent']} counts for two: {sorted(differs)}"
                self.ended.set_exception(AssertionError(why))

        run.audit.note = watched  # type: ignore[method-assign]

    async def kill_coordinator(self) -> None:
        self._owner.killed = True
        for link in self._links:
            await link.abort()
        if self._coordinating is not None:
            self._coordinating.cancel()
            await asyncio.wait({self._coordinating})

    def aggregate(self, shard: int) -> None:
        links: list[MemoryLink] = []
        session = f"s{shard}-{len(self.history.story)}"
        self._aggregating[shard] = (
            asyncio.create_task(self._aggregate(shard, session, links)),
            links,
        )

    async def _aggregate(self, shard: int, session: str, links: list[MemoryLink]) -> None:
        OWNER.set(Life(session))
        will = aggregator_will(TOPICS, session)
        async with self.brokers[shard].link(f"aggregator-{session}", will) as link:
            links.append(link)
            await AggregatorService(link, TOPICS, session).run()

    async def kill_aggregator(self, shard: int) -> None:
        task, links = self._aggregating[shard]
        for link in links:
            await link.abort()
        task.cancel()
        await asyncio.wait({task})

    # -- the plan ----------------------------------------------------------------------------------

    async def strike(self, fault: Fault) -> None:
        """Carry out one fault, and what undoes it."""
        await asyncio.sleep(fault.at)
        if self.ended.done():
            return
        shard = fault.target % len(self.brokers)
        broker, client = self.brokers[shard], f"agent-{fault.target}"
        match fault.kind:
            case "cut" | "part":
                connected = broker.clients
                if not connected:
                    return
                victim = connected[fault.target % len(connected)]
                broker.part(victim, fault.lasts if fault.kind == "part" else 0.0)
            case "kill agent":
                if self.agents[client].vanished:
                    return
                await self.vanish(client)
                await asyncio.sleep(fault.lasts)
                self.join(client)
            case "kill coordinator":
                if self._owner.killed:
                    return
                await self.kill_coordinator()
                await asyncio.sleep(fault.lasts)
                self.start_coordinator()
            case "kill aggregator":
                if shard not in self._aggregating:
                    return
                await self.kill_aggregator(shard)
                await asyncio.sleep(fault.lasts)
                self.aggregate(shard)
            case "restart broker" | "clear retained":
                broker.restart(fault.kind == "restart broker", away_s=fault.lasts)
            case "power cut":  # of the machine with a broker and its aggregator, which stays away
                if shard not in self._aggregating:
                    return
                broker.restart(away_s=fault.lasts)
                await self.kill_aggregator(shard)
                del self._aggregating[shard]
            case "copy folder":
                if self._owner.killed or self.plan.faults.index(fault) != self._first_copy():
                    return
                for one in self.brokers:  # the old one loses its network, and comes back
                    one.part(self._owner.name, fault.lasts)
                copy = self.folder / "copy"
                shutil.copytree(self.run_folder, copy)
                self.run_folder = copy
                self.start_coordinator("copy")
        self.history.struck[fault.kind] += 1
        self.say(f"fault: {fault}")

    def _first_copy(self) -> int:
        kinds = [fault.kind for fault in self.plan.faults]
        return kinds.index("copy folder")

    async def whole(self) -> Run:
        """The history, from the first start to the end of the run."""
        if self.plan.aggregators:
            for shard in range(len(self.brokers)):
                self.aggregate(shard)
        async with self:
            self.start_coordinator(fresh=True)
            events = [fault for fault in self.plan.faults if fault.kind not in HABITS]
            striking = [asyncio.create_task(self.strike(fault)) for fault in events]
            try:
                async with asyncio.timeout(LIMIT_S):
                    run = await self.ended
                    for task in striking:
                        if task.done():
                            task.result()
            finally:
                leftover = [*striking, *(task for task, _ in self._aggregating.values())]
                if self._coordinating is not None:
                    leftover.append(self._coordinating)
                for task in leftover:
                    task.cancel()
                await asyncio.gather(*leftover, return_exceptions=True)
            return run


@contextmanager
def one_seed(loop: SeededLoop, seed: int) -> Iterator[None]:
    """Wall clock, stop watch and tokens of the product come from the seed and the loop."""
    draw = random.Random(f"tokens {seed}")  # noqa: S311  bad luck, no secrets
    with (
        patch("time.time", lambda: WALL_S + loop.time()),
        patch("time.monotonic", loop.time),
        patch("secrets.token_hex", lambda count=32: draw.randbytes(count).hex()),
        patch("uuid.uuid4", lambda: UUID(bytes=draw.randbytes(16))),
    ):
        yield


_calm: dict[str, list[bytes]] = {}


def calm(method: str) -> list[bytes]:
    """The bytes of a method's run in one process, without any fault."""
    if method not in _calm:
        scene = scenario(method, rounds={"count": 2, "participation": 1.0, "start_agents": AGENTS})
        with tempfile.TemporaryDirectory() as folder:
            _calm[method] = fingerprint(in_process(Path(folder), scene, AGENTS))
    return _calm[method]


def play(plan: Plan) -> History:
    """Play a plan to its end, and judge it."""
    history = History()
    expected = calm(plan.method)
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    loop = SeededLoop(plan.seed)
    with (
        tempfile.TemporaryDirectory(dir=place) as folder,
        one_seed(loop, plan.seed),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):

        async def program() -> Run:
            return await World(Path(folder), plan, history).whole()

        try:
            run = runner.run(program())
        except TimeoutError:
            history.failure = f"stand-still: not over after {LIMIT_S:.0f} virtual seconds"
        except Exception as error:
            history.failure = f"{type(error).__name__}: {error}"
        else:
            if fingerprint(run) != expected:
                history.failure = "the bytes are not those of the calm run"
        history.story = [line.replace(folder, "FOLDER") for line in history.story]
    return history
