"""A simulated fleet: real agents in one process, each with a link of its own, over a real broker; W shared workers.

The only differences to devices: data comes from the scenario's partition, and faults happen on its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.agent.device.service import Agent, Identity, NameTakenError, Tell
from covey.agent.fleet.faults import FaultPlan
from covey.agent.policy import UNLIMITED, Rules
from covey.agent.worker.pool import COMMAND, Pool, PoolLike, check_device
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.link import Down, Link, Message, Up, Will
from covey.shared.mqtt.mqtt_link import BrokerUrl, MqttLink
from covey.shared.scenario.code import check_code
from covey.shared.scenario.fleet import Fleet
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.wire.messages import CoordinatorStatus, OrderMessage
from covey.shared.wire.topics import Topics

OpenLink = Callable[[str, Will | None], AbstractAsyncContextManager[Link]]
RAMP = 200  # agents that start per second: a broker's backlog of connections is short
PARENT_S = 1.0


@dataclass
class Rounds:
    """The round that the coordinator is in; agents come and go with it."""

    round: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def seen(self, round_: int) -> None:
        if round_ != self.round:
            self.round = round_
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, reached: Callable[[int], bool]) -> None:
        """Wait for a round of which this holds."""
        while not reached(self.round):
            await self._changed.wait()


class FleetRun:
    """All agents of one scenario. `run` lives until it is cancelled."""

    def __init__(
        self,
        scenario: Scenario,
        source: dict[str, Any],
        folder: Path,
        open_link: OpenLink,
        pool: PoolLike,
        tell: Tell,
        allowed: AllowedCode = NO_CODE,
    ) -> None:
        if scenario.fleet is None:
            raise UserError(
                f"scenario {scenario.name} has no section 'fleet': there is nothing to simulate"
            )
        self._fleet: Fleet = scenario.fleet
        self._scenario, self._source, self._folder = scenario, source, folder
        self._open_link, self._pool, self._tell = open_link, pool, tell
        self._rules = Rules(
            UNLIMITED, allowed
        )  # whoever starts a simulation may ask of it what she likes
        self._faults = FaultPlan(self._fleet, scenario.seed)
        self._rounds = Rounds()
        self._died: set[tuple[int, str, int]] = (
            set()
        )  # (agent, run, step): nobody dies twice of the same

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_rounds())
            for index in range(self._fleet.agents):
                group.create_task(self._lives(index), name=agent_name(index, self._fleet.agents))
                if index % RAMP == RAMP - 1:
                    await asyncio.sleep(1.0)

    async def _watch_rounds(self) -> None:
        topic = Topics(self._scenario.federation).coordinator_status
        async with self._open_link(
            f"covey-{self._scenario.federation}-fleet-{os.getpid()}", None
        ) as link:
            async for incoming in link.incoming():
                if isinstance(incoming, Up):
                    self._tell({"event": "fleet up"})
                    await link.subscribe([topic])
                elif isinstance(
                    incoming, Down
                ):  # said once for all agents, whose links go to the same broker
                    self._tell({"event": "fleet down", "why": incoming.why})
                elif isinstance(incoming, Message) and incoming.payload:
                    with contextlib.suppress(DecodeError):
                        status = CoordinatorStatus.from_bytes(incoming.payload)
                        if status.online:
                            self._rounds.seen(status.round)

    async def _lives(self, index: int) -> None:
        """One life after another: from joining to leaving or dying, and again."""
        while True:
            await self._rounds.until(lambda round_: self._faults.present(index, round_))
            if await self._live(index):
                await asyncio.sleep(self._faults.back_after_s)

    async def _live(self, index: int) -> bool:
        """From joining until the timeline says leave; True where it died first, or its name was taken."""
        name = agent_name(index, self._fleet.agents)
        identity = Identity(
            name,
            self._scenario.federation,
            {**self._source, "index": index},
            self._folder / "agents" / name,
            durable=False,
        )
        agent = Agent(
            identity,
            self._pool,
            rules=self._rules,
            tell=lambda event: self._tell({"agent": name, **event}),
            before_report=lambda order: asyncio.sleep(self._faults.delay_s(index)),
            dies=lambda order: self._dies(index, order),
        )
        leaver = asyncio.create_task(self._leave(agent, index))
        try:
            async with self._open_link(agent.client_id, agent.will) as link:
                await agent.run(link)
        except NameTakenError as error:  # by a fleet that may go away: we try again
            self._tell({"event": "problem", "agent": name, "why": str(error)})
            return True
        finally:
            leaver.cancel()
        return agent.vanished

    async def _leave(self, agent: Agent, index: int) -> None:
        await self._rounds.until(lambda round_: not self._faults.present(index, round_))
        agent.stop()

    def _dies(self, index: int, order: OrderMessage) -> bool:
        death = (index, order.run, order.step)
        if death in self._died or not self._faults.dies(index, order.step):
            return False
        self._died.add(death)
        return True


async def host(
    path: Path,
    url: BrokerUrl,
    folder: Path,
    data_root: Path | None,
    tell: Tell,
    allowed: AllowedCode = NO_CODE,
) -> None:
    """Run the fleet of a scenario file, with the code of its own that is allowed, until SIGTERM, SIGINT or the end of the parent process."""
    parent = os.getppid()  # asked first: it may be gone before we are ready
    scenario = load_without_files(path)
    if scenario.fleet is None:
        raise UserError(f"{path}: no section 'fleet': there is nothing to simulate")
    check_code(scenario, allowed)
    url.tls_context()  # a file that cannot be read is said now, and once
    source = {"scenario": str(path), "data_root": str(data_root) if data_root else None}
    workers = scenario.fleet.workers or os.cpu_count() or 1
    async with Pool(workers, keep_warm_s=600.0, command=(*COMMAND, "--warm")) as pool:
        await check_device(pool, scenario.training.device, Rules(UNLIMITED, allowed))
        await write_partition(pool, source, folder / "partition.npz")
        tell(
            {
                "event": "fleet",
                "agents": scenario.fleet.agents,
                "workers": workers,
                "broker": str(url),
            }
        )
        fleet = FleetRun(
            scenario,
            source,
            folder,
            lambda name, will: MqttLink(url, client_id=name, will=will),
            pool,
            tell,
            allowed,
        )
        async with _until_told_to_end(parent) as told:
            running = asyncio.create_task(fleet.run())
            await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            running.cancel()
            await asyncio.wait({running})


async def write_partition(pool: PoolLike, source: dict[str, Any], out: Path) -> None:
    """Let a worker write who holds what. Raises UserError where the data or the partition is wrong."""
    out.parent.mkdir(parents=True, exist_ok=True)
    answer = await pool.call({"job": "partition", "source": source, "out": str(out)})
    if "failure" in answer:
        raise UserError(answer.get("detail") or answer["failure"])


@contextlib.asynccontextmanager
async def _until_told_to_end(parent: int) -> AsyncIterator[asyncio.Task[None]]:
    """A task that ends when the process should."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)

    async def wait() -> None:
        while not told.is_set() and os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), PARENT_S)

    task = asyncio.create_task(wait())
    try:
        yield task
    finally:
        task.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
