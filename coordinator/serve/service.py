"""The machine of the coordinator: what happens on the link goes to the run, and effects of the run become publications.

It never waits. `read` writes parts straight to disk, in the event loop. `handle` works in a thread, so that keep-alives are
sent in time; it takes one item after another, and what the run asks for is published before the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.coordinator.disk.space import GONE
from covey.coordinator.engine.events import Forget, Paused, Release, Resumed, Tick
from covey.coordinator.odd import Broker, Odd
from covey.coordinator.record.notices import (
    BrokerDrops,
    CausedByPeer,
    ControlReceived,
    DiskRemark,
    Notice,
    Observer,
    PhaseFolded,
    ProcessFrozen,
    RunWaits,
    SubscriptionsRefused,
    WorkFailed,
    ignore,
)
from covey.coordinator.record.roster_files import read_roster
from covey.coordinator.run.effects import (
    Announce,
    DropModel,
    Effect,
    Question,
    RunOver,
    SendModel,
    SendOrder,
)
from covey.coordinator.run.happenings import GivenUp
from covey.coordinator.run.run import Run
from covey.coordinator.serve import acceptance, attendance, publisher
from covey.coordinator.serve.attendance import Connections
from covey.coordinator.serve.desk import LOOKED, ORDERS, STATUS, Desk, happen, orders_of
from covey.coordinator.serve.direct import AggregatorItem, Direct
from covey.coordinator.serve.elsewhere import EVERY_STATUS, LOOK_S, Elsewhere
from covey.coordinator.serve.exclusive import already_running, continued_elsewhere
from covey.coordinator.serve.hearing import Flooding, Hearing
from covey.coordinator.serve.intake import Arrived, Intake, StatusQueued
from covey.coordinator.serve.own_status import OwnStatus, State
from covey.coordinator.serve.placement import Placement, Sharded, SilentShards, shards_of
from covey.coordinator.serve.publisher import NotTaken
from covey.coordinator.serve.reader import Cleared, Reader, ReadItem, Repeat
from covey.coordinator.serve.roster import Roster, page_agents
from covey.coordinator.serve.roster_show import RosterShow
from covey.coordinator.serve.steady import BEAT_S, SteadyClock
from covey.shared import extras
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt import program as shell
from covey.shared.mqtt.duplicate_ids import DuplicateIds, session_id
from covey.shared.mqtt.link import Down, Echo, Incoming, Link, Up, Will
from covey.shared.mqtt.program import End, Items, Look, Publish, Show, Start
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.programs.timers import OWN_AGENTS_S, WAITING_S, Waiting, earliest
from covey.shared.programs.version import version
from covey.shared.sentences import some
from covey.shared.wire.documents import Control, CoordinatorStatus
from covey.shared.wire.topics import Topics

# Then orders are published that agents do not have. That a report was accepted is a number in the next order, which mostly
# comes before; without an answer an agent sends its report again after 1.5 s.
ORDER_AGAIN_S = 1.0
ORDERS_AT_ONCE = 100  # that have their turn together
TURN_S = 0.05  # between two turns
STATUS_S = 1.0  # within which people learn how far the run is
SWEEP_S = 3.0  # in which an operator clears one retained topic after another
SHORT_QUEUE = 500  # agents whose statuses any broker can queue


@dataclass(frozen=True)
class Begin:
    """The service begins, with these effects of a resume."""

    first: Sequence[Effect]


@dataclass(frozen=True)
class Stop:
    """End the service; the run can be resumed."""


@dataclass(frozen=True)
class Frozen:
    """This process was frozen for a time (s)."""

    seconds: float


Item = ReadItem | NotTaken | TopicsRefused | Begin | Stop | Frozen


def last_will(topics: Topics, run: Run | None = None) -> Will:
    """The status that the broker publishes when a coordinator vanishes; without a run it has given way to another one."""
    status = CoordinatorStatus(online=False, state="stopped")
    if run is not None:
        rounds = {"round": run.engine.round, "rounds": run.scenario.rounds.count}
        own = {"run": run.id, "name": run.scenario.name, "version": version()}
        status = status.model_copy(update=own | rounds)
    return Will(topics.coordinator_status, status.to_bytes())


def _aggregators(desk: Desk) -> Direct:
    found: Direct = extras.part("scale", "aggregators", "--aggregators").Aggregators(desk)
    return found


class Service:
    """A run over a link. The observer gets every line of the record and every event worth a line.

    With `aggregators`, reports may come as sums of the aggregators near the brokers. A run that has waited for agents for
    `give_up_after_s` without a break is given up.
    """

    def __init__(
        self,
        run: Run,
        link: Link,
        *,
        observer: Observer = ignore,
        session: str | None = None,
        aggregators: bool = False,
        give_up_after_s: float = math.inf,
    ) -> None:
        self.run = run
        self.link = link
        self.observer = observer
        self.scenario = run.scenario
        self.topics = topics = Topics(self.scenario.federation)
        page = page_agents(self.scenario.wire.part_bytes)
        self.roster = roster = Roster(self.scenario.task.digest, page, run.members)
        with contextlib.suppress(OSError, DecodeError):
            known = read_roster(run.folder).agents
            roster.before = {agent: row.get("seen") for agent, row in known.items()}
        self.last_phase: PhaseFolded | None = None  # None before the first
        self.last_evaluation: Mapping[str, Any] = {}  # averages by mode, of the newest evaluation
        self._shards = shards_of(link)
        placement = link.placement if isinstance(link, Sharded) else Placement(1)
        own_session = session or session_id(time.time(), uuid.uuid4().hex[:8])
        self.desk = Desk(
            run,
            topics,
            shards=len(self._shards),
            roster=roster,
            placement=placement,
            silent=SilentShards(self.scenario.rounds.timing.rollcall_s),
            intake=Intake(run, roster, placement),
            hearing=Hearing(topics, run.members),
            own_status=OwnStatus(run, len(self._shards), topics, own_session),
            show=RosterShow(run, topics, roster),
            elsewhere=Elsewhere(self.scenario.federation),
            duplicate_ids=DuplicateIds(own_session),
        )
        self.aggregators = _aggregators(self.desk) if aggregators else Direct(self.desk)
        self._connections = Connections(self.desk, self.aggregators)
        self._reader = Reader(self.desk, self.aggregators, self._give_way)
        self._clock = SteadyClock()
        self._give_up_after_s = give_up_after_s
        self._waiting = Waiting(
            give_up_after_s, WAITING_S if self.scenario.fleet is None else OWN_AGENTS_S
        )
        self._items = Items(together=[Arrived, StatusQueued, NotTaken])
        self._stopping = False
        self._error: UserError | None = None  # why `serve` ends
        # set once this coordinator gives way to another one
        self._has_rival = False
        self._was_over = False  # when the service began
        self.desk.show.broker = self._broker
        self._is_deaf = False  # the broker refuses a subscription
        self._drops = ""  # what the broker drops of what it acknowledges, for people

    def __repr__(self) -> str:
        return f"<Service of {self.topics.federation}: {self.state}, {self.run!r}>"

    @property
    def state(self) -> State:
        """The run's state, in a word."""
        return self.desk.own_status.state

    @property
    def certificates(self) -> dict[int, float]:
        """When the certificate of each broker expires, in seconds since 1970, by its number; empty without TLS."""
        until = {
            shard: getattr(link, "certificate_until", None)
            for shard, link in enumerate(self._shards)
        }
        return {shard: at for shard, at in until.items() if at is not None}

    @property
    def odd(self) -> list[Odd]:
        """The list of all that is odd about the fleet now."""
        return self.desk.show.odd()

    def _broker(self) -> Broker:
        """The brokers as this program sees them."""
        down = [str(shard) for shard, up in self.shards_up.items() if not up]
        why = f"broker {some(down)} of several is not connected" if down else self._drops
        return Broker(why, min(self.certificates.values(), default=None))

    @property
    def shards_up(self) -> dict[int, bool]:
        """Whether each of several brokers is connected, by its number; empty if there is one broker."""
        placement = self.desk.placement
        if placement.shards == 1:
            return {}
        return {shard: shard in placement.up for shard in range(placement.shards)}

    def stop(self) -> None:
        """End `serve` soon; what has happened until then is in the checkpoint."""
        self._stop()
        self._items.add(Stop())

    def _stop(self) -> None:
        self._stopping = True
        self.run.room.close()

    def _give_way(self, name: str, *, stale: bool) -> None:
        """Another coordinator is at work, with the run of this name: this one ends.

        Args:
            name: of the other's scenario.
            stale: both have the same run, and the other has taken it up after this one.
        """
        self._has_rival = True
        self._error = (
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
        self.run.room.notify = self._disk_notice()
        self._items.add(Begin(first))
        async with self.ends_in_order():
            over: str | None = await shell.program(
                self,
                self.link,
                items=self._items,
                shards=self._shards,
                show=self.observer,
                off_loop=True,
            )
            self.run.audit.close("stop" if over is None else "end", why=over or "")
        if self._error is not None:
            raise self._error
        return over

    @contextlib.asynccontextmanager
    async def ends_in_order(self) -> AsyncIterator[None]:
        """A block whose error ends the run before its last round: the status on every broker states it.

        Raises UserError if the run's folder is gone.
        """
        room = self.run.room
        try:
            room.check()
            yield
        except Exception as error:
            if room.is_gone():
                room.trouble = GONE
            else:
                room.trouble = room.trouble or f"{type(error).__name__}; its log has more"
                self.desk.own_status.store(stopped=True)
            await self._publish_status(stopped=True)
            room.check()
            raise

    async def _publish_status(self, *, stopped: bool = False) -> None:
        """Publish the status at once, although the run waits for its disk or has ended."""
        for shard, link in enumerate(self._shards):
            payload = self.desk.own_status.payload(shard, stopped=stopped)
            await link.publish(self.topics.coordinator_status, payload, retain=True)

    def _disk_notice(self) -> Callable[[str], None]:
        """What a thread that waits for room on the disk calls."""
        loop = asyncio.get_running_loop()

        def remark(why: str) -> None:
            loop.call_soon_threadsafe(self.observer, DiskRemark(why))
            asyncio.run_coroutine_threadsafe(self._publish_status(), loop)

        return remark

    async def _beat(self) -> Frozen:
        """Ask the clock so often that a silence means a freeze of this process, and wait for one.

        Raises UserError once the run's folder is gone: while nothing happens nobody else would see it.
        """
        while True:
            self.run.room.check()
            await asyncio.sleep(BEAT_S)
            self._clock.time(asyncio.get_running_loop().time())
            frozen_s = self._clock.take_freeze()
            if frozen_s:
                return Frozen(frozen_s)

    # -- what comes in -----------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        desk = self.desk
        at = earliest(
            self.run.engine.wake_at,
            desk.show.due,
            desk.duplicate_ids.announce_at,
            self._waiting.due,
            self._waiting.gives_up_at,
            desk.timers.next,
            desk.intake.wake_at,
            desk.hearing.wake_at,
            desk.silent.wake_at,
            self.aggregators.wake_at,
        )
        return None if at is None else self._clock.when(at)

    def read(self, incoming: Incoming, now: float) -> list[ReadItem | shell.Effect]:
        with self.desk.lock:
            return self._reader.read(incoming, self._clock.time(now))

    def handle(self, items: Sequence[Item], now: float) -> Sequence[shell.Effect]:
        desk = self.desk
        with desk.lock:
            # the time stands still while this process is frozen
            now = self._clock.time(now)
            desk.effects = []
            over: str | None = None
            if not self._stopping:
                over = self._carry_out(self._decide(items, now), now)
                self._show_waiting(now)
                if over is None and _is_due(self._waiting.gives_up_at, now):
                    why = (
                        f"nothing could happen for {self._give_up_after_s:g} s: {self._waiting.why}"
                    )
                    over = self._carry_out(happen(desk, GivenUp(why), now=now), now)
                desk.effects += desk.show.publish(now)
                desk.own_status.store()
            if over is not None or self._stopping:
                self._end(over)
            return desk.effects

    def _end(self, over: str | None) -> None:
        """Publish that the run is over, or that this service is."""
        desk = self.desk
        if self._has_rival:
            # our documents may lie over those of the other one, which then publishes its own again
            desk.effects += desk.own_status.give_way(last_will(self.topics))
        else:
            if not self._was_over:  # no agent has joined since: the roster of the run's end stays
                desk.effects += desk.show.publish_all()
            desk.effects += desk.own_status.publish(stopped=over is None)
        desk.own_status.store(stopped=over is None)
        desk.effects.append(End(over))

    def _show_waiting(self, now: float) -> None:
        """Show why the run waits once it has waited for a while, when the reason changes, and from time to time."""
        desk = self.desk
        why = self.run.engine.waits_for
        desk.intake.missing(bool(why) and bool(self._connections.served), now)
        if why:
            hint = self.roster.exclusions() or self.roster.departures() or self._queues()
            if not hint and not any(entry.status.online for entry in self.roster.entries.values()):
                hint = desk.elsewhere.sentence
            why = "; ".join(filter(None, (why, hint)))
        shown = self._waiting.reason(why, now)
        desk.show.is_waiting(bool(self._waiting.shown), now)
        if shown is None:
            return
        reason, waited_s = shown
        elsewhere = desk.elsewhere
        if not self.run.members.listed and not self._is_deaf and not elsewhere.has_looked:
            elsewhere.has_looked = elsewhere.looks = True
            desk.timers.set(LOOKED, now + LOOK_S)
            desk.effects.append(Look([EVERY_STATUS]))
        desk.effects.append(Show(RunWaits(reason, round(waited_s))))

    def _queues(self) -> str:
        """Which limits of a broker may be in the way, where many agents are missing although they were asked again."""
        if not self.desk.intake.asked_again or self.run.engine.expected <= SHORT_QUEUE:
            return ""
        return (
            "they were asked again; if more are online, the broker drops their answers: its queue for one client must be "
            "longer than the fleet (Mosquitto: max_queued_messages, 1000 unless set)"
        )

    # -- what it means -----------------------------------------------------------------------------

    def _decide(self, items: Sequence[Item], now: float) -> list[Effect]:
        """What follows from items of one kind."""
        effects = self._orders_in_turn(now)
        if not items:
            return effects + self._woken(now)
        arrived: list[Arrived] = []
        seen: list[str] = []
        for item in items:
            match item:
                case Arrived():
                    arrived.append(item)
                case StatusQueued(agent):
                    seen.append(agent)
                case NotTaken(client):
                    self.desk.unpublished[client] = None
                case _:
                    effects += self._decide_one(item, now)
        if arrived:
            effects += acceptance.accept(self.desk, arrived, now)
        if seen:
            effects += attendance.take(self.desk, seen, now)
        return effects

    def _orders_in_turn(self, now: float) -> list[Effect]:
        """Some of the orders that agents do not have, once they are due; the others have their turn soon after."""
        desk = self.desk
        if not desk.timers.take(ORDERS, now):
            return []
        turn = list(desk.unpublished)[:ORDERS_AT_ONCE]
        for client in turn:
            del desk.unpublished[client]
        if desk.unpublished:
            desk.timers.set(ORDERS, now + TURN_S)
        return [*orders_of(desk, turn)]

    def _decide_one(self, item: Item, now: float) -> list[Effect]:
        desk = self.desk
        match item:
            case Up():
                self._check_parts(item)
                return self._connections.up(item, now)
            case Down():
                return self._connections.down(item, now)
            case Echo(why, works):
                self._drops = "" if works else why
                desk.effects.append(Show(BrokerDrops(why, works)))
                if not works:
                    self.run.audit.blame("delivery", "broker", why)
            case AggregatorItem():
                return self.aggregators.take(item, now)
            case Flooding(agent):
                return attendance.left(desk, agent, now)
            case Repeat(shard):
                return self._connections.retained_again(shard)
            case Cleared(shard):
                desk.timers.begin(("cleared", shard), now + SWEEP_S)
            case TopicsRefused():
                self._subscriptions_refused(item, now)
            case Frozen(seconds):
                why = f"this process was frozen for {seconds:.0f} s; deadlines are postponed by that time"
                desk.effects.append(Show(ProcessFrozen(round(seconds, 1), why)))
                desk.effects.append(Start("beat", self._beat))
            case Begin(first):
                return self._begin(first)
            case Control():
                return self._control(item, now)
        return []

    def _check_parts(self, up: Up) -> None:
        """End the service if the broker, as it has just named its limits, takes no parts of the run's size."""
        most = up.profile.part_bytes
        if self.scenario.wire.part_bytes > most:
            self._error = UserError(
                f"{up.broker}: the broker takes parts of at most {most} bytes, and wire.part_bytes is "
                f"{self.scenario.wire.part_bytes}; begin a run with --set wire.part_bytes={most}"
            )
            self.stop()

    def _begin(self, first: Sequence[Effect]) -> list[Effect]:
        self.desk.effects.append(Start("beat", self._beat))
        over = [effect for effect in first if isinstance(effect, RunOver)]
        self._was_over = over != []
        for effect in first:
            if isinstance(effect, Announce):
                self.desk.effects.append(Show(effect.notice))
        if not over and self.run.engine.paused:
            # it was paused when it was stopped; without this it would not show why nothing happens
            self._show_control("pause")
        return list(over)

    def _control(self, control: Control, now: float) -> list[Effect]:
        desk = self.desk
        match control:
            case Control(command="stop"):
                self.run.audit.command("stop")
                self._stop()
            case Control(command="tell"):
                pass  # the reader has answered
            case Control(command="release", agent=agent):
                desk.show.publish_at(now)
                if agent is not None:
                    return happen(desk, Release(agent), now=now)
            case Control(command="forget", agent=agent):
                if agent is not None:
                    return self._forget(agent, now)
            case Control(command=command):
                self._show_control(command)
                desk.timers.set(STATUS, now)
                return happen(desk, Paused() if command == "pause" else Resumed(), now=now)
        return []

    def _woken(self, now: float) -> list[Effect]:
        """Do everything that is due now."""
        desk, timers = self.desk, self.desk.timers
        desk.intake.tidy(now)
        effects: list[Effect] = []
        desk.effects += desk.hearing.back(now)
        late = desk.intake.read_late(now)
        if late:
            effects += attendance.take(desk, late, now)
        if _is_due(desk.intake.roll_at, now):
            attendance.call_roll_again(desk)
        if _is_due(desk.duplicate_ids.announce_at, now):
            desk.duplicate_ids.announce_at = None
            timers.set(STATUS, now)
        if timers.take(LOOKED, now):
            desk.elsewhere.looks = False
            desk.effects.append(Look([EVERY_STATUS], ends=True))
        if timers.take(STATUS, now):
            desk.effects += desk.own_status.publish()
        for shard in range(desk.shards):
            if timers.take(("cleared", shard), now):
                desk.own_status.call_roll_on(shard)
                desk.effects.append(desk.own_status.publish_on(shard))
                desk.show.lost(now)
                effects += self._connections.retained_again(shard)
        effects += attendance.unreachable(desk, desk.silent.take_overdue(now), now)
        return effects + happen(desk, Tick(), now=now)

    def _show_control(self, command: str) -> None:
        self.run.audit.command(command)
        self.desk.effects.append(Show(ControlReceived(command, self.topics.control)))

    def _forget(self, agent: str, now: float) -> list[Effect]:
        """Remove an agent from the run and the roster, and clear all that is retained for it."""
        desk = self.desk
        self.run.audit.command(f"forget {agent}")
        effects = happen(desk, Forget(agent), now=now)
        self.roster.forget(agent)
        desk.intake.forget(agent)
        desk.silent.heard(agent)
        self.aggregators.forget()
        publisher.forget(desk, agent)
        desk.show.publish_at(now)
        return effects

    def _subscriptions_refused(self, refused: TopicsRefused, now: float) -> None:
        """Report the subscriptions that fail. Once they work, call the roll again, for answers were missed."""
        topics = refused.topics
        self._is_deaf = bool(topics)
        self.desk.effects.append(Show(SubscriptionsRefused(list(topics), refused.why)))
        named = ", ".join(topics) or "none any more"
        self.run.audit.blame("subscriptions_refused", "broker", named)
        if not topics:
            self.desk.intake.roll_at = now

    # -- what goes out -----------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect], now: float) -> str | None:
        """Publish in order: models before the orders that name them. Returns why the run is over, if it is."""
        desk = self.desk
        over = None
        orders: dict[str, SendOrder] = {}
        for effect in effects:
            match effect:
                case SendModel():
                    publisher.model(desk, effect)
                case DropModel(key, parts):
                    publisher.drop_model(desk, key, parts)
                case SendOrder(client):
                    if not self.roster.is_expelled(client):
                        orders[client] = effect  # only the newest state of an agent matters
                case Question(client):
                    publisher.ask(desk, client)
                case Announce(notice):
                    self._announce(notice, now)
                    # the status does not depend on what peers did
                    if not isinstance(notice, CausedByPeer):
                        desk.timers.begin(STATUS, now + STATUS_S)
                case RunOver(why):
                    over = why
                    desk.own_status.given_up = bool(why)
        if over is not None and self._was_over:
            return over
        if over is not None:
            desk.timers.stop(STATUS)
            desk.effects += desk.own_status.publish()
        for effect in self.aggregators.prepare(now):
            if isinstance(effect, SendOrder):
                orders[effect.client] = effect
        if over is not None:
            self.aggregators.close()
        publisher.orders(desk, list(orders.values()))
        if desk.unpublished:
            desk.timers.begin(ORDERS, now + ORDER_AGAIN_S)
        return over

    def _announce(self, notice: Notice, now: float) -> None:
        """Show a notice to the observer, and publish it where it is the record of a phase."""
        desk = self.desk
        if isinstance(notice, WorkFailed):
            self.roster.failed(notice.agent, notice.why)
            desk.show.changed(now)
        if isinstance(notice, CausedByPeer):
            attendance.observe_peer(desk, notice, now)
        else:
            desk.effects.append(Show(notice))
        if isinstance(notice, PhaseFolded):
            self.last_phase = notice
            desk.show.folded(notice, now)
            if notice.means.evaluation is not None:
                self.last_evaluation = notice.means.evaluation
            line = json.dumps(notice.to_json(), allow_nan=False)
            desk.effects.append(Publish([(self.topics.metrics, line.encode())]))


def _is_due(at: float | None, now: float) -> bool:
    """Whether a timer has run out; None: it is not set."""
    return at is not None and now >= at
