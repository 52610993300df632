"""The async shell: moves messages between a link and a run, and passes the time on. It decides nothing.

One task reads the link and writes parts straight to disk. Another task takes the items that result from them and carries
out the effects of the run, in order. CPU work runs in a thread, so that keep-alives are sent in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from covey.coordinator.engine.events import (
    Forget,
    Joined,
    Left,
    LinkBack,
    LinkLost,
    Paused,
    Release,
    Resumed,
    Tick,
)
from covey.coordinator.engine.rounds import Stage
from covey.coordinator.run.disk_space import DiskFullError
from covey.coordinator.run.effects import (
    Announce,
    Done,
    DropModel,
    Effect,
    Question,
    SendModel,
    SendOrder,
)
from covey.coordinator.run.notices import (
    AgentExcluded,
    CausedByPeer,
    ControlReceived,
    DiskRemark,
    LinkDown,
    LinkUp,
    Notice,
    Observer,
    PhaseFolded,
    ProcessFrozen,
    RunWaits,
    ShardDown,
    ShardUp,
    SubscriptionsRefused,
    WorkFailed,
    ignore,
)
from covey.coordinator.run.run import Run
from covey.coordinator.serve.exclusive import already_running
from covey.coordinator.serve.intake import Arrived, Intake, Seen
from covey.coordinator.serve.placement import Placement, SilentShards
from covey.coordinator.serve.publisher import Publisher, packet_bytes
from covey.coordinator.serve.roster import Roster
from covey.coordinator.serve.roster_show import RosterShow
from covey.coordinator.serve.sharded_link import ShardedLink, shards_of
from covey.coordinator.serve.steady import BEAT_S, SteadyClock
from covey.shared.audit import Flood
from covey.shared.errors import DecodeError
from covey.shared.files import is_full, write_atomically
from covey.shared.mqtt.duplicate_ids import DuplicateIds, Reaction, session_id
from covey.shared.mqtt.link import Down, Incoming, Link, Message, Up, Will
from covey.shared.mqtt.subscriptions import SubscriptionKeeper
from covey.shared.strategies.phase_names import TRAIN
from covey.shared.waiting import Waiting
from covey.shared.wire.messages import (
    AgentStatus,
    Control,
    CoordinatorStatus,
)
from covey.shared.wire.roll_call import spread_s
from covey.shared.wire.topics import AgentTopic, PlainTopic, Topics

log = logging.getLogger(__name__)

# small items that were read and not yet dealt with; beyond this the link's own bounds count
MAX_WAITING = 10_000
MAX_TOGETHER = 64  # reports that are accepted in one go, with one wait for the disk
FULL_TOLD_S = 60.0
TELL_EVERY_S = 1.0  # agents that know another coordinator than this one are answered together
ORDER_AGAIN_S = 2.0  # then orders are published again that the broker did not take


@dataclass(frozen=True)
class Stop:
    """End the service; the run can be resumed."""


@dataclass(frozen=True)
class Repeat:
    """Another coordinator published, and may have overwritten retained documents: publish all of them again."""

    shard: int = 0  # where it did


@dataclass(frozen=True)
class Wake:
    """Look at the timers: one of them has changed."""


@dataclass(frozen=True)
class Taken:
    """What followed from one report."""

    client: str
    effects: Sequence[Effect]
    refused: str = ""  # the reason in a word; empty if it was accepted

    @property
    def worked(self) -> bool:
        """Does it hold a result, and not the reason why there is none?"""
        for effect in self.effects:
            if isinstance(effect, Announce) and isinstance(effect.notice, WorkFailed):
                return False
        return True


Item = Wake | Up | Down | Arrived | Seen | Control | Stop | Repeat


def last_will(topics: Topics) -> Will:
    """The status that the broker publishes when a coordinator vanishes."""
    status = CoordinatorStatus(online=False, state="stopped")
    payload = status.to_bytes()
    return Will(topics.coordinator_status, payload)


class Service:
    """A run over a link. The observer gets every line of the record and every event worth a line."""

    def __init__(
        self,
        run: Run,
        link: Link,
        *,
        observer: Observer = ignore,
        session: str | None = None,
    ) -> None:
        self.run = run
        self.link = link
        self.observer = observer
        self.scenario = run.scenario
        self.topics = Topics(self.scenario.federation)
        self.roster = Roster(self.scenario.task.digest)
        self._shards = shards_of(link)
        self.placement = link.placement if isinstance(link, ShardedLink) else Placement(1)
        self._silent = SilentShards(self.scenario.rounds.rollcall_s)
        # brokers that are connected and hold all that is retained
        self._served: set[int] = set()
        # the newest roll call on each broker
        self._epochs = [""] * len(self._shards)
        self._connections = 0
        self.duplicate_ids = DuplicateIds(session or _new_session())
        self.last_phase: PhaseFolded | None = None  # None before the first
        self.last_evaluation: Mapping[str, Any] = {}  # averages by mode, of the newest evaluation
        # name of the run that was here before this one: it continues, and this one gives way
        self._other = ""
        self._items: asyncio.Queue[Item] = asyncio.Queue(MAX_WAITING)
        self._next_item: Item | None = None  # was read, and comes before those in the queue
        self._intake = Intake(run, self.roster, self.placement)
        self._publisher = Publisher(run, link, self.topics, self.placement)
        self._shown = Flood(singly=300)  # limits the notices about peers
        self._subscriptions = [
            SubscriptionKeeper(shard, self._subscriptions_refused) for shard in self._shards
        ]
        self._stopping = False
        self._full: DiskFullError | None = None
        self._full_told = -FULL_TOLD_S  # when a part was last dropped for want of room
        self._roster_show = RosterShow(run, link, self.topics, self.roster)
        self._status_kept: tuple[str, int, int, bool] | None = None  # what the run's folder has
        self._waiting = Waiting()
        self._clock = SteadyClock()
        self._tell_due: float | None = None  # when to say again who we are
        # when to publish orders again that the broker has not taken
        self._again_due: float | None = None

    def __repr__(self) -> str:
        federation = self.topics.federation
        return f"<Service of {federation}: {self.state}, {self.run!r}>"

    def now(self) -> float:
        """The time of the engine and of everything here (s): it stands still while this process is frozen."""
        loop_s = time_of_loop()
        return self._clock.time(loop_s)

    @property
    def state(self) -> Literal["gathering", "open", "paused", "folding", "finished"]:
        """The run's state, in a word."""
        engine = self.run.engine
        if engine.paused:
            return "paused"
        return _STATES[engine.stage]

    @property
    def shards_up(self) -> dict[int, bool]:
        """Whether each of several brokers is connected, by its number; empty if there is one broker."""
        count = self.placement.shards
        if count == 1:
            return {}
        return {shard: shard in self.placement.up for shard in range(count)}

    def stop(self) -> None:
        """End `serve` soon; what has happened until then is in the checkpoint."""
        self._stopping = True
        self.run.room.close()
        with contextlib.suppress(asyncio.QueueFull):  # then nobody waits for an item either
            self._items.put_nowait(Stop())

    async def serve(self, first: Sequence[Effect] = ()) -> str | None:
        """Run until the run is over: "" or why it was given up; None after `stop`.

        `first` are the effects of a resume; what they would publish is published at the first `Up`.
        Raises UserError if another coordinator is at work in the federation and was there before.
        """
        over: str | None = None
        for effect in first:
            match effect:
                case Announce(notice):
                    self.observer(notice)
                case Done(why):
                    over = why
        if over is None and self.run.engine.paused:
            # it was paused when it was stopped; without this nobody would see why nothing happens
            self._tell_control("pause")
        async with asyncio.TaskGroup() as group:
            self.run.room.tell = self._disk_teller()
            reader = group.create_task(self._read())
            heart = group.create_task(self._beat())
            while over is None:
                item = await self._next()
                if self._stopping:
                    break
                try:
                    effects = await self._decide(item)
                    over = await self._carry_out(effects)
                except DiskFullError as error:
                    # the operator has stopped us while we waited for room
                    self._full = error
                    break
                self._tell_of_waiting()
                await self._roster_show.publish(self.now())
                self._keep_status()
            await self._roster_show.publish_all()
            self._keep_status(stopped=over is None)
            await self._tell(online=True, stopped=over is None)
            reader.cancel()
            heart.cancel()
            for keeper in self._subscriptions:
                keeper.close()
        if over is None:
            self.run.audit.close("stop", why="")
        else:
            self.run.audit.close("end", why=over)
        if self._full is not None:
            raise self._full
        if self._other:
            raise already_running(self._other, self.scenario.federation)
        return over

    def _disk_teller(self) -> Callable[[str], None]:
        """What a thread that waits for room on the disk calls."""
        loop = asyncio.get_running_loop()

        def tell(why: str) -> None:
            loop.call_soon_threadsafe(self.observer, DiskRemark(why))

        return tell

    async def _beat(self) -> None:
        """Ask the clock so often that a silence means a freeze of this process; report the freeze afterwards."""
        while True:
            await asyncio.sleep(BEAT_S)
            self.now()
            frozen_s = self._clock.take_freeze()
            if frozen_s:
                why = f"this process was frozen for {frozen_s:.0f} s; deadlines are postponed by that time"
                shown_s = round(frozen_s, 1)
                self.observer(ProcessFrozen(shown_s, why))

    async def _next(self) -> Item | None:
        """The next item, or None when the engine or the roster wants to be woken."""
        if self._next_item is not None:
            item = self._next_item
            self._next_item = None
            return item
        timers = (
            self.run.engine.wake_at,
            self._roster_show.due,
            self.duplicate_ids.announce_at,
            self._waiting.due,
            self._tell_due,
            self._again_due,
            self._intake.wake_at,
            self._silent.wake_at,
        )
        times = [time for time in timers if time is not None]
        timeout: float | None = None
        if times:
            first = min(times)
            timeout = self._clock.wait(first, time_of_loop())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                return await self._items.get()
        return None

    def _tell_of_waiting(self) -> None:
        """Show why the run waits once it has waited for a while, when the reason changes, and from time to time."""
        why = self.run.engine.waits_for or ""
        shown = self._waiting.reason(why, self.now())
        if shown is not None:
            reason, waited_s = shown
            self.observer(RunWaits(reason, round(waited_s)))

    # -- what comes in -----------------------------------------------------------------------------

    async def _read(self) -> None:
        async for incoming in self.link.incoming():
            try:
                item = self._understand(incoming)
            except DecodeError as error:
                self._refuse(error, incoming)
                continue
            except OSError as error:
                if not is_full(error):
                    raise
                self._drop_for_want_of_room(error)
                continue
            if isinstance(item, Repeat) or item == Control(command="tell"):
                # at once: others wait for it, and a fold may take long
                await self._tell(online=True)
            if item is not None:
                await self._items.put(item)

    def _drop_for_want_of_room(self, error: OSError) -> None:
        """Drop a part of a report, because the disk is full: its agent sends the report again until it is accepted."""
        self.roster.refuse("disk full")
        now = self.now()
        if now >= self._full_told + FULL_TOLD_S:
            self._full_told = now
            why = f"{error}: a report is dropped; its agent sends it again later"
            self.observer(DiskRemark(why))

    def _understand(self, incoming: Incoming) -> Item | None:
        if not isinstance(incoming, Message):
            return incoming
        payload = incoming.payload
        topic = self.topics.parse(incoming.topic)
        if topic == PlainTopic("coordinator/status"):
            status = CoordinatorStatus.from_bytes(payload)
            return self._own_status(status, incoming)
        self.run.traffic["wire_up"] += packet_bytes(incoming.topic, payload)
        match topic:
            case AgentTopic(_, "status") if not payload:  # the topic was cleared
                return None
            case AgentTopic(agent, "status"):
                now = self.now()
                retained = incoming.retained
                return self._intake.status(agent, payload, retained, now, incoming.shard)
            case AgentTopic(_, "report") if not payload:  # the topic was cleared
                return None
            case AgentTopic(agent, "report"):
                return self._intake.part(agent, payload, self.now(), incoming.shard)
            case PlainTopic("control"):
                return Control.from_bytes(payload)
        return None

    def _own_status(self, status: CoordinatorStatus, message: Message) -> Item | None:
        """A status on our own topic: our own, the last will of an earlier process, or that of another coordinator."""
        if message.retained or status.session == self.duplicate_ids.session:
            return None
        if not status.online:
            return Repeat(message.shard)
        reaction = self.duplicate_ids.observe(status.session, self.now())
        match reaction:
            case Reaction.ANNOUNCE:
                return Repeat(message.shard)
            case Reaction.YIELD_ID:
                self._other = status.name
                self.stop()
        return None

    def _refuse(self, error: DecodeError, incoming: Incoming) -> None:
        agent = None
        if isinstance(incoming, Message):
            with contextlib.suppress(DecodeError):
                topic = self.topics.parse(incoming.topic)
                if isinstance(topic, AgentTopic):
                    agent = topic.agent
        why = str(error)
        self.roster.refuse(error.reason, agent)
        self.run.audit.blame("refuse", agent, why)
        log.debug("refused a message: %s", error)

    # -- what it means -----------------------------------------------------------------------------

    async def _decide(self, item: Item | None) -> list[Effect]:
        match item:
            case None | Wake():
                return await self._woken()
            case Up():
                return await self._up(item)
            case Down():
                return await self._down(item)
            case Arrived():
                reports = self._arrived_together(item)
                return await self._take(reports)
            case Seen():
                agents = self._seen_together(item)
                return await self._seen_all(agents)
            case Repeat(shard):
                return await self._retained_by(shard)
            case Control(command="stop"):
                self.run.audit.command("stop")
                self.stop()
            case Control(command="tell"):
                pass  # the reader has answered
            case Control(command="release", agent=agent):
                self._roster_show.publish_at(self.now())
                if agent is not None:
                    return await self._handle(Release(agent))
            case Control(command="forget", agent=agent):
                if agent is not None:
                    return await self._forget(agent)
            case Control(command="pause"):
                self._tell_control("pause")
                self._tell_due = self.now()
                return await self._handle(Paused())
            case Control(command=command):
                self._tell_control(command)
                self._tell_due = self.now()
                return await self._handle(Resumed())
        return []

    async def _woken(self) -> list[Effect]:
        """Do everything that is due now."""
        now = self.now()
        self._intake.tidy(now)
        late: list[Effect] = []
        agents = self._intake.read_late(now)
        if agents:
            late = await self._seen_all(agents)
        if _is_due(self._intake.roll_at, now):
            await self._call_roll_again()
        if _is_due(self.duplicate_ids.announce_at, now):
            self.duplicate_ids.announce_at = None
            self._tell_due = now
        if _is_due(self._tell_due, now):
            await self._tell(online=True)
        orders: list[Effect] = []
        if _is_due(self._again_due, now):
            self._again_due = None
            for client in sorted(self._publisher.unpublished):
                order = self.run.order_of(client)
                orders.append(order)
        overdue = self._silent.take_overdue(now)
        left = await self._unreachable(overdue)
        effects = await self._handle(Tick())
        return [*late, *orders, *left, *effects]

    def _tell_control(self, command: str) -> None:
        self.run.audit.command(command)
        self.observer(ControlReceived(command, self.topics.control))

    async def _handle(self, event: Any) -> list[Effect]:
        now = self.now()
        effects: list[Effect] = await asyncio.to_thread(self.run.handle, event, now)
        return effects

    async def _up(self, up: Up) -> list[Effect]:
        """A (re)connected link: call the roll and publish again all that should be retained."""
        shard = up.shard
        others = self._served - {shard}
        is_first = not others
        self._served.add(shard)
        self._connections += 1
        self._name_epoch(shard)
        if len(self._shards) > 1:
            self.observer(ShardUp(shard, up.broker))
            self._silent.back(shard, self.now())
            self._roster_show.lost(self.now())
        if is_first:
            self._silent.first_back(self.now())
            self.observer(LinkUp())
        topics = self.topics
        filters = [
            topics.every_status,
            topics.every_report,
            topics.control,
            topics.coordinator_status,
        ]
        self._publisher.link_up()
        keeper = self._subscriptions[shard]
        keeper.connected()
        await keeper.add(filters)
        effects: list[Effect] = []
        if is_first:
            effects = await self._handle(LinkBack())
        await self._tell_shard(shard, online=True)
        desired = await self._retained_by(shard)
        return [*desired, *effects]

    async def _down(self, down: Down) -> list[Effect]:
        """A link is lost. Time stands still if it was the last one; else its agents are absent before long."""
        shard = down.shard
        self._served.discard(shard)
        if len(self._shards) > 1:
            agents = self.placement.online_on(shard)
            self.observer(ShardDown(shard, down.why, len(agents)))
            self._silent.lost(shard, agents, self.now())
        if self._served:
            return []
        self._silent.all_lost()
        self.observer(LinkDown(down.why))
        return await self._handle(LinkLost())

    async def _retained_by(self, shard: int) -> list[Effect]:
        """All that a broker should retain: models, then the orders of the agents that live there.

        With several brokers the models are published here, because the others have them.
        """
        desired = await asyncio.to_thread(self.run.desired)
        if len(self._shards) == 1:
            return desired
        orders: list[Effect] = []
        for effect in desired:
            match effect:
                case SendModel():
                    await self._publisher.model(effect, self._shards[shard])
                case SendOrder(client) if self.placement.where(client) == shard:
                    orders.append(effect)
        return orders

    async def _unreachable(self, agents: Sequence[str]) -> list[Effect]:
        """These agents were not heard since their broker was lost."""
        if not agents:
            return []
        self.placement.gone(agents)
        now = self.now()
        self._roster_show.changed(now)
        left = self.roster.unreachable(agents)
        return await asyncio.to_thread(self._handle_together, left, [], now)

    def _subscriptions_refused(self, topics: tuple[str, ...]) -> None:
        """Report the subscriptions that fail. Once they work, call the roll again, for answers were missed."""
        refused = list(topics)
        self.observer(SubscriptionsRefused(refused))
        named = ", ".join(topics) or "none any more"
        self.run.audit.blame("subscriptions_refused", "broker", named)
        if not topics:
            self._intake.roll_at = self.now()
            with contextlib.suppress(asyncio.QueueFull):  # then somebody is awake
                self._items.put_nowait(Wake())

    def _name_epoch(self, shard: int) -> None:
        session = self.duplicate_ids.session
        self._epochs[shard] = f"{session}.{self._connections}"

    async def _call_roll_again(self) -> None:
        """Statuses of unknown agents were dropped in a flood: ask all agents to publish theirs again."""
        self._intake.call_roll_again()
        self._connections += 1
        for shard in range(len(self._shards)):
            self._name_epoch(shard)
        await self._tell(online=True)

    def _seen_together(self, first: Seen) -> list[str]:
        """This agent and those right behind it, whose statuses are dealt with together."""
        agents = [first.agent]
        while len(agents) < MAX_TOGETHER and not self._items.empty():
            item = self._items.get_nowait()
            if not isinstance(item, Seen):
                self._next_item = item
                break
            agents.append(item.agent)
        return agents

    async def _seen_all(self, agents: Sequence[str]) -> list[Effect]:
        """What follows from the statuses of these agents that wait."""
        events: list[Joined | Left] = []
        moved: list[str] = []
        for agent in agents:
            for status, retained, shard in self._intake.take_statuses(agent):
                events += self._seen(status, retained, shard)
            if await self._has_moved(agent):
                moved.append(agent)
            if self.roster.is_expelled(agent):
                await self._publisher.clear(agent)
        if not events and not moved:
            return []
        now = self.now()
        return await asyncio.to_thread(self._handle_together, events, moved, now)

    def _handle_together(
        self, events: Sequence[Joined | Left], moved: Sequence[str], now: float
    ) -> list[Effect]:
        """What follows from agents that come and go; those who come for the first time, or to another broker, get an order."""
        effects: list[Effect] = []
        run = self.run
        came: set[str] = set()
        with run.one_checkpoint():
            for event in events:
                agent = event.client
                was_known = agent in run.engine.known
                effects += run.handle(event, now)
                is_known = agent in run.engine.known
                if is_known and not was_known:
                    order = run.order_of(agent)
                    effects.append(order)
                    came.add(agent)
            for agent in moved:
                if agent in run.engine.known and agent not in came:
                    order = run.order_of(agent)
                    effects += self._own_models(order)
                    effects.append(order)
        return effects

    def _seen(self, status: AgentStatus, retained: bool, shard: int) -> list[Joined | Left]:
        """What a status changes in the roster, as events of the run."""
        agent = status.agent
        wall_s = time.time()
        epoch = self._epochs[shard]
        events = self.roster.seen(status, retained=retained, epoch=epoch, now=wall_s)
        # a restarted agent has not counted its samples yet, and may report what it finished before
        if any(isinstance(event, Joined) for event in events):
            self.run.samples[agent] = (status.samples, status.test_samples)
            self._note_reader(status)
        if status.problem and status.online:
            excluded = AgentExcluded(agent, status.problem)
            self._observe_peer(excluded)
        now = self.now()
        is_here = status.online and not retained
        if is_here:
            self._silent.heard(agent)
        elif self.placement.take_rival(agent):
            self._intake.roll_at = now
        if is_here and status.epoch != epoch:
            # it knows another coordinator than this one; the retained status may not convince it
            self._tell_due = self._tell_due or now + TELL_EVERY_S
        self._roster_show.changed(now)
        return events

    async def _has_moved(self, agent: str) -> bool:
        """Has the agent come to a broker that does not have its order? The one before gives it up."""
        has_moved, before = self.placement.take_moved(agent)
        if before is not None:
            await self._publisher.take_back_order(agent, self._shards[before])
        return has_moved

    def _note_reader(self, status: AgentStatus) -> None:
        """Remember whether this agent reads orders with a `brief`; its program may have changed."""
        readers = self.run.orders.readers
        if status.brief:
            readers.add(status.agent)
        else:
            readers.discard(status.agent)

    def _own_models(self, order: SendOrder) -> list[Effect]:
        """The models of an order that are for its agent alone: other brokers do not have them."""
        models = self.run.orders.models_of([order])
        return [model for model in models if model.ref.key.startswith("@")]

    async def _forget(self, agent: str) -> list[Effect]:
        """Remove an agent from the run and the roster, and clear all that is retained for it."""
        self.run.audit.command(f"forget {agent}")
        effects = await self._handle(Forget(agent))
        self.roster.forget(agent)
        self._intake.forget(agent)
        await self._publisher.forget(agent)
        self._roster_show.publish_at(self.now())
        return effects

    def _arrived_together(self, first: Arrived) -> list[Arrived]:
        """This report and those right behind it, which are accepted together."""
        reports = [first]
        while len(reports) < MAX_TOGETHER and not self._items.empty():
            item = self._items.get_nowait()
            if not isinstance(item, Arrived):
                self._next_item = item
                break
            reports.append(item)
        return reports

    async def _take(self, reports: Sequence[Arrived]) -> list[Effect]:
        """Accept reports in their order, or refuse them."""
        for report in reports:
            self._intake.report_taken(report)
        now = self.now()
        taken = await asyncio.to_thread(self._accept, reports, now)
        effects: list[Effect] = []
        for one in taken:
            effects += one.effects
            if one.refused:
                self.roster.refuse(one.refused, one.client)
                self._roster_show.changed(self.now())
            else:
                self.roster.reported(one.client, time.time(), worked=one.worked)
        return effects

    def _accept(self, reports: Sequence[Arrived], now: float) -> list[Taken]:
        """What follows from each report; after this all that were accepted survive a power cut."""
        taken: list[Taken] = []
        with self.run.spool.batch(), self.run.one_checkpoint():
            for report in reports:
                client = report.client
                try:
                    # no name for the content: the run drops the last reference to it
                    effects = self.run.accept(client, report.sink.content(), now, report.digest)
                except DecodeError as error:
                    self.run.audit.blame("refuse", client, str(error))
                    effects = self.run.refused(client, error, now)
                    taken.append(Taken(client, effects, refused=error.reason))
                else:
                    taken.append(Taken(client, effects))
                finally:
                    report.sink.discard()
        return taken

    def _observe_peer(self, notice: Notice) -> None:
        """Report what a peer has caused; of a flood only the first notices of each minute."""
        if self._shown.admit("", "", self.now()):
            self.observer(notice)

    # -- what goes out -----------------------------------------------------------------------------

    async def _carry_out(self, effects: Sequence[Effect]) -> str | None:
        """Publish in order: models before the orders that name them. Returns why the run is over, if it is."""
        over = None
        orders: dict[str, SendOrder] = {}
        status_changed = False
        for effect in effects:
            match effect:
                case SendModel():
                    await self._publisher.model(effect)
                case DropModel(key, parts):
                    await self._publisher.drop_model(key, parts)
                case SendOrder(client):
                    if not self.roster.is_expelled(client):
                        orders[client] = effect  # only the newest state of an agent matters
                case Question(client):
                    await self._ask(client)
                case Announce(notice):
                    await self._announce(notice)
                    # the status does not depend on what peers did
                    if not isinstance(notice, CausedByPeer):
                        status_changed = True
                case Done(why):
                    over = why
        if status_changed or over is not None:
            await self._tell(online=True)
        newest = list(orders.values())
        await self._publisher.orders(newest)
        if self._publisher.unpublished:
            now = self.now()
            self._again_due = self._again_due or now + ORDER_AGAIN_S
        return over

    async def _announce(self, notice: Notice) -> None:
        """Show a notice to the observer, and publish it where it is the record of a phase."""
        if isinstance(notice, WorkFailed):
            self.roster.failed(notice.agent, notice.why)
            self._roster_show.changed(self.now())
        if isinstance(notice, CausedByPeer):
            self._observe_peer(notice)
        else:
            self.observer(notice)
        if isinstance(notice, PhaseFolded):
            self.last_phase = notice
            self._roster_show.folded(notice, self.now())
            if notice.means.evaluation is not None:
                self.last_evaluation = notice.means.evaluation
            line = json.dumps(notice.to_json(), allow_nan=False)
            payload = line.encode()
            await self.link.publish(self.topics.metrics, payload, retain=True)

    async def _ask(self, agent: str) -> None:
        """Ask an agent that the roster has as online whether it is there."""
        entry = self.roster.entries.get(agent)
        if entry is None or not entry.status.online:
            return
        await self._publisher.ask(agent, entry.status.session)

    async def _tell(self, *, online: bool, stopped: bool = False) -> None:
        """Publish the coordinator's status: the state of the engine, for agents and for people."""
        self._tell_due = None
        if len(self._shards) == 1:
            await self._tell_shard(0, online=online, stopped=stopped)
            return
        shards = range(len(self._shards))
        telling = [self._tell_shard(shard, online=online, stopped=stopped) for shard in shards]
        await asyncio.gather(*telling)

    async def _tell_shard(self, shard: int, *, online: bool, stopped: bool = False) -> None:
        epoch = self._epochs[shard]
        status = self._status_now(epoch, online=online, stopped=stopped)
        payload = status.to_bytes()
        link = self._shards[shard]
        await link.publish(self.topics.coordinator_status, payload, retain=True)

    def _keep_status(self, *, stopped: bool = False) -> None:
        """Write the status to the run's folder, for people and their dashboards, where it has changed."""
        engine = self.run.engine
        shown = (self.state, engine.number, engine.round, stopped)
        if shown == self._status_kept:
            return
        self._status_kept = shown
        status = self._status_now(self._epochs[0], online=True, stopped=stopped)
        payload = status.to_bytes()
        path = self.run.folder / "status.json"
        with contextlib.suppress(OSError):  # a full disk must not end a run for it
            write_atomically(path, payload, durable=False)

    @property
    def _phase(self) -> str:
        """The name of the open phase; empty if none is open."""
        engine = self.run.engine
        if engine.step is not None:
            return engine.step.phase.name
        if engine.stage is Stage.STREAMING:
            return TRAIN
        return ""

    def _status_now(self, epoch: str, *, online: bool, stopped: bool) -> CoordinatorStatus:
        engine = self.run.engine
        task = self.scenario.task
        return CoordinatorStatus(
            online=online,
            epoch=epoch,
            run=self.run.facts.run,
            name=self.scenario.name,
            round=engine.round,
            rounds=self.scenario.rounds.count,
            phase=self._phase,
            step=engine.number,
            state="stopped" if stopped else self.state,
            task=task.for_agents(),
            task_digest=task.digest,
            delivery=self.scenario.wire.delivery,
            spread_s=spread_s(engine.expected),
        )


_STATES: dict[Stage, Literal["gathering", "open", "folding", "finished"]] = {
    Stage.GATHERING: "gathering",
    Stage.PLANNING: "gathering",
    Stage.OPEN: "open",
    Stage.STREAMING: "open",
    Stage.FOLDING: "folding",
    Stage.DONE: "finished",
}


def time_of_loop() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()


def _is_due(at: float | None, now: float) -> bool:
    """Whether a timer has run out; None: it is not set."""
    return at is not None and now >= at


def _new_session() -> str:
    suffix = uuid.uuid4().hex[:8]
    return session_id(time.time(), suffix)
