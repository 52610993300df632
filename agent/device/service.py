"""The machine of one agent: messages become events of its session, and the session's actions become effects.

It works in the event loop, and decides nothing but the order of things. Contents stay in files: of a report or a model never
more than one part is in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from covey.agent.conditions import unmet
from covey.agent.data_place import DataWatch
from covey.agent.device import events as e
from covey.agent.device import notices as n
from covey.agent.device import readings
from covey.agent.device.fetching import WorkState
from covey.agent.device.identity import Identity
from covey.agent.device.model_store import MAX_MODEL_BYTES, Bases, ModelStore, ReceivedModels
from covey.agent.device.outbox import Outbox
from covey.agent.device.performing import BeforeReport, DeviceParts, Done, JudgedForUse, Performer
from covey.agent.device.presence import Vitals
from covey.agent.device.session import Session
from covey.agent.policy import DEFAULT_RULES, OwnersRules
from covey.agent.worker.pool import PoolLike
from covey.shared import extras
from covey.shared.disclosures import Promise, cleared_status
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt import program as shell
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.mqtt.link import Down, Incoming, Link, Received, Up, Will
from covey.shared.mqtt.program import Cancel, Effect, End, Items, Publish, Start
from covey.shared.programs.timers import Waiting, earliest
from covey.shared.programs.version import version
from covey.shared.storage.files import obstacle
from covey.shared.strategies.phase_names import AHEAD, BOX
from covey.shared.wire.brief_work import SharedParts
from covey.shared.wire.deployments import Deployment, DeploymentShare
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.messages import MAX_SETTINGS_BYTES, SETTINGS, OrderMessage, Part, is_base
from covey.shared.wire.topics import AgentTopic, ClusterTopic, PlainTopic, Topics, is_deployed

if TYPE_CHECKING:
    from covey.extras.in_use.deployments import Deployments
    from covey.extras.in_use.keeper import Keeper, KeepOptions

MAX_WAITING = 64  # messages that were read and not dealt with; beyond this the link's bounds count
STATUS_CACHE = 4  # statuses of coordinators that are kept as they were read
WATCH_S = 5.0  # between two looks at the data
GOODBYE_S = 2.0  # how long a broker that does not answer may delay the end
# names of work
WORK, WORK_AHEAD, INSPECT, ADOPT = "work", "ahead", "inspect", "adopt"
SEND, FLUSH = "send", "flush"


class NameTakenError(UserError):
    """Another agent uses this id, and started earlier."""


@dataclass(frozen=True)
class Begin:
    """The agent begins to live."""


@dataclass(frozen=True)
class Stop:
    """The agent ends."""


@dataclass(frozen=True)
class Whole:
    """The report of a step was read again before it is sent: its file still holds what the worker wrote, or not."""

    step: int
    is_whole: bool


@dataclass(frozen=True)
class Known:
    """The status with the numbers of samples has left, or the link is lost and the next one begins with it."""

    taken: bool


@dataclass(frozen=True)
class Written:
    """The disk can be written to again."""


Item = Incoming | Begin | Stop | Whole | Known | Written | Done | JudgedForUse | e.Event


async def _at_once(order: OrderMessage) -> None:
    return None


def _never(order: OrderMessage) -> bool:
    return False


def _ignore(notice: n.DeviceNotice) -> None:
    return None


class Agent:
    """One life of an agent, from its start to `stop` or `vanish`. The next life finds its state on disk.

    Args:
        identity: who the agent is, and where its data and its state lie.
        pool: the workers.
        rules: what a coordinator may ask of this device.
        observer: receives notices, for a person or a log.
        before_report: awaited between the work and its report, for fault drills.
        dies: asked at the start of each work whether the agent is cut off, for fault drills.
        session: a name for this life; by default one that sorts by its start.
        keep: how the device keeps models for its own use; None: it keeps none.
        received: what other agents of this process receive of models, too; None for an agent by itself.
        certificate: when the first certificate of its files ends, in seconds since 1970; None without any.

    Raises:
        UserError: another process uses the agent's folder.
    """

    def __init__(
        self,
        identity: Identity,
        pool: PoolLike,
        *,
        rules: OwnersRules = DEFAULT_RULES,
        observer: n.DeviceObserver = _ignore,
        before_report: BeforeReport = _at_once,
        dies: Callable[[OrderMessage], bool] = _never,
        session: str | None = None,
        keep: KeepOptions | None = None,
        received: ReceivedModels | None = None,
        certificate: float | None = None,
    ) -> None:
        self.identity = identity
        self.topics = Topics(identity.federation)
        self.outbox = Outbox(identity.state, durable=identity.durable, agent=identity.agent)
        max_model_bytes = rules.policy.largest_model_bytes or MAX_MODEL_BYTES
        models = identity.state / "models"
        # a model that a power cut damages is fetched again, as the order still names it
        self.store = ModelStore(
            models,
            max_model_bytes,
            durable=False,
            received=received,
            bases=Bases(identity.state / "bases", rules.policy.largest_base_bytes),
        )
        self.keeper: Keeper | None = None
        self._deployed: ModelStore | None = None  # models that were published for use
        deployments: Deployments | None = None
        if keep is not None:
            self.keeper = keeper = extras.part("in_use", "keeper").Keeper(
                keep, observer, self._happens, durable=identity.durable
            )
            deployed = identity.state / "deployed"
            self._deployed = ModelStore(deployed, max_model_bytes, durable=identity.durable)
            deployments = extras.part("in_use", "deployments").Deployments(
                identity.agent,
                self.topics,
                settled=keeper.models.index.serial,
                has=keeper.has_settled,
                models=self._deployed.digests,
                rules=rules,
            )
        self.session = Session(
            identity.agent,
            self.topics,
            session=session or session_id(time.time(), secrets.token_hex(4)),
            version=version(),
            vitals=Vitals(certificate=certificate),
            outboxed=self.outbox.outboxed,
            models=self.store.digests,
            model_in_use=self.keeper.status if self.keeper is not None else None,
            deployments=deployments,
            rules=rules,
        )
        self._shared_parts = SharedParts(MAX_SETTINGS_BYTES)
        self._data_watch = DataWatch(identity.data)
        self.vanished = False  # True from `vanish` on: nothing is published any more
        self._observer = observer
        self._dies = dies
        device = DeviceParts(
            identity,
            rules,
            self.outbox,
            store=self.store,
            deployed=self._deployed,
            keeper=self.keeper,
            observer=observer,
        )
        self._performer = Performer(device, pool, before_report)
        self._conditions = rules.policy.only_when
        self._promises = rules.policy.promises
        self._unmet = ""  # the first of them that does not hold, for people; empty if all hold
        self._certificate = certificate
        self._link: Link | None = None  # None before `run`
        self._items = Items(MAX_WAITING)
        self._events: deque[e.Event] | None = None  # to be handled now; None between two items
        self._effects: list[Effect] = []  # of the item that is handled now
        self._waiting = Waiting()
        self._watch_at: float | None = None  # when to look at data and conditions; None: never
        # cleared while the data is compared with a task, and until the broker has the status with the number of samples
        self._is_inspected = asyncio.Event()
        self._has_inspected = False  # and that status is next
        self._just_written = 0  # step of a report that was written and not sent yet; 0 for none
        self._is_flushing = False  # the outbox waits for room
        self._is_inspected.set()
        self._is_over = False  # it was stopped

    def __repr__(self) -> str:
        return f"<Agent {self.identity.agent!r} of {self.identity.federation!r}: {self.session!r}>"

    @property
    def client_id(self) -> str:
        """The MQTT client id. It is new in each life, so that two agents with one id notice each other."""
        return f"{self.fixed_client_id}-{self.session.will.session}"

    @property
    def fixed_client_id(self) -> str:
        """The one for brokers that know a device by its client id: the same in each life, which takes over from the last."""
        return f"covey-{self.identity.federation}-{self.identity.agent}"

    @property
    def will(self) -> Will:
        """The last will: the broker publishes it when this agent is gone. It is known before the link opens."""
        return Will(self._status_topic, self.session.will.to_bytes())

    @property
    def _status_topic(self) -> str:
        return self.topics.status(self.identity.agent)

    async def run(self, link: Link) -> None:
        """Live until `stop`, `vanish` or cancellation.

        Args:
            link: open, with `will` as its last will.

        Raises:
            NameTakenError: another agent uses this id, and started earlier.
        """
        self._link = link
        self._items.add(Begin())
        try:
            await shell.program(self, link, items=self._items, ahead=True)
        finally:
            self.outbox.close()
            if self.keeper is not None:
                await self.keeper.close()
            if self.vanished:
                await link.abort()
            else:
                await self._announce_end(link)

    async def _announce_end(self, link: Link) -> None:
        goodbye = self.session.goodbye.model_copy(update={"clock": round(time.time(), 3)})
        content = goodbye.to_bytes()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await link.publish(self._status_topic, content, retain=True)

    def stop(self) -> None:
        """End `run` with a goodbye."""
        self._is_over = True
        self._items.add(Stop())

    async def vanish(self) -> None:
        """End `run` as a power cut would: the broker publishes the last will."""
        self.vanished = True
        if self._link is not None:
            await self._link.abort()
        self.stop()

    def show_story(self) -> None:
        """Give notice of everything that happened to this agent so far."""
        started = time.time() - _now()  # when the event loop's clock was at zero
        lines: list[n.StoryLine] = []
        for line in self.session.story():
            local = datetime.fromtimestamp(started + line.at).astimezone()
            text = line.text
            if line.times > 1:
                text += f" ({line.times} times)"
            lines.append(n.StoryLine(local.isoformat(timespec="seconds"), text))
        self._observer(n.StorySoFar(tuple(lines)))

    # what arrives

    @property
    def wake_at(self) -> float | None:
        return earliest(self.session.wake_at, self._watch_at)

    def read(self, incoming: Incoming, now: float) -> tuple[Incoming, ...]:
        return (incoming,)

    def handle(self, items: Sequence[Item], now: float) -> list[Effect]:
        self._effects = []
        self._events = deque()
        self.outbox.holds = True
        try:
            if not items:
                self._woken(now)
            for item in items:
                self._take(item, now)
            while self._events and not self._ends:
                for action in self.session.handle(self._events.popleft(), now):
                    self._carry_out(action, now)
        finally:
            self._events = None
            self.outbox.holds = False
        if self._has_inspected:  # others know the numbers
            self._has_inspected = False
            self._is_inspected.set()
        if self._ends or self.session.state is WorkState.IDLE:
            self.outbox.flush()
        if self.outbox.unwritten and not self._is_flushing:
            self._is_flushing = True
            self._effects.append(Start(FLUSH, self._flush))
        if self._ends:
            return [End()]
        return self._effects

    @property
    def _ends(self) -> bool:
        return self._is_over or self.vanished

    def _happens(self, event: e.Event) -> None:
        """Let the session handle an event, after those that wait."""
        if self._events is None:
            self._items.add(event)
        else:
            self._events.append(event)

    def _take(self, item: Item, now: float) -> None:
        match item:
            case Begin():
                self._begin(now)
            case Received():
                try:
                    event = self._decode(item, now)
                except DecodeError as error:
                    dropped = self.session.dropped
                    dropped[error.reason] = dropped.get(error.reason, 0) + 1
                    self._observer(n.MessageRefused(str(error)))
                else:
                    if event is not None:
                        self._happens(event)
            case Done() if self._performer.has_more_than_known(item):
                self._read_data_again()
                self._effects.append(Start(WORK, partial(self._once_inspected, item.known())))
            case Done() if not self._is_inspected.is_set():
                self._effects.append(Start(WORK, partial(self._once_inspected, item)))
            case Done(order):
                event = self._performer.settle(item)
                if isinstance(event, e.WorkDone):
                    self._just_written = order.step
                    work = order.work
                    if work is not None and work.phase == BOX and AHEAD in work.numbers:
                        self._effects.append(
                            Start(WORK_AHEAD, partial(self._performer.work_ahead, order))
                        )
                self._happens(event)
            case JudgedForUse():
                if self.keeper is not None and self._deployed is not None:
                    settle = self._performer.settle_deployment
                    self._happens(settle(self.keeper, self._deployed, item))
            case Whole(step, is_whole):
                if is_whole:
                    self._send(step)
                else:
                    self._observer(n.Damaged(self.outbox.set_report_aside()))
                    self._happens(e.OutboxDamaged(step))
            case Known():
                self._is_inspected.set()
            case Written():
                self._is_flushing = False
                self._observer(n.DiskFull("the disk can be written to again"))
            case Stop():
                self._is_over = True
            case _:
                self._notice(item)
                if isinstance(item, Up):  # the first status has them already
                    self._look_at_machine()
                self._happens(item)

    def _notice(self, event: e.Event) -> None:
        """Give notice of an event."""
        match event:
            case Up(broker):
                self._observer(n.Connected(broker=broker))
            case Down(why=why):
                self._observer(n.Disconnected(why))
            case e.Sent(step, whole):
                self._observer(n.ReportSent(step, whole))
            case e.Inspected():
                self._has_inspected = True

    def _begin(self, now: float) -> None:
        for why in [*self.outbox.damaged, *self.store.damaged]:
            self._observer(n.Damaged(why))
        if self.keeper is not None:
            self.keeper.report_damage()
        self._look_at_conditions()
        if self.identity.data is not None:
            self._watch_at = now + WATCH_S

    def _woken(self, now: float) -> None:
        """Look from time to time whether data or conditions have changed, and whether there is still nothing to do."""
        if self._watch_at is not None and now >= self._watch_at:
            self._watch_at = now + WATCH_S
            shown = self._waiting.reason(self.session.waits_for, now)
            if shown is not None:
                why, waited_s = shown
                self._observer(n.WaitsForCoordinator(why, round(waited_s)))
            self._look_at_conditions()
            self._look_at_machine()
            if self._data_watch.has_changed():
                self._read_data_again()
        wake_at = self.session.wake_at
        if wake_at is not None and now >= wake_at:
            self._happens(e.Tick())

    def _look_at_conditions(self) -> None:
        """Compare the device with its owner's conditions for work, if there are any."""
        if not self._conditions:
            return
        why = unmet(self._conditions, readings.read())
        if why != self._unmet:
            self._unmet = why
            self._happens(e.ConditionsSeen(why))

    def _look_at_machine(self) -> None:
        """Room on the disk, and when certificates end: of our files and of the broker's. Simulated agents are no machines."""
        if self.identity.data is None:
            return
        free = None
        if Promise.OWNED not in self._promises:
            with contextlib.suppress(OSError):
                state = self.identity.state
                free = shutil.disk_usage(state).free if os.access(state, os.W_OK) else 0
        until = getattr(self._link, "certificate_until", None)
        known = [end for end in (self._certificate, until) if end is not None]
        self._happens(e.VitalsSeen(free, min(known, default=None)))

    def _read_data_again(self) -> None:
        self._observer(n.DataChanged())
        self._happens(e.DataReplaced(self._data_watch.is_gone))
        if self.keeper is not None and not self._unmet:
            self.keeper.data_changed(self._performer.measured)

    def _decode(self, message: Received, now: float) -> e.Event | None:
        """The event of a message; None for nothing. Raises DecodeError if it makes no sense."""
        payload = message.payload
        if not payload:  # a retained topic was cleared
            return None
        match self.topics.parse(message.topic):
            case PlainTopic("coordinator/status"):
                return e.CoordinatorSeen(_coordinator_status(payload), message.retained)
            case AgentTopic(agent, "status") if agent == self.identity.agent:
                return e.OwnStatusSeen(AgentStatus.from_bytes(payload), message.retained)
            case AgentTopic(agent, "order") if agent == self.identity.agent:
                return self._order(OrderMessage.from_bytes(payload))
            case AgentTopic(agent, "model"):
                return self._store_part(self.store, f"@{agent}", message, now)
            case ClusterTopic(key, _) if key == SETTINGS:
                part = Part.from_bytes(payload)
                shared = self._shared_parts.feed(part)
                if shared is None:
                    return e.PartSeen(message.topic, part.digest)
                return e.SettingsReady(part.digest, shared)
            case ClusterTopic(key, _) if self._deployed is not None and is_deployed(key):
                return self._store_deployed_part(self._deployed, key, message, now)
            case ClusterTopic(key, _):
                return self._store_part(self.store, key, message, now)
            case PlainTopic("deployment" | "deployment/candidate"):
                return e.DeploymentSeen(Deployment.from_bytes(payload), time.time())
            case AgentTopic(agent, "deployment") if agent == self.identity.agent:
                return e.DeploymentShareSeen(DeploymentShare.from_bytes(payload))
        raise DecodeError("topic", f"{message.topic!r} is not for {self.identity.agent}")

    def _order(self, order: OrderMessage) -> e.Event:
        """An order. The session learns first of a base that this device has already."""
        work = order.work or order.brief
        for ref in () if work is None else work.models:
            if is_base(ref.key) and self.store.has_base(ref.digest):
                self._happens(e.ModelReady(ref.key, ref.digest))
        return e.OrderSeen(order)

    def _store_deployed_part(
        self, store: ModelStore, key: str, message: Received, now: float
    ) -> e.Event | None:
        match self._store_part(store, key, message, now):
            case e.ModelReady(_, digest):
                return e.DeployedModelReady(digest)
            case e.PartSeen(topic, digest):
                return e.DeployedPartSeen(topic, digest)
        return None

    def _store_part(
        self, store: ModelStore, key: str, message: Received, now: float
    ) -> e.Event | None:
        part = store.decode(message.payload)
        try:
            is_complete = store.feed(part, now)
        except OSError as error:  # the session asks the broker for the parts again
            if why := obstacle(error, self.identity.state):
                self._performer.disk.notice(why)
                raise DecodeError("disk full", why) from None
            raise
        if is_complete is None:
            return None
        if not is_complete:
            return e.PartSeen(message.topic, part.digest)
        if is_base(key):
            store.keep_base(part.digest)
        return e.ModelReady(key, part.digest)

    # what follows

    def _carry_out(self, action: e.Action, now: float) -> None:
        effects = self._effects
        match action:
            case e.Subscribe(topics):
                effects.append(shell.Subscribe(topics))
            case e.Unsubscribe(topics):
                effects.append(shell.Unsubscribe(topics))
            case e.PublishStatus(status):
                dated = status.model_copy(update={"clock": round(time.time(), 3)})
                payload = cleared_status(dated, self._promises).to_bytes()
                then = Known if self._has_inspected else None
                self._has_inspected = False
                effects.append(Publish([(self._status_topic, payload)], then=then))
            case e.Inspect(task, task_digest, batch):
                self._is_inspected.clear()
                inspect = self._performer.inspect
                effects.append(Start(INSPECT, partial(inspect, task, task_digest, batch)))
            case e.StartWork(order):
                self._start_work(order)
            case e.CancelWork():
                effects.append(Cancel(WORK))
            case e.OrderRefused(step, why):
                self._observer(n.OrderFailed(step, why))
            case e.ReportFailure(order, why):
                write = self._performer.write_failure
                effects.append(Start(WORK, partial(write, order, why)))
            case e.SendReport(step) if self._just_written == step:
                self._just_written = 0
                self._send(step)
            case e.SendReport(step):  # it is read again before every sending but the first
                effects.append(Start(SEND, partial(self._read_report, step)))
            case e.StopSending():
                effects.append(Cancel(SEND))
            case e.KeepModels(digests):
                self.store.keep(digests, now)
            case e.KeepDeployed(digests) if self._deployed is not None:
                self._deployed.keep(digests, now)
            case e.Adopt(deployment, clusters):
                self._adopt(deployment, clusters)
            case e.DeploymentRefused(deployment) if self.keeper is not None:
                self.keeper.deployment_refused(deployment)
            case e.Notify(text):
                self._observer(n.Problem(text))
            case e.RefusalSeen(why):
                self._observer(n.CoordinatorRefused(why))
            case e.YieldId():
                raise self._name_taken()
            case _:
                self._change_outbox(action)

    def _change_outbox(self, action: e.Action) -> None:
        match action:
            case e.CommitMemory(step, confirmed):
                self.outbox.commit(step, confirmed)
                self._observer(n.ReportAccepted(step))
            case e.DropReport(step):
                if not self.outbox.state.kept:
                    self._observer(n.ReportDropped(step))
                self.outbox.drop(step)
            case e.GoBack(accepted):
                self.outbox.go_back(accepted)
                self._observer(n.AskedAgain(accepted))
            case e.LoseMemory(accepted, confirmed):
                self.outbox.lose(accepted, confirmed)
                self._observer(
                    n.Damaged(f"step {accepted} was accepted, but the state on this disk is older")
                )
            case e.SwitchRun(run):
                self.outbox.switch(run)
                self._observer(n.RunJoined(run))

    def _name_taken(self) -> NameTakenError:
        agent = self.identity.agent
        federation = self.identity.federation
        return NameTakenError(
            f"another agent with the id {agent!r} is already connected in federation {federation!r} on this broker; "
            "choose another id with --id (the default is the host's name)"
        )

    def _start_work(self, order: OrderMessage) -> None:
        self._observer(n.WorkStarted(order.step, order.work.phase if order.work else ""))
        if self._dies(order):
            self._observer(n.CutOff(order.step))
            self.vanished = True
            return
        perform = self._performer.perform
        if self._data_watch.has_changed(at_once=True):
            self._read_data_again()
            perform = self._perform_once_inspected
        self._effects.append(Start(WORK, partial(perform, order)))

    async def _perform_once_inspected(self, order: OrderMessage) -> Done:
        """Do the work once others know how many samples there are now."""
        await self._is_inspected.wait()
        return await self._performer.perform(order)

    async def _once_inspected(self, done: Done) -> Done:
        """The work, once others know of samples that came while it was done: they refuse a report with more."""
        await self._is_inspected.wait()
        return done

    def _adopt(self, deployment: Deployment, clusters: tuple[int, ...]) -> None:
        keeper, store = self.keeper, self._deployed
        if keeper is None or store is None:
            return
        if keeper.has_settled(deployment):
            self._effects.append(Cancel(ADOPT))
            keeper.deployment_settled(deployment)
            self._happens(e.DeploymentSettled(deployment.serial))
            return
        judge = self._performer.judge
        self._effects.append(Start(ADOPT, partial(judge, keeper, store, deployment, clusters)))

    async def _flush(self) -> Written:
        """Write what the outbox could not write, as soon as the disk takes it."""
        while why := self.outbox.flush():
            await self._performer.disk.wait(why)
        return Written()

    async def _read_report(self, step: int) -> Whole:
        return Whole(step, await asyncio.to_thread(self.outbox.report_is_whole))

    def _send(self, step: int) -> None:
        """Send all parts of the report, each after the broker acknowledged the one before: a stock broker drops none then."""
        size = self.outbox.state.size
        if self.outbox.report is None:
            self._happens(e.Sent(step, whole=False, size=size))
            return
        messages = self.outbox.report_parts(self.topics.report(self.identity.agent), step)
        publish = Publish(messages, retain=False, then=lambda whole: e.Sent(step, whole, size))
        self._effects.append(Start(SEND, publish))


@lru_cache(STATUS_CACHE)
def _coordinator_status(payload: bytes) -> CoordinatorStatus:
    """The status in a payload, which never changes: all agents of a process share it. Raises DecodeError."""
    return CoordinatorStatus.from_bytes(payload)


def _now() -> float:
    return asyncio.get_running_loop().time()
