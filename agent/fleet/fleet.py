"""A simulated fleet: real agents in one process, each with a link of its own to a real broker, and shared workers.

Only two things differ from devices: the data comes from the scenario's partition, and faults happen on its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from covey.agent.device import notices as n
from covey.agent.device.identity import Identity
from covey.agent.device.model_store import ReceivedModels
from covey.agent.device.service import Agent, NameTakenError
from covey.agent.learner_choice import TORCH
from covey.agent.policy import UNLIMITED, OwnersRules
from covey.agent.worker.pool import Pool, PoolLike, check_device
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.link import Down, Link, Received, Up, Will
from covey.shared.mqtt.mqtt_link import BrokerUrl, MqttLink
from covey.shared.mqtt.shards import shard_of
from covey.shared.own_code.consent import NO_CODE, AllowedCode
from covey.shared.programs.child import cores, stop_signals
from covey.shared.scenario.code import check_code
from covey.shared.scenario.fleet import Fleet, Timeline
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.jobs import Failure, FleetShare, WritePartition
from covey.shared.wire.messages import OrderMessage
from covey.shared.wire.topics import AgentTopic, Topics

# -- the faults and the timeline of a simulated fleet ----------------------------------------------


class FaultPlan:
    """Which agents of a fleet are slow, late or cut off, and who is present in which round.

    Args:
        fleet: the fleet section of a scenario.
        seed: the scenario's seed.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        faults = fleet.faults
        self._faults = faults
        self._agents = fleet.agents
        self._timelines = _by_agent(fleet.timeline)
        self._seed = seed
        self._slow = self._draw_agents("slow", faults.slow)  # indices of agents

    def __repr__(self) -> str:
        return f"<FaultPlan: {len(self._slow)} slow agents>"

    def dies(self, index: int, step: int) -> bool:
        """Whether this agent is cut off while it works on this step."""
        chance = self._faults.die
        if chance <= 0:
            return False
        drawn = float(generator(self._seed, "die", agent_name(index, self._agents), step).random())
        return drawn < chance

    @property
    def back_after_s(self) -> float:
        """How long an agent that died stays away."""
        return self._faults.back_after_s

    def delay_s(self, index: int) -> float:
        """How long this agent holds each report back after its work."""
        if index not in self._slow:
            return 0.0
        return self._faults.slow_s

    def present(self, index: int, round_: int) -> bool:
        """Whether this agent is part of the fleet in this round. All lines that name it must agree."""
        return all(_includes(line, round_) for line in self._timelines[index])

    def _draw_agents(self, fault: str, share: float) -> frozenset[int]:
        """A share of the fleet, drawn from a stream of its own."""
        count = round(share * self._agents)
        return frozenset(generator(self._seed, fault).permutation(self._agents)[:count].tolist())


def _by_agent(timeline: Iterable[Timeline]) -> defaultdict[int, list[Timeline]]:
    """The lines of a timeline that name each agent; none for the others."""
    lines = defaultdict(list)
    for line in timeline:
        for index in line.agents:
            lines[index].append(line)
    return lines


def _includes(line: Timeline, round_: int) -> bool:
    """Whether this line of a timeline lets its agents take part in a round."""
    if line.joins is not None and round_ < line.joins:
        return False
    if line.leaves is None or round_ < line.leaves:
        return True
    if line.returns is None:
        return False
    return round_ >= line.returns


# -- the fleet --------------------------------------------------------------------------------------


OpenLink = Callable[[str, Will | None], AbstractAsyncContextManager[Link]]  # client id, last will
STARTS_AT_ONCE = 50  # agents; a broker's backlog of connections is short
START_PAUSE_S = 0.1  # before the next of them
KEEP_WARM_S = 600.0  # a fleet's workers stay alive between rounds
PARENT_S = 1.0  # how often to check that the parent process is alive


class CurrentRound:
    """The round that the coordinator is in. Agents come and go with it."""

    def __init__(self) -> None:
        self.round = 0
        self._changed = asyncio.Event()  # set once, when the round changes; then replaced

    def seen(self, round_: int) -> None:
        if round_ != self.round:
            self.round = round_
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, reached: Callable[[int], bool]) -> None:
        """Wait for a round for which `reached` is true."""
        while not reached(self.round):
            await self._changed.wait()


class FleetRun:
    """All agents of one scenario. `run` lives until it is cancelled.

    Args:
        scenario: with a fleet section.
        source: where the partition comes from. Each agent's worker receives it with the agent's index.
        folder: the agents' states go to its sub-folder `agents`.
        open_link: connects one agent.
        pool: the workers that all agents share.
        observer: receives the notices of all agents.
        allowed: the code of the user's own that may run.
        learner: what trains, by its name.

    Raises:
        UserError: the scenario has no fleet section.
    """

    def __init__(
        self,
        scenario: Scenario,
        source: FleetShare,
        folder: Path,
        *,
        open_link: OpenLink,
        pool: PoolLike,
        observer: n.FleetObserver,
        allowed: AllowedCode = NO_CODE,
        learner: str = TORCH,
    ) -> None:
        self._fleet = _fleet_of(scenario, f"scenario {scenario.name}")
        self._scenario = scenario
        self._source = source
        self._folder = folder
        self._open_link = open_link
        self._pool = pool
        self._observer = observer
        # a user may ask anything of a simulation on the user's own machine
        self._rules = OwnersRules(UNLIMITED, allowed, learner)
        self._received = ReceivedModels(folder / "received")
        self._faults = FaultPlan(self._fleet, scenario.seed)
        self._round = CurrentRound()
        # deaths that have happened: (agent, run, step); no agent dies twice at the same step
        self._deaths: set[tuple[int, str, int]] = set()

    def __repr__(self) -> str:
        agents = self._fleet.agents
        return f"<FleetRun of {self._scenario.name!r}: {agents} agents, round {self._round.round}>"

    async def run(self) -> None:
        """Start all agents, and let each live one life after another."""
        try:
            await self._live_all()
        finally:
            self._received.close()

    async def _live_all(self) -> None:
        agents = self._fleet.agents
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_rounds())
            for index in range(agents):
                group.create_task(self._lives(index), name=agent_name(index, agents))
                if (index + 1) % STARTS_AT_ONCE == 0:
                    await asyncio.sleep(START_PAUSE_S)

    async def _follow_rounds(self) -> None:
        federation = self._scenario.federation
        topic = Topics(federation).coordinator_status
        client_id = f"covey-{federation}-fleet-{os.getpid()}"
        async with self._open_link(client_id, None) as link:
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        self._observer(n.FleetConnected())
                        await link.subscribe([topic])
                    case Down(
                        why=why
                    ):  # one notice for all agents, whose links lead to the same broker
                        self._observer(n.FleetDisconnected(why))
                    case Received():
                        self._coordinator_seen(incoming.payload)

    def _coordinator_seen(self, payload: bytes) -> None:
        with contextlib.suppress(DecodeError):
            status = CoordinatorStatus.from_bytes(payload)
            if status.online and status.state != "finished":  # of a run before this one
                self._round.seen(status.round)

    async def _lives(self, index: int) -> None:
        """One life after another: from joining to leaving or dying, and again."""
        while True:
            await self._round.until(lambda round_: self._faults.present(index, round_))
            if await self._live(index):
                await asyncio.sleep(self._faults.back_after_s)

    async def _live(self, index: int) -> bool:
        """One life, until the timeline lets the agent leave. True if it died first, or its id was taken."""
        name = agent_name(index, self._fleet.agents)
        agent = self._agent(index, name)
        leaver = asyncio.create_task(self._leave(agent, index))
        try:
            async with self._open_link(agent.client_id, agent.will) as link:
                await agent.run(link)
        except NameTakenError as error:  # by another fleet, which may end: try again later
            self._observer(n.OfAgent(name, n.Problem(str(error))))
            return True
        finally:
            leaver.cancel()
        return agent.vanished

    def _agent(self, index: int, name: str) -> Agent:
        identity = Identity(
            name,
            self._scenario.federation,
            replace(self._source, index=index),
            self._folder / "agents" / name,
            durable=False,
        )

        async def delay(order: OrderMessage) -> None:
            await asyncio.sleep(self._faults.delay_s(index))

        return Agent(
            identity,
            self._pool,
            rules=self._rules,
            observer=lambda notice: self._observer(n.OfAgent(name, notice)),
            before_report=delay,
            dies=lambda order: self._dies(index, order),
            received=self._received,
        )

    async def _leave(self, agent: Agent, index: int) -> None:
        await self._round.until(lambda round_: not self._faults.present(index, round_))
        agent.stop()

    def _dies(self, index: int, order: OrderMessage) -> bool:
        death = (index, order.run, order.step)
        if death in self._deaths or not self._faults.dies(index, order.step):
            return False
        self._deaths.add(death)
        return True


async def host(
    path: Path,
    urls: Sequence[BrokerUrl],
    folder: Path,
    data_root: Path | None,
    observer: n.FleetObserver,
    *,
    allowed: AllowedCode = NO_CODE,
    more: bool = False,
    learner: str = TORCH,
) -> None:
    """Run the fleet of a scenario file until SIGTERM, SIGINT or the end of the parent process.

    Args:
        path: the scenario.
        urls: the brokers, by their numbers; each agent lives on one of them.
        folder: for the agents' states and partition.npz.
        data_root: the folder of named data sets.
        observer: receives the notices of all agents.
        allowed: the code of the user's own that may run.
        more: stdin is a pipe with a scenario file in each line. Its agents replace those before, and its folder is theirs.
        learner: what trains, by its name.

    Raises:
        UserError: the scenario, its model, its data or a certificate is wrong.
    """
    parent = os.getppid()  # asked first: the parent may end before we are ready
    fleet = _fleet_of(load_without_files(path), str(path))
    for url in urls:
        url.tls_context()  # report a file that cannot be read now, and once
    workers = fleet.workers_on(cores())
    rules = OwnersRules(UNLIMITED, allowed, learner)

    async def play(path: Path, folder: Path) -> None:
        scenario = load_without_files(path)
        check_code(scenario, allowed)
        source = FleetShare(scenario=path, data_root=data_root or None)
        await check_device(pool, scenario.training.device, rules)
        await write_partition(pool, source, folder / "partition.npz")
        observer(n.FleetStarted(fleet.agents, workers, ", ".join(map(str, urls))))
        topics = Topics(scenario.federation)

        def open_link(client_id: str, will: Will | None) -> AbstractAsyncContextManager[Link]:
            return MqttLink(brokers_of(will, topics, urls), client_id=client_id, will=will)

        await FleetRun(
            scenario,
            source,
            folder,
            open_link=open_link,
            pool=pool,
            observer=observer,
            allowed=allowed,
            learner=learner,
        ).run()

    async with (
        Pool(workers, keep_warm_s=KEEP_WARM_S, warm=learner == TORCH) as pool,
        _process_end(parent) as ended,
    ):
        lines = await _input() if more else None
        while True:
            running = asyncio.create_task(play(path, folder))
            following = asyncio.create_task(_after(lines))
            await asyncio.wait({running, ended, following}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            running.cancel()
            await asyncio.wait({running})
            if ended.done() or not following.done():
                break
            path = following.result()
            folder = path.parent


async def _after(lines: asyncio.StreamReader | None) -> Path:
    """The file in the next line. Without one there is none, ever: our parent ends us."""
    line = b"" if lines is None else await lines.readline()
    if not line:
        await asyncio.Event().wait()
    return Path(line.decode().rstrip("\n"))


async def _input() -> asyncio.StreamReader:
    """Stdin, which is a pipe."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    return reader


def brokers_of(will: Will | None, topics: Topics, urls: Sequence[BrokerUrl]) -> Sequence[BrokerUrl]:
    """The broker of the agent with this last will; without a will, all of them, of which any will do."""
    if will is None:
        return urls
    place = topics.parse(will.topic)
    assert isinstance(place, AgentTopic)  # noqa: S101 - agents alone have a last will here
    return [urls[shard_of(place.agent, len(urls))]]


def _fleet_of(scenario: Scenario, source: str) -> Fleet:
    if scenario.fleet is None:
        raise UserError(
            f"{source} has no section 'fleet'; add one to simulate agents, or use `agent start` on devices"
        )
    return scenario.fleet


async def write_partition(pool: PoolLike, source: FleetShare, out: Path) -> None:
    """Let a worker write which samples belong to which agent.

    Raises:
        UserError: the data or the partition is wrong.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    answer = await pool.call(WritePartition(source=source, out=out))
    if isinstance(answer, Failure):
        raise UserError(answer.in_full)


@contextlib.asynccontextmanager
async def _process_end(parent: int) -> AsyncIterator[asyncio.Task[None]]:
    """A task that ends when this process should: on a signal, or after its parent."""
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = stop_signals()
    for number in numbers:
        loop.add_signal_handler(number, signalled.set)

    async def wait() -> None:
        while not signalled.is_set() and os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(signalled.wait(), PARENT_S)

    task = asyncio.create_task(wait())
    try:
        yield task
    finally:
        task.cancel()
        for number in numbers:
            loop.remove_signal_handler(number)
