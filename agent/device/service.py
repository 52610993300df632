"""The async shell of one agent: a link, a session, an outbox, a store of models, and a pool that does the work.

It has no opinions: messages and times go to the session as events, and the session's actions are carried out.
Contents stay in files: of a report or a model never more than one part is in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from covey.agent.device import events as e
from covey.agent.device.model_store import LARGEST_MODEL, ModelStore
from covey.agent.device.outbox import Outbox
from covey.agent.device.session import Session
from covey.agent.policy import DEFAULT_RULES, Rules
from covey.agent.worker.pool import PoolLike, WorkerLost
from covey.shared.errors import DecodeError, UserError
from covey.shared.files import is_full, write_atomically
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.mqtt.link import Incoming, Link, Message, Up, Will
from covey.shared.mqtt.subscriptions import SubscriptionKeeper
from covey.shared.wire.messages import (
    AgentStatus,
    CoordinatorStatus,
    OrderMessage,
    Part,
    ReportContent,
    digest,
)
from covey.shared.wire.parts import split
from covey.shared.wire.topics import AgentTopic, ClusterTopic, PlainTopic, Topics

Tell = Callable[[Mapping[str, Any]], None]  # one event for a person or a log: {"event": ..., ...}
FULL_TOLD_S = 60.0  # between two words about a full disk
FULL_PAUSE_S = 1.0  # between two attempts to write to it
GOODBYE_S = 2.0  # a broker that does not answer is not waited for longer
PART_BYTES = 512 * 1024  # of a report about work that names no size


@dataclasses.dataclass(frozen=True)
class Identity:
    """Who an agent is, and where its data and its state lie. `source` goes to the worker as it is."""

    agent: str
    federation: str
    source: Mapping[str, Any]
    state: Path
    durable: bool = True


class NameTakenError(UserError):
    """Another agent uses the id, and did so before this one."""


async def _at_once(order: OrderMessage) -> None:
    return None


class Agent:
    """One life of an agent, from start to `stop` or `vanish`. The next life finds its state on disk.

    `rules`: what a coordinator may ask of this device. `will` is known before there is a link. `before_report` is
    awaited between the work and its report, and `dies` asked at the start of a work: a fleet's faults live there.
    """

    def __init__(
        self,
        identity: Identity,
        pool: PoolLike,
        *,
        rules: Rules = DEFAULT_RULES,
        tell: Tell = lambda event: None,
        before_report: Callable[[OrderMessage], Awaitable[None]] = _at_once,
        dies: Callable[[OrderMessage], bool] = lambda order: False,
        session: str | None = None,
    ) -> None:
        self.identity, self.pool, self.tell = identity, pool, tell
        self.rules = rules
        self.before_report, self.dies = before_report, dies
        self.topics = Topics(identity.federation)
        self.outbox = Outbox(identity.state, durable=identity.durable)
        largest = rules.policy.largest_model_bytes
        self.store = ModelStore(
            identity.state / "models", largest or LARGEST_MODEL, durable=identity.durable
        )
        self.session = Session(
            identity.agent,
            self.topics,
            session=session or session_id(time.time(), secrets.token_hex(4)),
            version=_version(),
            outboxed=self.outbox.outboxed,
            models=self.store.digests,
            rules=rules,
        )
        self.vanished = False
        self._fault: BaseException | None = None  # what ended a task that must not end
        self._link: Link | None = None
        self._inspection: dict[
            str, Any
        ] = {}  # the last job of that kind: its answer weighs later ones
        self._weight = 0.0
        self._full_told = -FULL_TOLD_S  # when it was last said that the disk is full
        self._flushing: asyncio.Task[None] | None = None
        self._fresh = 0  # step of the report that this process has seen whole and not sent yet
        self._outgoing: asyncio.Queue[e.Action] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None
        self._inspecting: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._subscriptions: SubscriptionKeeper | None = None
        self._over = asyncio.Event()

    @property
    def client_id(self) -> str:
        """The MQTT client id: new in each life, so that two of one name hear one another (`covey.shared.mqtt.duplicate_ids`)."""
        return f"covey-{self.identity.federation}-{self.identity.agent}-{self.session.will.session}"

    @property
    def will(self) -> Will:
        return Will(self.topics.status(self.identity.agent), self.session.will.to_bytes())

    async def run(self, link: Link) -> None:
        """Live until `stop`, `vanish` or cancellation. `link` is open and has `will` as its last will."""
        self._link = link
        for why in [*self.outbox.damaged, *self.store.damaged]:
            self.tell({"event": "damaged", "why": why})
        hands = [asyncio.create_task(self._listen(link)), asyncio.create_task(self._speak(link))]
        over = asyncio.create_task(self._over.wait())
        try:
            done, _ = await asyncio.wait({*hands, over}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._fault is not None:
                raise self._fault
        finally:
            self._drop_everything()
            for task in (*hands, over):
                task.cancel()
            await asyncio.gather(*hands, over, return_exceptions=True)
            self.outbox.close()
            if not self.vanished:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_S):
                        await link.publish(self.will.topic, self.will.payload, retain=True)

    def stop(self) -> None:
        """End `run` with a goodbye."""
        self._over.set()

    async def vanish(self) -> None:
        """End `run` as a power cut would: the broker tells the others."""
        self.vanished = True
        self._drop_everything()
        if self._link is not None:
            await self._link.abort()
        self._over.set()

    def story(self) -> list[tuple[float, str]]:
        """What happened to this agent, oldest first: seconds since 1970 and a sentence for a person."""
        began = time.time() - _now()  # the session counts from the start of the event loop's clock
        lines: list[tuple[float, str]] = []
        for line in self.session.story():
            times = f" ({line.times} times)" if line.times > 1 else ""
            lines.append((began + line.at, line.text + times))
        return lines

    # what comes in

    async def _listen(self, link: Link) -> None:
        async for incoming in link.incoming():
            try:
                event = self._understand(incoming)
            except DecodeError as error:
                self.session.dropped[error.reason] = self.session.dropped.get(error.reason, 0) + 1
                self.tell({"event": "refused", "why": str(error)})
                continue
            if event is not None:
                self._feed(event)

    def _understand(self, incoming: Incoming) -> e.Event | None:
        if isinstance(incoming, Up) and self._subscriptions is not None:
            self._subscriptions.connected()
        if not isinstance(incoming, Message):
            self.tell(
                {"event": type(incoming).__name__.lower(), "why": getattr(incoming, "why", "")}
            )
            return incoming
        if not incoming.payload:  # a retained topic was cleared
            return None
        match self.topics.parse(incoming.topic):
            case PlainTopic("coordinator/status"):
                return e.CoordinatorSeen(
                    CoordinatorStatus.from_bytes(incoming.payload), incoming.retained
                )
            case AgentTopic(agent, "status") if agent == self.identity.agent:
                return e.OwnStatusSeen(AgentStatus.from_bytes(incoming.payload), incoming.retained)
            case AgentTopic(agent, "order") if agent == self.identity.agent:
                return e.OrderSeen(OrderMessage.from_bytes(incoming.payload))
            case AgentTopic(agent, "model"):
                return self._part(f"@{agent}", incoming.payload)
            case ClusterTopic(key, _):
                return self._part(key, incoming.payload)
        raise DecodeError("topic", f"{incoming.topic!r} is not for {self.identity.agent}")

    def _part(self, key: str, payload: bytes) -> e.Event | None:
        part = Part.from_bytes(payload)
        try:
            whole = self.store.feed(part, _now())
        except OSError as error:  # the session asks the broker for the parts again
            if not is_full(error):
                raise
            raise DecodeError("disk full", "no room for a part of a model") from None
        if whole is None:
            return None
        return e.ModelReady(key, part.digest) if whole else e.PartSeen()

    # what follows

    def _feed(self, event: e.Event) -> None:
        if self._over.is_set() or self.vanished:
            return
        for action in self.session.handle(event, _now()):
            self._carry_out(action)
        if self.outbox.unwritten and self._flushing is None:
            self._flushing = self._spawn(self._flush())
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wake_at = self.session.wake_at
        loop = asyncio.get_running_loop()
        self._timer = None if wake_at is None else loop.call_at(wake_at, self._tick)

    def _tick(self) -> None:
        try:
            self._feed(e.Tick())
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End `run` with this error: an agent that goes on half would look alive."""
        self._fault = self._fault or error
        self._over.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fail(error)

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task

    def _carry_out(self, action: e.Action) -> None:
        match action:
            case e.Subscribe() | e.Unsubscribe() | e.PublishStatus():
                self._outgoing.put_nowait(action)
            case e.Inspect(task, task_digest):
                _cancel(self._inspecting)
                self._inspecting = self._spawn(self._inspect(task, task_digest))
            case e.StartWork(order):
                self.tell(
                    {
                        "event": "work",
                        "step": order.step,
                        "phase": order.work.phase if order.work else "",
                    }
                )
                self._work = self._spawn(self._perform(order))
            case e.CancelWork():
                _cancel(self._work)
            case e.OrderRefused(step, why):
                self.tell({"event": "failed", "step": step, "why": why})
            case e.ReportFailure(order, why):
                self._work = self._spawn(self._put_failure(order, why))
            case e.SendReport(step):
                self._sending = self._spawn(self._send(step))
            case e.StopSending():
                _cancel(self._sending)
            case e.CommitMemory(step, confirmed):
                self.outbox.commit(step, confirmed)
                self.tell({"event": "accepted", "step": step})
            case e.DropReport(step):
                if not self.outbox.state.kept:
                    self.tell({"event": "dropped", "step": step})
                self.outbox.drop(step)
            case e.GoBack(accepted):
                self.outbox.go_back(accepted)
                self.tell({"event": "asked again", "accepted": accepted})
            case e.LoseMemory(accepted, confirmed):
                self.outbox.lose(accepted, confirmed)
                why = f"step {accepted} was accepted, and the state of this agent is from before it"
                self.tell({"event": "damaged", "why": why})
            case e.SwitchRun(run):
                self.outbox.switch(run)
                self.tell({"event": "run", "run": run})
            case e.KeepModels(digests):
                self.store.keep(digests, _now())
            case e.Notify(text):
                self.tell({"event": "problem", "why": text})
            case e.YieldId():
                agent, federation = self.identity.agent, self.identity.federation
                self._fail(
                    NameTakenError(
                        f"another agent with the id {agent!r} is at work in federation {federation!r} on this broker, "
                        "and was there first; give this one an id of its own with --id (the default is the host's name)"
                    )
                )

    async def _speak(self, link: Link) -> None:
        """What must stay in order goes out one after another; where the link is down it comes again after `Up`."""
        subscriptions = self._subscriptions = SubscriptionKeeper(link, self._subscriptions_refused)
        while True:
            match await self._outgoing.get():
                case e.Subscribe(topics):
                    await subscriptions.add(topics)
                case e.Unsubscribe(topics):
                    await subscriptions.remove(topics)
                case e.PublishStatus(status):
                    await link.publish(
                        self.topics.status(self.identity.agent), status.to_bytes(), retain=True
                    )

    def _subscriptions_refused(self, topics: tuple[str, ...]) -> None:
        self._feed(e.SubscriptionsRefused(topics))

    # work

    async def _inspect(self, task: dict[str, Any], task_digest: str) -> None:
        job = {
            "job": "inspect",
            "source": dict(self.identity.source),
            "task": task,
            **self.rules.to_wire(),
        }
        found = await self._answer(
            job, float("inf")
        )  # who takes part must be known before any work
        problem = found.get("failure") or found.get("problem")
        if problem:
            self._feed(e.Inspected(task_digest, problem=problem, detail=found.get("detail", "")))
            return
        self._weight = float(found["samples"])
        labels = tuple(found["labels"]) if self.rules.policy.labels == "told" else ()
        self.tell(
            {"event": "data", "samples": found["samples"], "test_samples": found["test_samples"]}
        )
        self._feed(e.Inspected(task_digest, found["samples"], found["test_samples"], labels))

    async def _perform(self, order: OrderMessage) -> None:
        if self.dies(order):
            self.tell({"event": "dies", "step": order.step})
            await self.vanish()
            return
        limit = self.rules.policy.max_seconds
        try:
            async with asyncio.timeout(limit):
                done = await self._worked(order)
        except TimeoutError:
            done = {
                "failure": f"policy of this device: max_seconds: the work took longer than {limit:g} s"
            }
        if "model_damaged" in done:
            self.tell({"event": "damaged", "why": self.store.remove(done["model_damaged"])})
            self._feed(e.ModelDamaged(done["model_damaged"]))
            return
        if "failure" in done:
            self.tell(
                {
                    "event": "failed",
                    "step": order.step,
                    "why": done.get("detail") or done["failure"],
                }
            )
            self._feed(e.WorkFailed(order.step, done["failure"]))
            return
        if done["failed"]:
            self.tell({"event": "failed", "step": order.step, "why": done["failed"]})
        await self.before_report(order)
        self._put(
            order,
            done["digest"],
            done["size"],
            with_memory=done["fresh"],
            memory_digest=done.get("memory_digest", b""),
        )

    async def _worked(self, order: OrderMessage) -> dict[str, Any]:
        """The worker's answer to an order. Damaged memory is set aside, and the work begins again without it."""
        while True:
            done = await self._answer(self._job(order), self._weight)
            if done.get("memory_damaged"):
                self.tell({"event": "damaged", "why": self.outbox.set_memory_aside()})
            elif done.get("disk_full"):
                await self._wait_for_room()
            else:
                return done

    async def _wait_for_room(self) -> None:
        """Say that the disk is full, at most once a minute, and let a little time pass."""
        if _now() >= self._full_told + FULL_TOLD_S:
            self._full_told = _now()
            why = f"no room is left on the disk of {self.identity.state}; free some: this agent waits for it"
            self.tell({"event": "disk", "why": why})
        await asyncio.sleep(FULL_PAUSE_S)

    async def _flush(self) -> None:
        """Write what the outbox could not write, as soon as there is room."""
        while not self.outbox.flush():
            await self._wait_for_room()
        self.tell({"event": "disk", "why": "there is room again"})
        self._flushing = None

    def _job(self, order: OrderMessage) -> dict[str, Any]:
        report, memory = self.outbox.places(order.step)
        state = self.outbox.state
        return {
            "job": "perform",
            "source": dict(self.identity.source),
            "client": self.identity.agent,
            "order": order.to_bytes(),
            "models": [
                str(self.store.path(ref.digest))
                for ref in (order.work.models if order.work else [])
            ],
            "memory": str(self.outbox.memory) if self.outbox.memory else "",
            "memory_digest": state.memory_digest,
            "client_state": state.lost or "whole",
            "report_out": str(report),
            "memory_out": str(memory),
            "durable": self.identity.durable,
            **self.rules.to_wire(),
        }

    async def _answer(self, job: dict[str, Any], weight: float) -> dict[str, Any]:
        """The answer to a job. A worker that was killed gets a second chance: most often it was chance itself."""
        try:
            return await self.pool.call(job, weight=weight)
        except WorkerLost as error:
            self.tell(
                {
                    "event": "worker lost",
                    "job": job["job"],
                    "why": f"{error}; the job is done again",
                }
            )
        try:
            return await self.pool.call(job, weight=weight)
        except WorkerLost as error:
            return {"failure": error.public, "detail": str(error)}

    async def _put_failure(self, order: OrderMessage, why: str) -> None:
        content = ReportContent.failed(order, self.identity.agent, why[:1000]).to_bytes()
        while not self._written(self.outbox.places(order.step)[0], content):
            await self._wait_for_room()
        self._put(order, digest(content), len(content), with_memory=False)

    def _written(self, path: Path, content: bytes) -> bool:
        """Write a file whole; False where there is no room for it."""
        try:
            write_atomically(path, content, durable=self.identity.durable)
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    def _put(
        self,
        order: OrderMessage,
        name: bytes,
        size: int,
        *,
        with_memory: bool,
        memory_digest: bytes = b"",
    ) -> None:
        part_bytes = order.work.part_bytes if order.work else PART_BYTES
        self.outbox.put(
            order.step,
            name,
            size,
            part_bytes=part_bytes,
            with_memory=with_memory,
            memory_digest=memory_digest,
        )
        self._fresh = order.step
        self._feed(e.WorkDone(order.step))

    async def _send(self, step: int) -> None:
        """All parts one after another, each after the broker's word for the last: a stock broker drops none."""
        if not await self._report_is_whole(step):
            self._sending = None
            self.tell({"event": "damaged", "why": self.outbox.set_report_aside()})
            self._feed(e.ReportDamaged(step))
            return
        whole = await self._send_parts(step)
        self._sending = None
        self.tell({"event": "sent", "step": step, "whole": whole})
        self._feed(e.Sent(step, whole))

    async def _report_is_whole(self, step: int) -> bool:
        """Is the file still what the worker wrote? It is read again before every sending but the first."""
        if self._fresh == step:
            self._fresh = 0
            return True
        return await asyncio.to_thread(self.outbox.report_is_whole)

    async def _send_parts(self, step: int) -> bool:
        path, state = self.outbox.report, self.outbox.state
        if path is None or self._link is None:
            return False
        fingerprint = bytes.fromhex(state.digest)
        with path.open("rb") as file:
            for part in split(
                file, digest=fingerprint, size=state.size, part_bytes=state.part_bytes, about=step
            ):
                topic = self.topics.report(self.identity.agent)
                if not await self._link.publish(topic, part.to_bytes()):
                    return False
        return True

    def _drop_everything(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._subscriptions is not None:
            self._subscriptions.close()
        for task in (self._work, self._inspecting, self._sending, self._flushing):
            _cancel(task)


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None and task is not asyncio.current_task():
        task.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("covey")
    return ""
