"""The async shell: moves messages between a link and a run, and passes the time on. It decides nothing.

One task reads the link and writes parts straight to disk. Another task takes the items that result from them and carries
out the effects of the run, in order. CPU work runs in a thread, so that keep-alives are sent in time.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.coordinator.engine.events import Forget, Paused, Release, Resumed, Tick
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
    CausedByPeer,
    ControlReceived,
    DiskRemark,
    Notice,
    Observer,
    PhaseFolded,
    ProcessFrozen,
    RunWaits,
    WorkFailed,
    ignore,
)
from covey.coordinator.run.run import Run
from covey.coordinator.serve.acceptance import COMPANY_S, Acceptance
from covey.coordinator.serve.aggregators import Aggregators, AggregatorSeen, SumArrived
from covey.coordinator.serve.attendance import Attendance
from covey.coordinator.serve.connections import Connections
from covey.coordinator.serve.elsewhere import Elsewhere
from covey.coordinator.serve.exclusive import already_running, continued_elsewhere
from covey.coordinator.serve.intake import Arrived, Intake, Seen
from covey.coordinator.serve.items import MAX_TOGETHER, Cleared, Item, Items, Repeat, Stop, Wake
from covey.coordinator.serve.own_status import OwnStatus, State
from covey.coordinator.serve.placement import Placement, SilentShards
from covey.coordinator.serve.postponed import PostponedOrders
from covey.coordinator.serve.publisher import Publisher
from covey.coordinator.serve.reader import Reader
from covey.coordinator.serve.roster import Roster
from covey.coordinator.serve.roster_show import RosterShow
from covey.coordinator.serve.sharded_link import ShardedLink, shards_of
from covey.coordinator.serve.steady import BEAT_S, SteadyClock
from covey.shared.audit import Flood
from covey.shared.errors import UserError
from covey.shared.mqtt.duplicate_ids import DuplicateIds, session_id
from covey.shared.mqtt.link import Down, Link, Up, Will
from covey.shared.mqtt.subscriptions import SubscriptionKeeper
from covey.shared.waiting import Waiting
from covey.shared.wire.documents import Control, CoordinatorStatus
from covey.shared.wire.topics import Topics

ORDER_AGAIN_S = 2.0  # then orders are published again that the broker did not take
SWEEP_S = 3.0  # in which an operator clears one retained topic after another


def last_will(topics: Topics) -> Will:
    """The status that the broker publishes when a coordinator vanishes."""
    status = CoordinatorStatus(online=False, state="stopped")
    return Will(topics.coordinator_status, status.to_bytes())


class Service:
    """A run over a link. The observer gets every line of the record and every event worth a line.

    With `aggregators`, reports may come as sums of the aggregators near the brokers.
    """

    def __init__(
        self,
        run: Run,
        link: Link,
        *,
        observer: Observer = ignore,
        session: str | None = None,
        aggregators: bool = False,
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
        own_session = session or _new_session()
        self.duplicate_ids = DuplicateIds(own_session)
        self._own_status = OwnStatus(run, self._shards, self.topics, own_session)
        self.last_phase: PhaseFolded | None = None  # None before the first
        self.last_evaluation: Mapping[str, Any] = {}  # averages by mode, of the newest evaluation
        # set once this coordinator gives way to another one
        self._rival: UserError | None = None
        self._items = Items()
        self._intake = Intake(run, self.roster, self.placement)
        self._publisher = Publisher(run, link, self.topics, self.placement)
        self._postponed = PostponedOrders()
        self._shown = Flood(singly=300)  # limits the notices about peers
        self._stopping = False
        self._full: DiskFullError | None = None
        self._roster_show = RosterShow(run, link, self.topics, self.roster)
        self._waiting = Waiting()
        self._elsewhere = Elsewhere(link, self.scenario.federation)
        self._is_deaf = False  # the broker refuses a subscription
        self._clock = SteadyClock()
        # when to publish orders again that the broker has not taken
        self._again_due: float | None = None
        self._cleared: dict[
            int, float
        ] = {}  # brokers that lost what they retained: when it is published again
        keepers = [SubscriptionKeeper(shard, self._subscriptions_refused) for shard in self._shards]
        self.aggregators = Aggregators(
            run,
            self._shards,
            self.topics,
            placement=self.placement,
            roster=self.roster,
            now=self.now,
            keepers=keepers,
            observer=observer,
            are_used=aggregators,
        )
        self.acceptance = Acceptance(run, self._intake, self.roster, self._roster_show)
        self.attendance = Attendance(
            run,
            self._shards,
            intake=self._intake,
            roster=self.roster,
            show=self._roster_show,
            publisher=self._publisher,
            own_status=self._own_status,
            placement=self.placement,
            silent=self._silent,
            now=self.now,
            observe_peer=self._observe_peer,
        )
        self.connections = Connections(
            run,
            self._shards,
            self.topics,
            items=self._items,
            intake=self._intake,
            publisher=self._publisher,
            postponed=self._postponed,
            own_status=self._own_status,
            aggregators=self.aggregators,
            show=self._roster_show,
            placement=self.placement,
            silent=self._silent,
            now=self.now,
            handle=self._handle,
            observer=observer,
            subscriptions=keepers,
        )
        self.reader = Reader(
            run,
            self.topics,
            intake=self._intake,
            aggregators=self.aggregators,
            roster=self.roster,
            duplicate_ids=self.duplicate_ids,
            now=self.now,
            observer=observer,
            give_way=self._give_way,
            elsewhere=self._elsewhere,
        )

    def __repr__(self) -> str:
        federation = self.topics.federation
        return f"<Service of {federation}: {self.state}, {self.run!r}>"

    def now(self) -> float:
        """The time of the engine and of everything here (s): it stands still while this process is frozen."""
        loop_s = time_of_loop()
        return self._clock.time(loop_s)

    @property
    def state(self) -> State:
        """The run's state, in a word."""
        return self._own_status.state

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
        self._items.wake(Stop())

    def _subscriptions_refused(self, topics: tuple[str, ...]) -> None:
        self._is_deaf = bool(topics)
        self.connections.refused(topics)

    def _give_way(self, name: str, stale: bool) -> None:
        """Another coordinator is at work, with the run of this name: this one ends.

        Args:
            name: of the other's scenario.
            stale: both have the same run, and the other has taken it up after this one.
        """
        self._rival = (
            continued_elsewhere(name, self.run.folder)
            if stale
            else already_running(name, self.scenario.federation)
        )
        self.stop()

    async def serve(self, first: Sequence[Effect] = ()) -> str | None:
        """Run until the run is over: "" or why it was given up; None after `stop`.

        `first` are the effects of a resume; what they would publish is published at the first `Up`.
        Raises UserError if another coordinator is at work in the federation and was there before, or has taken up
        this very run since.
        """
        over: str | None = None
        for effect in first:
            match effect:
                case Announce(notice):
                    self.observer(notice)
                case Done(why):
                    over = why
        was_over = over is not None
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
                    over = await self._carry_out(await self._decide(item))
                    if self._postponed and over is None:
                        await self._publish_postponed()
                except DiskFullError as error:
                    # the operator has stopped us while we waited for room
                    self._full = error
                    break
                await self._tell_of_waiting()
                await self._roster_show.publish(self.now())
                self._own_status.store()
            if self._rival is not None:
                # our documents may lie over those of the other one, which then publishes its own again
                await self._own_status.give_way(last_will(self.topics))
            else:
                if not was_over:  # no agent has joined since: the roster of the run's end stays
                    await self._roster_show.publish_all()
                await self._own_status.publish(stopped=over is None)
            self._own_status.store(stopped=over is None)
            reader.cancel()
            heart.cancel()
            self.connections.close()
        if over is None:
            self.run.audit.close("stop", why="")
        else:
            self.run.audit.close("end", why=over)
        if self._full is not None:
            raise self._full
        if self._rival is not None:
            raise self._rival
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
        timers = (
            self.run.engine.wake_at,
            self._roster_show.due,
            self.duplicate_ids.announce_at,
            self._waiting.due,
            self._own_status.due,
            self._again_due,
            self._intake.wake_at,
            self._silent.wake_at,
            self.aggregators.wake_at,
            self._elsewhere.due,
            *self._cleared.values(),
        )
        times = [time for time in timers if time is not None]
        if self._postponed:
            times.append(self.now())
        timeout: float | None = None
        if times:
            timeout = self._clock.wait(min(times), time_of_loop())
        return await self._items.take(timeout)

    async def _tell_of_waiting(self) -> None:
        """Show why the run waits once it has waited for a while, when the reason changes, and from time to time."""
        why = self.run.engine.waits_for or ""
        if why:
            hint = self.roster.exclusions()
            if not hint and not any(entry.status.online for entry in self.roster.entries.values()):
                hint = self._elsewhere.sentence
            why = "; ".join(filter(None, (why, hint)))
        shown = self._waiting.reason(why, self.now())
        if shown is not None:
            reason, waited_s = shown
            if not self.roster.entries and not self._is_deaf:
                await self._elsewhere.look(self.now())
            self.observer(RunWaits(reason, round(waited_s)))

    # -- what comes in -----------------------------------------------------------------------------

    async def _read(self) -> None:
        async for incoming in self.link.incoming():
            item = self.reader.item(incoming)
            if isinstance(item, Repeat) or item == Control(command="tell"):
                # at once: others wait for it, and a fold may take long
                await self._own_status.publish()
            if item is not None:
                await self._items.put(item)

    # -- what it means -----------------------------------------------------------------------------

    async def _decide(self, item: Item | None) -> list[Effect]:
        match item:
            case None | Wake():
                return await self._woken()
            case Up():
                return await self.connections.up(item)
            case Down():
                return await self.connections.down(item)
            case Arrived():
                if self.acceptance.expects_many and len(self._items) < MAX_TOGETHER:
                    await asyncio.sleep(COMPANY_S)
                return await self.acceptance.take(self._items.together(item), self.now())
            case Seen():
                seen = self._items.together(item)
                return await self.attendance.take([one.agent for one in seen])
            case SumArrived() | AggregatorSeen():
                return await self.aggregators.take(item, self.now())
            case Repeat(shard):
                return await self._retained_again(shard)
            case Cleared(shard):
                self._cleared.setdefault(shard, self.now() + SWEEP_S)
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
                self._own_status.due = self.now()
                return await self._handle(Paused())
            case Control(command=command):
                self._tell_control(command)
                self._own_status.due = self.now()
                return await self._handle(Resumed())
        return []

    async def _woken(self) -> list[Effect]:
        """Do everything that is due now."""
        now = self.now()
        self._intake.tidy(now)
        late: list[Effect] = []
        agents = self._intake.read_late(now)
        if agents:
            late = await self.attendance.take(agents)
        if _is_due(self._intake.roll_at, now):
            await self.attendance.call_roll_again()
        if _is_due(self.duplicate_ids.announce_at, now):
            self.duplicate_ids.announce_at = None
            self._own_status.due = now
        if _is_due(self._elsewhere.due, now):
            await self._elsewhere.stop()
        if _is_due(self._own_status.due, now):
            await self._own_status.publish()
        orders: list[Effect] = []
        if _is_due(self._again_due, now):
            self._again_due = None
            for client in sorted(self._publisher.unpublished):
                orders.append(self.run.order_of(client))
        for shard in [shard for shard, due in self._cleared.items() if now >= due]:
            del self._cleared[shard]
            self._own_status.call_roll_on(shard)
            await self._own_status.publish_on(shard)
            self._roster_show.lost(now)
            orders += await self._retained_again(shard)
        left = await self.attendance.unreachable(self._silent.take_overdue(now))
        effects = await self._handle(Tick())
        return [*late, *orders, *left, *effects]

    async def _retained_again(self, shard: int) -> list[Effect]:
        """All that a broker should retain, however much of it is still there."""
        self._publisher.retained_is_unknown()
        self.aggregators.retained_is_unknown(shard)
        return await self.connections.retained_by(shard)

    def _tell_control(self, command: str) -> None:
        self.run.audit.command(command)
        self.observer(ControlReceived(command, self.topics.control))

    async def _handle(self, event: Any) -> list[Effect]:
        effects: list[Effect] = await asyncio.to_thread(self.run.handle, event, self.now())
        return effects

    async def _forget(self, agent: str) -> list[Effect]:
        """Remove an agent from the run and the roster, and clear all that is retained for it."""
        self.run.audit.command(f"forget {agent}")
        effects = await self._handle(Forget(agent))
        self.roster.forget(agent)
        self._intake.forget(agent)
        self._postponed.drop(agent)
        await self._publisher.forget(agent)
        self._roster_show.publish_at(self.now())
        return effects

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
                        self._postponed.drop(client)
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
            await self._own_status.publish()
        for effect in await self.aggregators.prepare():
            if isinstance(effect, SendOrder):
                orders[effect.client] = effect
        if over is not None:
            await self.aggregators.close()
        await self._publisher.orders(list(orders.values()))
        if self._publisher.unpublished:
            now = self.now()
            self._again_due = self._again_due or now + ORDER_AGAIN_S
        return over

    async def _publish_postponed(self) -> None:
        """Publish the next of the orders that were postponed, as they are now."""
        await self._carry_out([self.run.order_of(client) for client in self._postponed.take()])

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
            await self.link.publish(self.topics.metrics, line.encode(), retain=True)

    async def _ask(self, agent: str) -> None:
        """Ask an agent that the roster has as online whether it is there."""
        entry = self.roster.entries.get(agent)
        if entry is None or not entry.status.online:
            return
        await self._publisher.ask(agent, entry.status.session)


def time_of_loop() -> float:
    return asyncio.get_running_loop().time()


def _is_due(at: float | None, now: float) -> bool:
    """Whether a timer has run out; None: it is not set."""
    return at is not None and now >= at


def _new_session() -> str:
    suffix = uuid.uuid4().hex[:8]
    return session_id(time.time(), suffix)
