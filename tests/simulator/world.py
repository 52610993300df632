"""The world of one history: brokers, and programs that are killed and started again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from covey.agent.device.identity import Identity
from covey.agent.device.service import Agent
from covey.coordinator.record.notices import Notice
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.parts import Parts
from covey.coordinator.run.run import Run
from covey.coordinator.serve.service import Service, last_will
from covey.extras.scale.service import AggregatorService
from covey.extras.scale.service import last_will as aggregator_will
from covey.extras.scale.sharded_link import ShardedLink
from covey.extras.secure.agent_state import AgentState
from covey.extras.secure.integers import Integers
from covey.extras.secure.primitives import Token
from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.secure.simulated import simulated_identity
from covey.shared.errors import UserError
from covey.shared.mqtt.shards import shard_of
from covey.shared.strategies.base import ClientId
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.jobs import OrderAnswer, Perform, Performed
from covey.shared.wire.messages import OrderMessage, Work, digest
from covey.shared.wire.topics import AgentTopic, PlainTopic, Topics
from tests.bowl import Trainer
from tests.kit.local_clients import Client, LocalClients
from tests.kit.replay import Arrival, Arrivals, Replay, noted
from tests.kit.small_fleet import Numpy, share_of
from tests.kit.small_run import clients, fingerprint, in_process, local_for, setup
from tests.simulator.disk import Disk, Disks, State
from tests.simulator.judge import (
    BrokenError,
    Folded,
    Judge,
    Sums,
    models_of,
    rounds_ended,
    rounds_of,
    watched,
)
from tests.simulator.life import OWNER, DeadError, Life
from tests.simulator.loop import SeededLoop, Uncontended, one_seed
from tests.simulator.network import FaultyBroker
from tests.simulator.plan import AGENTS, DEADLINE_S, HABITS, Fault, Pace, Plan, rules_for, scene_of

TOPICS = Topics("default")
AFTER_S = 600.0  # the run is over this long after the last fault, at the latest
AGAIN_S = 5.0  # a supervisor starts a program that ended by itself again
# messages after which nobody starts a coordinator again
GIVING_WAY = ("has taken up this run", "another coordinator is at work")
WRITES_WITHIN_S = 5.0  # a program that is to be cut off in a write writes
ROT_LOOKS, ROT_LOOK_S = 100, 0.05  # how often a file that is to rot is looked for, and how soon
OBSTACLES: dict[str, State] = {
    "full disk": "full",
    "read-only disk": "read-only",
    "no descriptors": "no descriptors",
}
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where files are
SLOW_SHARE = 0.05  # of the jobs, where there is hurry: longer than the deadline


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


class Seeded(SecureFolder):
    """The secure sums of an agent, whose secrets follow from the seed and whose integers are looked at."""

    def __init__(self, place: Path, client: ClientId, token: Token, sums: Sums) -> None:
        super().__init__(place, simulated_identity(3, client), simulated=True)
        self._secrets, self._made = token, sums.made.setdefault(client, {})
        self._client, self._sums = client, sums

    @property
    def token(self) -> Token:
        return self._secrets

    def save(self, state: AgentState) -> None:
        super().save(state)
        self._sums.saves(self._client, state.sum)

    def save_vector(self, name: str, vector: Integers) -> None:
        if not name.endswith("-masked"):
            self._made[name] = vector.copy()
        super().save_vector(name, vector)


@dataclass(frozen=True, kw_only=True)
class SeededClient(Client):
    """A client with such secure sums."""

    token: Token
    sums: Sums

    def _keys_at(self, place: Path, work: Work) -> SecureFolder:
        folder = Seeded(place, self.client, self.token, self.sums)
        folder.ahead = self.ahead
        return folder


class Workers(Numpy):
    """The agents' workers: numpy, in this process, with seeded durations."""

    def __init__(
        self, people: Mapping[ClientId, Trainer], plan: Plan, judge: Judge, sums: Sums
    ) -> None:
        super().__init__(people)
        self._judge, self._is_patient = judge, plan.pace == "patient"
        self._sums, self._token = sums, random.Random(f"secrets {plan.seed}").randbytes  # noqa: S311
        self._durations = random.Random(f"durations {plan.seed}")  # noqa: S311
        self.has_memories = False  # an agent has something to lose

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        self.takes_s = self._durations.uniform(0.05, 1.0)
        if not self._is_patient and self._durations.random() < SLOW_SHARE:
            self.takes_s = 1.5 * DEADLINE_S
        return await super().call(job, weight=weight)

    def client(self, job: Perform, order: OrderMessage) -> Client:
        who = super().client(job, order)
        return SeededClient(**vars(who), token=self._token, sums=self._sums)

    def perform(self, job: Perform) -> OrderAnswer:
        """As a worker does it; the judge looks on."""
        order, life = OrderMessage.from_bytes(job.order), OWNER.get()
        assert life is not None
        if not job.ahead:
            self._judge.works(life.session, order)
        done = super().perform(job)
        if isinstance(done, Performed):
            self.has_memories |= job.memory is not None or done.memory_digest != b""
            if not job.ahead:
                content = job.report_out.read_bytes()
                self._judge.made(digest(content), content, order)
        return done


class World:
    """All programs of a fleet, and what befalls them according to the plan."""

    def __init__(self, base: Path, plan: Plan, history: History, loop: SeededLoop) -> None:
        self.plan, self.history, self._base, self._loop = plan, history, base, loop
        self.ended: asyncio.Future[Run] = loop.create_future()
        self.judge = Judge(self._fail)
        self.people = clients(plan.agents, plan.scene)
        self.sums = Sums(self._fail, history.struck)
        self.pool = Workers(self.people, plan, self.judge, self.sums)
        self.disks = Disks(base)
        self.brokers = [
            FaultyBroker(
                plan.seed * 10 + shard, shard, plan.faults, history.struck, self._published
            )
            for shard in range(plan.shards)
        ]
        self._lives: dict[str, Life] = {}  # the newest of each program
        self._count = 0  # of lives
        self._folders: dict[str, Path] = {}  # of coordinators and agents
        self._disks: dict[str, Disk] = {}
        # programs that die after one of their next messages: how many are left, and what is called then
        self._last_messages: dict[str, tuple[int, Callable[[], None]]] = {}
        self._agents: dict[str, Agent] = {}
        self._gave_way: set[str] = set()  # coordinators that nobody starts again
        self._damaged: set[str] = set()  # coordinators whose checkpoint is not what it was
        self._in_repair: set[str] = set()  # coordinators whose folder an operator puts back
        self._runs = 0  # that were begun from nothing
        self._rotten: set[str] = set()  # programs with a rotten report, memory or state

    def say(self, text: str) -> None:
        self.history.story.append(f"{self._loop.time():10.3f}  {text}")

    def _fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _published(self, shard: int, client_id: str, topic: str, payload: bytes) -> None:
        """Let the judge see what coordinators publish."""
        if client_id not in self._folders or not payload:
            return
        self._strike_after(client_id)
        match TOPICS.parse(topic):
            case AgentTopic(agent, "order"):
                life, order = self._lives[client_id], OrderMessage.from_bytes(payload)
                self.judge.ordered(life.session, self._folders[client_id], agent, order)
            case PlainTopic("coordinator/status"):
                self.judge.called(shard, CoordinatorStatus.from_bytes(payload))

    def _strike_after(self, sender: str) -> None:
        """Kill a program whose message is the last one that leaves it."""
        if sender not in self._last_messages:
            return
        left, die = self._last_messages.pop(sender)
        if left:
            self._last_messages[sender] = (left - 1, die)
        else:
            die()

    # -- programs ----------------------------------------------------------------------------------

    def _place(self, name: str) -> Path:
        """The folder of a program, on a disk of its own."""
        if name not in self._folders:
            folder = self._base / name
            folder.mkdir(exist_ok=True)
            self._folders[name] = folder
            self._disks[name] = Disk(folder, f"{self.plan.seed} {name}")
            self.disks.add(self._disks[name])
        return self._folders[name]

    def start(self, name: str) -> None:
        """Start a program, for the first time or again."""
        if name in self._gave_way or self.ended.done():
            return
        before = self._lives.get(name)
        if before is not None and before.task is not None and not before.task.done():
            return
        self._count += 1
        life = Life(name, f"{name}-{self._count}")
        self._lives[name] = life
        program = (
            self._agent(life)
            if name.startswith("agent")
            else self._aggregator(life)
            if name.startswith("aggregator")
            else self._coordinator(life)
        )
        life.task = asyncio.create_task(self._live(life, program))

    async def _live(self, life: Life, program: Coroutine[Any, Any, None]) -> None:
        OWNER.set(life)
        try:
            await program
        except UserError as error:
            self.say(f"{life.name} ends: {error}")
            if any(words in str(error) for words in GIVING_WAY):
                self._gave_way.add(life.name)
        except Exception as error:
            if life.killed or self.ended.done():
                return
            self.say(f"{life.name} ends: {error!r}")
            if not isinstance(error, OSError):  # the disk is to blame
                self._fail(error)
        except BaseException:
            if not life.killed:
                raise
        finally:
            if not life.killed:
                for link in life.links:
                    link._close(will=True)
                self._loop.call_later(AGAIN_S, self.start, life.name)

    async def _agent(self, life: Life) -> None:
        name = life.name
        state = self._place(name)
        identity = Identity(name, TOPICS.federation, share_of(name), state, durable=True)
        agent = Agent(identity, self.pool, session=life.session)
        self._agents[name] = agent
        broker = self.brokers[shard_of(name, len(self.brokers))]
        async with broker.link(name, agent.will) as link:
            life.links.append(link)
            await agent.run(link)

    async def _aggregator(self, life: Life) -> None:
        broker = self.brokers[int(life.name.rpartition("-")[2])]
        async with broker.link(life.name, aggregator_will(TOPICS, life.session)) as link:
            life.links.append(link)
            await AggregatorService(link, TOPICS, life.session).run()

    async def _coordinator(self, life: Life) -> None:
        folder, now, scene = self._place(life.name), self._loop.time(), self.plan.scene
        kind, these = watched(self.judge), rules_for(self.plan)
        first: Sequence[Effect] = ()
        if (folder / "checkpoint" / "manifest.json").exists():
            if life.name not in self._damaged:
                self.judge.takes_up(folder)
            run, first = kind.resume(folder, scene, setup(scene), rules=these, now=now)
        else:
            self._runs += 1
            run = kind.start(
                folder, scene, setup(scene), rules=these, run=f"r{self._runs}", now=now
            )
        async with AsyncExitStack() as stack:
            for broker in self.brokers:
                link = broker.link(life.name, last_will(TOPICS))
                life.links.append(await stack.enter_async_context(link))
            one = life.links[0]
            merged = (
                one
                if len(self.brokers) == 1
                else await stack.enter_async_context(ShardedLink(life.links, TOPICS))
            )
            service = Service(
                run, merged, observer=self._observe, aggregators=self.plan.aggregators
            )
            service.desk.lock = cast(threading.Lock, Uncontended())
            why = await service.serve(list(first))
        if why is not None and not self.ended.done():
            assert not why, why
            self.ended.set_result(run)

    def _observe(self, notice: Notice) -> None:
        self.say(str(sorted(notice.to_json().items(), key=lambda item: item[0])))

    async def _kill(self, name: str) -> bool:
        """Kill a program. False: it is not there."""
        if not self._is_alive(name):
            return False
        await self._lives[name].kill()
        self._freed(name)
        return True

    def _freed(self, name: str) -> None:
        """The system closes what a killed process had open."""
        if name in self._agents:
            self._agents[name].outbox.close()

    # -- the plan ----------------------------------------------------------------------------------

    async def strike(self, fault: Fault) -> None:
        """Carry out one fault, and what undoes it."""
        await asyncio.sleep(fault.at)
        if self.ended.done():
            return
        if await self._struck(fault):
            self.history.struck[fault.kind] += 1
            self.say(f"fault: {fault}")

    async def _struck(self, fault: Fault) -> bool:
        """Whether there was something to strike."""
        shard = fault.target % len(self.brokers)
        broker = self.brokers[shard]
        connected = broker.clients
        victim = connected[fault.target % len(connected)] if connected else ""
        agent, aggregator = f"agent-{fault.target % self.plan.agents}", f"aggregator-{shard}"
        match fault.kind:
            case "cut" | "part":
                broker.part(victim, fault.lasts if fault.kind == "part" else 0.0)
                return bool(victim)
            case "stall":
                return broker.hold_up(victim, fault.lasts, "")
            case "half close up":
                return broker.hold_up(victim, fault.lasts, "up")
            case "half close down":
                return broker.hold_up(victim, fault.lasts, "down")
            case "kill agent":
                return await self._killed_for(agent, fault.lasts)
            case "kill coordinator":
                return await self._killed_for(self._coordinator_at(fault), fault.lasts)
            case "kill aggregator":
                return await self._killed_for(aggregator, fault.lasts)
            case "restart broker" | "clear retained":
                broker.restart(fault.kind == "restart broker", away_s=fault.lasts)
                return True
            case "power cut":  # of the machine with a broker and its aggregator, which stays away
                broker.restart(away_s=fault.lasts)
                self._gave_way.add(aggregator)
                return await self._kill(aggregator)
            case "copy folder":
                return await self._copy(fault)
            case "put back folder":
                return await self._put_back(fault)
        return await self._disk_struck(fault)

    async def _killed_for(self, name: str, seconds: float) -> bool:
        if not await self._kill(name):
            return False
        await asyncio.sleep(seconds)
        self.start(name)
        return True

    def _coordinator_at(self, fault: Fault) -> str:
        """One of the coordinators that have not given way."""
        names = [
            name
            for name in ("coordinator", "copy")
            if name in self._lives and name not in self._gave_way
        ]
        return names[fault.target % len(names)] if names else "coordinator"

    async def _copy(self, fault: Fault) -> bool:
        """An operator starts another coordinator on a copy of the folder; the first has no network for a time."""
        life, folder = self._lives["coordinator"], self._folders["coordinator"]
        is_sound = self._may_resume(folder) and "coordinator" not in self._damaged
        if "copy" in self._lives or life.killed or not is_sound:
            return False
        for broker in self.brokers:
            broker.part("coordinator", fault.lasts)
        shutil.copytree(folder, self._base / "copy")
        self.judge.copied(folder, self._base / "copy")
        self.start("copy")
        return True

    async def _put_back(self, fault: Fault) -> bool:
        """An operator puts the folder of a run back to what it was some time ago."""
        name = self._coordinator_at(fault)
        folder, backup = self._folders[name], self._base / f"backup-{fault.at}"
        if not self._may_resume(folder) or name in self._in_repair:
            return False
        self._in_repair.add(name)
        shutil.copytree(folder, backup)
        self.judge.copied(folder, backup)
        await asyncio.sleep(max(fault.lasts, 2.0))
        self._in_repair.discard(name)
        if name in self._gave_way or not await self._kill(name):
            return False
        self._disks[name].put_back(backup)
        self.judge.put_back(backup, folder)
        self.start(name)
        return True

    @staticmethod
    def _may_resume(folder: Path) -> bool:
        return (folder / "checkpoint" / "manifest.json").exists()

    async def _disk_struck(self, fault: Fault) -> bool:
        """Whether the disk of a program has failed it."""
        agent = f"agent-{fault.target % self.plan.agents}"
        name = agent if fault.kind.endswith("agent") else self._coordinator_at(fault)
        match fault.kind:
            case "cut off coordinator" | "cut off agent":
                return await self._cut_off(name, fault)
            case "power cut of coordinator" | "power cut of agent":
                return await self._cut_off(name, fault, power=True)
            case "power cut after a message":
                return await self._cut_off(name, fault, power=True, after_message=True)
            case "full disk" | "read-only disk" | "no descriptors":
                disk = self._disks[agent if fault.target % 2 else name]
                disk.state, disk.refused = OBSTACLES[fault.kind], 0
                await asyncio.sleep(fault.lasts)
                disk.state = ""
                return disk.refused > 0
            case "rotten report":
                is_agents = fault.target % 2 == 1
                victim = agent if is_agents else name
                pattern = "report-*" if is_agents else "spool/*/reports"
                return await self._rot(victim, pattern, fault)
            case "rotten model":
                return await self._rot(agent, "models/*", fault)
            case "rotten memory":
                pattern = "memory-*" if fault.target % 2 else "state.json"
                return await self._rot(agent, pattern, fault)
            case "rotten checkpoint":
                return await self._rot_checkpoint(name, fault)
        raise ValueError(f"{fault.kind} is not a fault")

    async def _cut_off(
        self, name: str, fault: Fault, *, power: bool = False, after_message: bool = False
    ) -> bool:
        """Kill a program in the middle of one of its next writes, or after one of its next messages.

        With its disk, if its machine loses power.
        """
        disk, died = self._disks[name], asyncio.Event()

        def die() -> None:
            with self._loop.here():
                self._lives[name].die()
                died.set()

        if after_message:
            self._last_messages[name] = (fault.target, die)
        else:
            disk.cut_off(fault.target, die)
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITES_WITHIN_S):
                await died.wait()
        disk.cut_off(0, None)
        self._last_messages.pop(name, None)
        if after_message and not died.is_set():
            return False
        if not died.is_set() and not power:
            return False
        life = self._lives[name]
        if life.task is None:
            return False
        await life.kill()
        self._freed(name)
        if power:
            disk.lose_power()
        await asyncio.sleep(fault.lasts)
        self.start(name)
        return True

    async def _rot(self, name: str, pattern: str, fault: Fault) -> bool:
        """Change a bit in one of a program's files, under its hands or while it is dead."""
        for _ in range(ROT_LOOKS):  # for a file that lies there for a moment only
            if self._disks[name].found(pattern):
                break
            await asyncio.sleep(ROT_LOOK_S)
        if fault.target % 3 == 0:
            return self._rotted(name, pattern)
        if not await self._kill(name):
            return False
        has_rotted = self._rotted(name, pattern)
        await asyncio.sleep(fault.lasts)
        self.start(name)
        return has_rotted

    def _rotted(self, name: str, pattern: str) -> bool:
        path = self._disks[name].rot(pattern)
        if path:
            self.say(f"rotten: {path}")
            self._rotten.add(name)
            self.judge.rotten(self._folders[name], Path(path))
        return path != ""

    async def _rot_checkpoint(self, name: str, fault: Fault) -> bool:
        """Damage a checkpoint between two lives. It must be refused; then the operator restores the file."""
        pattern = "checkpoint/arrays/*" if fault.target % 2 else "checkpoint/manifest.json"
        if name in self._in_repair or not await self._kill(name):
            return False
        disk = self._disks[name]
        sound = {str(path): path.read_bytes() for path in disk.found(pattern)}
        path = disk.rot(pattern)
        if path:
            self.say(f"rotten: {path}")
            self._damaged.add(name)
            self._in_repair.add(name)
            self.start(name)
            await asyncio.sleep(max(fault.lasts, 1.0))
            if not self._is_alive(name):
                disk.restore(path, sound[path])
            elif path.endswith("manifest.json"):
                self._fail(BrokenError("a coordinator resumes with a damaged checkpoint"))
            # else the bit is none of the values', which the judge has compared
            self._damaged.discard(name)
            self._in_repair.discard(name)
        self.start(name)
        return path != ""

    def _is_alive(self, name: str) -> bool:
        life = self._lives.get(name)
        return (
            life is not None and not life.killed and life.task is not None and not life.task.done()
        )

    async def whole(self) -> Run:
        """The history, from the first start to the end of the run."""
        if self.plan.aggregators:
            for shard in range(len(self.brokers)):
                self.start(f"aggregator-{shard}")
        for client in self.people:
            self.start(client)
        self.start("coordinator")
        events = [fault for fault in self.plan.faults if fault.kind not in HABITS]
        striking = [asyncio.create_task(self.strike(fault)) for fault in events]
        for task in striking:
            task.add_done_callback(self._strike_ended)
        try:
            async with asyncio.timeout(self.plan.end + AFTER_S):
                return await self.ended
        finally:
            for task in striking:
                task.cancel()
            self.ended.cancel()
            for life in self._lives.values():
                await life.kill()
            self._loop.let_go()

    def _strike_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    # -- the end -----------------------------------------------------------------------------------

    def compare(self, run: Run, arrivals: Arrivals) -> None:
        """Compare the end of the run with that of a calm one, where the same agents took part."""
        ended = rounds_ended(run.folder)
        if ended != list(range(len(ended))):
            raise BrokenError(f"the record has these rounds: {ended}")
        lost = _lost_memories(run.folder)
        self._expect_reasons(lost)
        if lost and self.pool.has_memories:
            return  # work that was done twice may have other bytes
        if run.engine.rules.is_buffered:
            if self.judge.has_unreadable:
                return  # the record does not name reports that a fold could not read
            if fingerprint(run) != fingerprint(
                replayed(self._base / "replay", run, arrivals[run.folder])
            ):
                raise BrokenError("the bytes are not those of the replay")
            return
        these, calm_ones = (
            rounds_of(run.folder),
            calm(self.plan.method, self.plan.pace, self.plan.secure),
        )
        models = self.judge.models_in(run.folder)
        for this, (one, expected) in zip(these, calm_ones, strict=False):
            if this.of_round != one.of_round:
                break
            if models[this.step] != expected:
                raise BrokenError(f"step {this.step} has not the bytes of the calm run")
        if [this.of_round for this in these] != [one.of_round for one, _ in calm_ones]:
            self._expect_other_rounds()

    def _expect_reasons(self, lost: set[tuple[ClientId, str]]) -> None:
        """An agent that lost its memory has had a rotten file, or met a coordinator that knew less or more than it."""
        struck = self.history.struck
        if struck["put back folder"] or struck["copy folder"]:
            return
        for agent, how in sorted(lost):
            excused = self._rotten if how == "lost" else self.judge.given_up
            if agent not in excused:
                raise BrokenError(
                    f"the memory of {agent} is {how}, though no file of it has rotted, and no folder was put back or copied"
                )

    def _expect_other_rounds(self) -> None:
        """The rounds are not the calm ones for one of these reasons: hurry, rotten files, or a sum that came to nothing."""
        struck = self.history.struck
        if self.plan.pace == "hasty" or struck["secure void"] or struck["secure passed over"]:
            return
        if self.plan.secure and struck["put back folder"]:
            return  # its boxes are of an earlier time: agents have newer ones and cannot join, so the phase is void
        # some methods need their memory to take part, and a report that rots after its agent has read it again is
        # refused: its round ends without it
        if not self._rotten:
            raise BrokenError("the rounds are not those of the calm run, and nothing has rotted")


def _lost_memories(folder: Path) -> set[tuple[ClientId, str]]:
    """The agents that reported that their memory is lost or ahead."""
    rows = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    return {item for row in rows for item in row.get("client_state", {}).items()}


@cache
def calm(method: str, pace: Pace, secure: bool) -> list[tuple[Folded, str]]:
    """The phases of a method's run in one process, without any fault, and the models after each."""
    models: dict[int, str] = {}
    take = Parts.take

    def taken(parts: Parts, *about: Any) -> None:
        take(parts, *about)
        assert parts.engine.step is not None
        models[parts.engine.step.number] = models_of(parts)

    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, patch.object(Parts, "take", taken):
        scene = scene_of(method, pace, secure)
        in_process(Path(folder), scene, clients(scene.rounds.start_agents or AGENTS, scene))
        return [(one, models[one.step]) for one in rounds_of(Path(folder))]


def replayed(folder: Path, run: Run, arrivals: Sequence[Arrival]) -> Run:
    people = clients(run.scenario.rounds.start_agents or AGENTS, run.scenario)
    scene = run.scenario
    again = Run.start(folder, scene, setup(scene), rules=run.engine.rules, run=IN_PROCESS, now=0.0)
    samples = {client: (local.examples, local.examples) for client, local in people.items()}
    return Replay(again, LocalClients(local_for(people))).play(samples, arrivals)


def _unless_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report errors that nobody awaits, but not those that end a killed process."""
    if not isinstance(context.get("exception"), DeadError):
        loop.default_exception_handler(context)


def play(plan: Plan) -> History:
    """Play a plan to its end, and judge it."""
    history = History()
    if plan.pace != "buffered":
        calm(plan.method, plan.pace, plan.secure)  # outside of the virtual time
    loop = SeededLoop(plan.seed, pauses=any(fault.kind in OBSTACLES for fault in plan.faults))
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        one_seed(loop, plan.seed),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        loop.set_exception_handler(_unless_dead)

        async def program() -> None:
            world = World(Path(folder), plan, history, loop)
            with world.disks.watched(), world.sums.watched(), noted() as arrivals:
                run = await world.whole()
            world.compare(run, arrivals)

        try:
            runner.run(program())
        except TimeoutError:
            history.failure = f"stand-still: not over {AFTER_S:.0f} s after the last fault"
        except Exception as error:
            history.failure = f"{type(error).__name__}: {error}"
        history.story = [line.replace(folder, "FOLDER") for line in history.story]
    return history
