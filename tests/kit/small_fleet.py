"""A whole fleet in one event loop: the real coordinator service and real agents over a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from covey.agent.device.identity import Identity
from covey.agent.device.service import Agent
from covey.agent.policy import DEFAULT_RULES, OwnersRules
from covey.agent.worker.perform import perform
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.record.notices import Notice, Observer
from covey.coordinator.run.run import Run
from covey.coordinator.serve.service import Service, last_will
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.phase_names import EXCHANGES
from covey.shared.wire.jobs import (
    DataSource,
    DataSummary,
    FleetShare,
    InspectData,
    OrderAnswer,
    Perform,
)
from covey.shared.wire.messages import OrderMessage
from covey.shared.wire.topics import Topics
from covey.shared.work.at_hand import AtHand
from tests import clock
from tests.bowl import Trainer
from tests.kit.local_clients import Client
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_run import clients, local_for, rules, setup

PATIENT = {
    "absence_s": 3600.0,
    "rollcall_s": 3600.0,
    "deadline_s": 36_000.0,
}  # so that nobody counts as gone


def share_of(client: ClientId) -> FleetShare:
    """The data of a client in this process."""
    return FleetShare(scenario=Path(client))


def client_of(source: DataSource) -> ClientId:
    """The client whose data this is."""
    assert isinstance(source, FleetShare)
    return source.scenario.name


class Numpy:
    """The pool's jobs in numpy, in this process; `takes_s` of virtual time each."""

    def __init__(
        self,
        people: Mapping[ClientId, Trainer],
        takes_s: float = 0.5,
        held_back: Mapping[ClientId, Trainer] | None = None,
    ) -> None:
        self.people, self.takes_s, self.held_back = people, takes_s, held_back or {}
        self.worked: list[tuple[ClientId, int]] = []  # (client, step)
        self.ahead: set[ClientId] = set()  # whose work for a secure sum is done

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, InspectData):
            await asyncio.sleep(self.takes_s)
            local = self.people[client_of(job.source)]
            labels = sorted({str(label) for label in local.targets("train").tolist()})
            return DataSummary(samples=local.examples, test_samples=local.examples, labels=labels)
        if job.ahead:  # a worker reads its files at once: the next order may not name them
            done = self.perform(job)
            await asyncio.sleep(self.takes_s)
            return done
        await asyncio.sleep(self.takes_s if self._takes_time(job) else 0.0)
        return self.perform(job)

    def _takes_time(self, job: Perform) -> bool:
        """Whether it is neither an exchange of messages nor work that was done ahead."""
        work = OrderMessage.from_bytes(job.order).work
        if work is not None and work.phase in EXCHANGES:
            return False
        is_ahead = job.client in self.ahead
        self.ahead.discard(job.client)
        return not is_ahead

    def perform(self, job: Perform) -> OrderAnswer:
        """The work of an order, as a worker does it."""
        order = OrderMessage.from_bytes(job.order)
        if job.ahead:
            self.ahead.add(job.client)
        else:
            self.worked.append((job.client, order.step))
        return perform(job, self.client(job, order))

    def client(self, job: Perform, order: OrderMessage) -> Client:
        """Who does this work."""
        local = local_for(self.people)(job.client, order)
        return Client(
            client=job.client,
            given=AtHand(local, self.held_back.get(job.client)),
            rules=OwnersRules.of_job(job.rules),
            secure=job.secure,
            ahead=job.ahead,
            clock=asyncio.get_running_loop().time,
        )


class Fleet:
    """Open it as a context; `serve` runs the coordinator until it is over or stopped."""

    def __init__(
        self,
        folder: Path,
        scene: Scenario,
        own_rules: RoundRules | None = None,
        broker: MemoryBroker | None = None,
        people: Mapping[ClientId, Trainer] | None = None,
    ) -> None:
        self.folder, self.scene, self.rules = folder, scene, own_rules or rules(scene)
        self.broker = broker or MemoryBroker()
        self.people = clients(scene=scene) if people is None else people
        self.pool = Numpy(self.people)  # does the agents' jobs
        self.sources: dict[ClientId, DataSource] = {one: share_of(one) for one in self.people}
        self.device_rules = DEFAULT_RULES
        self.prefix = ""  # of client ids, where several fleets share a broker
        self.late: set[ClientId] = set()  # who does not join at the start
        self.agents: dict[ClientId, Agent] = {}
        self.rows: list[Mapping[str, Any]] = []
        self.service: Service | None = None
        self._stack = AsyncExitStack()
        self.lives: dict[ClientId, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Fleet:
        for client in self.people:
            if client not in self.late:
                self.join(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self.agents.values():
            agent.stop()
        await asyncio.gather(*self.lives.values(), return_exceptions=True)

    def join(self, client: ClientId, session: str = "") -> None:
        """Start an agent, for the first time or again with its state on disk; `session` names this life."""
        state = self.folder / "agents" / client
        state.mkdir(parents=True, exist_ok=True)
        source = self.sources[client]
        identity = Identity(client, self.scene.federation, source, state, durable=False)
        name = session or f"{client}-{len(self.lives)}"
        agent = Agent(identity, self.pool, session=name, rules=self.device_rules)
        self.agents[client] = agent
        self.lives[client] = asyncio.create_task(self._live(client, agent))

    async def _live(self, client: ClientId, agent: Agent) -> None:
        async with self.broker.link(self.prefix + client, agent.will) as link:
            await agent.run(link)

    async def vanish(self, client: ClientId) -> None:
        """A power cut."""
        await self.agents[client].vanish()
        await self.lives[client]

    def _keep(self, notice: Notice) -> None:
        self.rows.append(notice.to_json())

    def events(self, name: str) -> list[Mapping[str, Any]]:
        """Those of the coordinator's notices that are of this kind, in their order."""
        return [row for row in self.rows if row["event"] == name]

    async def opens(self, step: int) -> None:
        """Wait until the agents work on a step."""
        while not any(number == step for _, number in self.pool.worked):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)

    @property
    def serving(self) -> Service:
        """The newest one that has served."""
        assert self.service is not None
        return self.service

    async def serve(self, run: Run | None = None, observer: Observer | None = None) -> Run:
        """A coordinator's life: a new run, or the one given, until it is over or stopped."""
        now = asyncio.get_running_loop().time()
        this = run or Run.start(
            self.folder / "run", self.scene, setup(self.scene), rules=self.rules, run="r1", now=now
        )
        will = last_will(Topics(self.scene.federation), this)
        async with self.broker.link(f"{self.prefix}coordinator", will) as link:
            self.service = Service(this, link, observer=observer or self._keep)
            why = await self.service.serve()
        assert not why, why
        return this


Story = Callable[[Fleet], Coroutine[Any, Any, Any]]


def played(fleet: Fleet, story: Story | None = None) -> Run:
    """A whole run on a virtual clock, with things that happen in the meantime."""

    async def whole() -> Run:
        async with fleet, asyncio.TaskGroup() as group:
            serving = group.create_task(fleet.serve())
            if story is not None:
                group.create_task(story(fleet))
            return await serving

    return clock.run(whole(), within_s=36_000)


def over_the_wire(folder: Path, scene: Scenario, **habits: float) -> Run:
    """The whole run with the scenario's usual agents over a broker with these habits, on a virtual clock."""
    return played(Fleet(folder, scene, rules(scene, **PATIENT), MemoryBroker(seed=5, **habits)))
