"""The async shell of one agent: a link, a session, an outbox, a store of models, and a pool that does the work.

The shell decides nothing. Messages and timers become events of the session, and the session's actions are carried out.
Contents stay in files: of a report or a model never more than one part is in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import cache, lru_cache
from importlib import metadata
from typing import Any

from covey.agent.conditions import unmet
from covey.agent.data_watch import DataWatch
from covey.agent.device import bench_file, readings
from covey.agent.device import events as e
from covey.agent.device import notices as n
from covey.agent.device.deployments import Deployments
from covey.agent.device.identity import Identity
from covey.agent.device.keeper import Keeper, KeepOptions
from covey.agent.device.model_store import ModelStore
from covey.agent.device.outbox import Outbox
from covey.agent.device.performing import BeforeReport, DiskWait, Performer
from covey.agent.device.received_models import MAX_MODEL_BYTES, ReceivedModels
from covey.agent.device.sending import ReportSender
from covey.agent.device.session import Session
from covey.agent.policy import DEFAULT_RULES, Rules
from covey.agent.worker.pool import PoolLike
from covey.shared.errors import DecodeError, UserError
from covey.shared.files import obstacle
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.mqtt.link import Down, Incoming, Link, Message, Up, Will
from covey.shared.mqtt.subscriptions import SubscriptionKeeper
from covey.shared.waiting import Waiting
from covey.shared.wire.brief_work import SharedParts
from covey.shared.wire.deployments import Deployment, DeploymentShare
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.messages import MAX_SETTINGS_BYTES, SETTINGS, OrderMessage, Part
from covey.shared.wire.topics import AgentTopic, ClusterTopic, PlainTopic, Topics, is_deployed

STATUS_CACHE = 4  # statuses of coordinators that are kept as they were read
SENT_STATUSES = 4  # that may be on their way back to us
WATCH_S = 5.0  # between two looks at the data
GOODBYE_S = 2.0  # how long a broker that does not answer may delay the end


class NameTakenError(UserError):
    """Another agent uses this id, and started earlier."""


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

    Raises:
        UserError: another process uses the agent's folder.
    """

    def __init__(
        self,
        identity: Identity,
        pool: PoolLike,
        *,
        rules: Rules = DEFAULT_RULES,
        observer: n.DeviceObserver = _ignore,
        before_report: BeforeReport = _at_once,
        dies: Callable[[OrderMessage], bool] = _never,
        session: str | None = None,
        keep: KeepOptions | None = None,
        received: ReceivedModels | None = None,
    ) -> None:
        self.identity = identity
        self.topics = Topics(identity.federation)
        self.outbox = Outbox(identity.state, durable=identity.durable)
        max_model_bytes = rules.policy.largest_model_bytes or MAX_MODEL_BYTES
        models = identity.state / "models"
        # a model that a power cut damages is fetched again, as the order still names it
        self.store = ModelStore(models, max_model_bytes, durable=False, received=received)
        self.keeper: Keeper | None = None
        self._deployed: ModelStore | None = None  # models that were published for use
        deployments: Deployments | None = None
        if keep is not None:
            self.keeper = Keeper(keep, observer, self._feed, durable=identity.durable)
            deployed = identity.state / "deployed"
            self._deployed = ModelStore(deployed, max_model_bytes, durable=identity.durable)
            deployments = Deployments(
                identity.agent,
                self.topics,
                settled=self.keeper.models.index.serial,
                models=self._deployed.digests,
                rules=rules,
            )
        self.session = Session(
            identity.agent,
            self.topics,
            session=session or session_id(time.time(), secrets.token_hex(4)),
            version=_version(),
            bench=bench_file.read(identity.state),
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
        self._sender = ReportSender(self.outbox, self.topics.report(identity.agent))
        self._disk = DiskWait(observer)
        self._performer = Performer(
            identity,
            pool,
            rules,
            self.outbox,
            self.store,
            self._disk,
            observer,
            before_report,
            self.keeper,
        )
        self._conditions = rules.policy.only_when
        self._unmet = ""  # the first of them that does not hold, for people; empty if all hold
        self._link: Link | None = None  # None before `run`
        self._subscriptions: SubscriptionKeeper | None = None  # None before `run`
        self._outgoing: asyncio.Queue[e.Action] = asyncio.Queue()  # what must be sent in order
        # the newest of our statuses, which the broker sends back
        self._sent_statuses: deque[bytes] = deque(maxlen=SENT_STATUSES)
        self._timer: asyncio.TimerHandle | None = None  # the session's `wake_at`
        self._work: asyncio.Task[None] | None = None  # the newest; at most one is not done
        self._inspecting: asyncio.Task[None] | None = None
        self._adopting: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None  # None unless the outbox waits for room
        self._fault: BaseException | None = None  # the first error of a task; it ends `run`
        self._over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Agent {self.identity.agent!r} of {self.identity.federation!r}: {self.session!r}>"

    @property
    def client_id(self) -> str:
        """The MQTT client id. It is new in each life, so that two agents with one id notice each other."""
        session = self.session.will.session
        return f"covey-{self.identity.federation}-{self.identity.agent}-{session}"

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
        for why in [*self.outbox.damaged, *self.store.damaged]:
            self._observer(n.Damaged(why))
        if self.keeper is not None:
            self.keeper.report_damage()
        self._look_at_conditions()
        tasks = [
            asyncio.create_task(self._receive(link)),
            asyncio.create_task(self._publish(link)),
            asyncio.create_task(self._wait_until_over()),
        ]
        if self.identity.data is not None:
            tasks.append(asyncio.create_task(self._watch()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._fault is not None:
                raise self._fault
        finally:
            self._drop_everything()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.outbox.close()
            if self.keeper is not None:
                await self.keeper.close()
            if not self.vanished:
                await self._say_goodbye(link)

    async def _watch(self) -> None:
        """Look from time to time whether data or conditions have changed, and whether there is still nothing to do."""
        waiting = Waiting()
        while True:
            shown = waiting.reason(self.session.waits_for, _now())
            if shown is not None:
                why, waited_s = shown
                self._observer(n.WaitsForCoordinator(why, round(waited_s)))
            await asyncio.sleep(WATCH_S)
            self._look_at_conditions()
            if self._data_watch.has_changed():
                self._read_data_again()

    def _look_at_conditions(self) -> None:
        """Compare the device with its owner's conditions for work, if there are any."""
        if not self._conditions:
            return
        why = unmet(self._conditions, readings.read())
        if why != self._unmet:
            self._unmet = why
            self._feed(e.ConditionsSeen(why))

    def _read_data_again(self) -> None:
        self._observer(n.DataChanged())
        self._feed(e.DataChanged())

    async def _wait_until_over(self) -> None:
        await self._over.wait()

    async def _say_goodbye(self, link: Link) -> None:
        will = self.will
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await link.publish(will.topic, will.payload, retain=True)

    def stop(self) -> None:
        """End `run` with a goodbye."""
        self._over.set()

    async def vanish(self) -> None:
        """End `run` as a power cut would: the broker publishes the last will."""
        self.vanished = True
        self._drop_everything()
        if self._link is not None:
            await self._link.abort()
        self._over.set()

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

    async def _receive(self, link: Link) -> None:
        async for incoming in link.incoming():
            try:
                event = self._understand(incoming)
            except DecodeError as error:
                dropped = self.session.dropped
                dropped[error.reason] = dropped.get(error.reason, 0) + 1
                self._observer(n.MessageRefused(str(error)))
                continue
            if event is not None:
                self._feed(event)

    def _understand(self, incoming: Incoming) -> e.Event | None:
        """What an incoming message means; None for nothing. Raises DecodeError if it makes no sense."""
        match incoming:
            case Up(broker):
                if self._subscriptions is not None:
                    self._subscriptions.connected()
                self._observer(n.Connected(broker=broker))
                return incoming
            case Down(why):
                self._observer(n.Disconnected(why))
                return incoming
            case Message(payload=b""):  # a retained topic was cleared
                return None
            case Message():
                return self._decode(incoming)

    def _decode(self, message: Message) -> e.Event | None:
        payload = message.payload
        match self.topics.parse(message.topic):
            case PlainTopic("coordinator/status"):
                return e.CoordinatorSeen(_coordinator_status(payload), message.retained)
            case AgentTopic(agent, "status") if agent == self.identity.agent:
                if payload in self._sent_statuses and not message.retained:
                    return None  # nobody else has this session and serial number
                return e.OwnStatusSeen(AgentStatus.from_bytes(payload), message.retained)
            case AgentTopic(agent, "order") if agent == self.identity.agent:
                return e.OrderSeen(OrderMessage.from_bytes(payload))
            case AgentTopic(agent, "model"):
                return self._store_part(self.store, f"@{agent}", payload)
            case ClusterTopic(key, _) if key == SETTINGS:
                part = Part.from_bytes(payload)
                shared = self._shared_parts.feed(part)
                return None if shared is None else e.SettingsReady(part.digest, shared)
            case ClusterTopic(key, _) if self._deployed is not None and is_deployed(key):
                return self._store_deployed_part(self._deployed, key, payload)
            case ClusterTopic(key, _):
                return self._store_part(self.store, key, payload)
            case PlainTopic("deployment"):
                return e.DeploymentSeen(Deployment.from_bytes(payload), time.time())
            case AgentTopic(agent, "deployment") if agent == self.identity.agent:
                return e.DeploymentShareSeen(DeploymentShare.from_bytes(payload))
        raise DecodeError("topic", f"{message.topic!r} is not for {self.identity.agent}")

    def _store_deployed_part(self, store: ModelStore, key: str, payload: bytes) -> e.Event | None:
        match self._store_part(store, key, payload):
            case e.ModelReady(_, digest):
                return e.DeployedModelReady(digest)
            case e.PartSeen():
                return e.DeployedPartSeen()
        return None

    def _store_part(self, store: ModelStore, key: str, payload: bytes) -> e.Event | None:
        part = store.decode(payload)
        try:
            is_complete = store.feed(part, _now())
        except OSError as error:  # the session asks the broker for the parts again
            why = obstacle(error, self.identity.state)
            if not why:
                raise
            raise DecodeError("disk full", why) from None
        if is_complete is None:
            return None
        return e.ModelReady(key, part.digest) if is_complete else e.PartSeen()

    # the session and its timer

    def _feed(self, event: e.Event) -> None:
        """Let the session handle an event, and carry out its actions."""
        if self._over.is_set() or self.vanished:
            return
        for action in self.session.handle(event, _now()):
            self._carry_out(action)
        if self.outbox.unwritten and self._flushing is None:
            self._flushing = self._spawn(self._flush())
        self._set_timer()

    def _set_timer(self) -> None:
        _cancel_timer(self._timer)
        self._timer = None
        wake_at = self.session.wake_at
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_at(wake_at, self._tick)

    def _tick(self) -> None:
        try:
            self._feed(e.Tick())
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End `run` with this error. An agent with a dead task would look alive to the others."""
        self._fault = self._fault or error
        self._over.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task whose error ends `run`."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _carry_out(self, action: e.Action) -> None:
        match action:
            case e.Subscribe() | e.Unsubscribe() | e.PublishStatus():
                self._outgoing.put_nowait(action)
            case e.Inspect(task, task_digest):
                _cancel(self._inspecting)
                self._inspecting = self._spawn(self._inspect(task, task_digest))
            case e.StartWork(order):
                phase = order.work.phase if order.work is not None else ""
                self._observer(n.WorkStarted(order.step, phase))
                self._work = self._spawn(self._perform(order))
            case e.CancelWork():
                _cancel(self._work)
            case e.OrderRefused(step, why):
                self._observer(n.WorkFailed(step, why))
            case e.ReportFailure(order, why):
                self._work = self._spawn(self._report_failure(order, why))
            case e.SendReport(step):
                self._sending = self._spawn(self._send(step))
            case e.StopSending():
                _cancel(self._sending)
            case e.KeepModels(digests):
                self.store.keep(digests, _now())
            case e.KeepDeployed(digests) if self._deployed is not None:
                self._deployed.keep(digests, _now())
            case e.Adopt(deployment, clusters):
                _cancel(self._adopting)
                self._adopting = self._spawn(self._adopt(deployment, clusters))
            case e.DeploymentRefused(deployment) if self.keeper is not None:
                self.keeper.deployment_refused(deployment)
            case e.Notify(text):
                self._observer(n.Problem(text))
            case e.YieldId():
                self._fail(self._name_taken())
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

    # what goes out

    async def _publish(self, link: Link) -> None:
        """Send what must stay in order, one after another. What a broken link swallows comes again after `Up`."""
        subscriptions = SubscriptionKeeper(link, self._subscriptions_refused)
        self._subscriptions = subscriptions
        while True:
            match await self._outgoing.get():
                case e.Subscribe(topics):
                    await subscriptions.add(topics)
                case e.Unsubscribe(topics):
                    await subscriptions.remove(topics)
                case e.PublishStatus(status):
                    payload = status.to_bytes()
                    self._sent_statuses.append(payload)
                    await link.publish(self._status_topic, payload, retain=True)

    def _subscriptions_refused(self, topics: tuple[str, ...]) -> None:
        self._feed(e.SubscriptionsRefused(topics))

    async def _perform(self, order: OrderMessage) -> None:
        if self._dies(order):
            self._observer(n.CutOff(order.step))
            await self.vanish()
            return
        if self._data_watch.has_changed(at_once=True):
            self._read_data_again()
            if self._inspecting is not None:  # others must know how many samples there are now
                await asyncio.wait({self._inspecting})
        event = await self._performer.perform(order)
        if isinstance(event, e.WorkDone):
            self._sender.just_written = event.step
        self._feed(event)

    async def _report_failure(self, order: OrderMessage, why: str) -> None:
        event = await self._performer.put_failure(order, why)
        self._sender.just_written = event.step
        self._feed(event)

    async def _adopt(self, deployment: Deployment, clusters: tuple[int, ...]) -> None:
        if self._deployed is not None:
            self._feed(await self._performer.adopt(deployment, clusters, self._deployed))

    async def _inspect(self, task: dict[str, Any], task_digest: str) -> None:
        self._feed(await self._performer.inspect(task, task_digest))

    async def _flush(self) -> None:
        """Write what the outbox could not write, as soon as the disk takes it."""
        while why := self.outbox.flush():
            await self._disk.wait(why)
        self._observer(n.DiskFull("the disk can be written to again"))
        self._flushing = None

    async def _send(self, step: int) -> None:
        if not await self._sender.is_whole(step):
            self._sending = None
            self._observer(n.Damaged(self.outbox.set_report_aside()))
            self._feed(e.ReportDamaged(step))
            return
        whole = self._link is not None and await self._sender.send(self._link, step)
        self._sending = None
        self._observer(n.ReportSent(step, whole))
        self._feed(e.Sent(step, whole, self.outbox.state.size))

    def _drop_everything(self) -> None:
        _cancel_timer(self._timer)
        if self._subscriptions is not None:
            self._subscriptions.close()
        tasks = (self._work, self._inspecting, self._adopting, self._sending, self._flushing)
        for task in tasks:
            _cancel(task)


@lru_cache(STATUS_CACHE)
def _coordinator_status(payload: bytes) -> CoordinatorStatus:
    """The status in a payload, which never changes: all agents of a process share it. Raises DecodeError."""
    return CoordinatorStatus.from_bytes(payload)


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None and task is not asyncio.current_task():
        task.cancel()


def _cancel_timer(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()


@cache
def _version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("covey")
    return ""
