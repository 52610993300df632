"""The async shell of an aggregator: moves messages between one broker and the sums of the open step. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path

from covey.coordinator.aggregate.open_step import read_task
from covey.coordinator.aggregate.precedence import Precedence, Reaction
from covey.coordinator.aggregate.summing import HOLD_S, Summing
from covey.coordinator.run.run import MAX_OTHER_BYTES, largest_report_of
from covey.coordinator.serve.rate import Rates
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import CoveyError, DecodeError
from covey.shared.mqtt.link import Down, Incoming, Link, Message, Up, Will
from covey.shared.mqtt.subscriptions import SubscriptionKeeper
from covey.shared.wire.aggregates import AggregatorOrder, AggregatorStatus, AggregatorTask
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.messages import ModelRef, Part, digest
from covey.shared.wire.parts import Assembler, FileSink, MemorySink, Sink, split, taken
from covey.shared.wire.topics import AgentTopic, PlainTopic, Topics

Say = Callable[[str], None]

# messages that were read and not dealt with; beyond this the link's own bounds count
MAX_WAITING = 64
# of reports that arrive while the task of their step is still being read
MAX_EARLY_BYTES = 256 << 20
# of reports that are arriving, on disk: bounded by their size and number
MAX_REPORTS_BYTES = 1 << 36
MAX_AGE_S = 600.0  # an incomplete report is kept this long
TIDY_S = 10.0
AGAIN_S = 5.0  # first wait for the coordinator to settle a sum; doubles
AGAIN_LIMIT_S = 60.0
COORDINATOR = "coordinator"  # the sender of the parts of tasks


def last_will(topics: Topics, session: str) -> Will:
    """The status that the broker publishes when an aggregator vanishes."""
    status = AggregatorStatus(session=session, online=False)
    return Will(topics.aggregator_status, status.to_bytes())


class AggregatorService:
    """An aggregator over the link to its broker.

    Args:
        link: open.
        topics: of the federation.
        session: of this process, new for each start.
        allowed: code of a user's own that scenarios may name.
        hold_s: how long the first report of a sum waits for others.
        say: gets a line for people about what happens.
    """

    def __init__(
        self,
        link: Link,
        topics: Topics,
        session: str,
        *,
        allowed: AllowedCode = NO_CODE,
        hold_s: float = HOLD_S,
        say: Say = lambda text: None,
    ) -> None:
        self._link = link
        self._topics = topics
        self._session = session
        self._allowed = allowed
        self._say = say
        self.summing = Summing(session, hold_s)
        self._precedence = Precedence(session)
        self._items: asyncio.Queue[Incoming | None] = asyncio.Queue(MAX_WAITING)
        self._subscriptions = SubscriptionKeeper(link, self._refused)
        self._order: AggregatorOrder | None = None  # the newest
        self._task = b""  # digest of the task that was read last
        self._task_parts: list[str] = []  # topics of the task that is being fetched
        self._early: deque[Message] = deque()  # reports that came before the task of their step
        self._early_bytes = 0
        self._epoch = ""  # of the coordinator
        self._again_at: float | None = None  # when to offer again what is not settled
        self._again_s = AGAIN_S
        self._room = tempfile.TemporaryDirectory(prefix="covey-aggregate-")
        self._folder = Path(self._room.name)
        self._files = 0  # that were named so far
        self._state_folder: Path | None = None  # of the newest step
        self._tidy_at = 0.0  # when to look for reports that stay incomplete
        self._tasks = Assembler(
            self._new_sink,
            largest_bytes=1 << 36,
            per_sender=1,
            total_bytes=1 << 37,
            max_age_s=MAX_AGE_S,
        )
        self._reports = self._new_assembler(MAX_OTHER_BYTES)
        self._part_bytes = 1 << 19  # of the scenario, once there is one
        self._rates = Rates(self._part_bytes)

    def __repr__(self) -> str:
        return f"<AggregatorService of {self._topics.federation}: {self.summing!r}>"

    async def run(self) -> None:
        """Work until `stop`."""
        reading = asyncio.create_task(self._read())
        try:
            while True:
                item = await self._next()
                if item is None and reading.done():
                    break
                if item is not None:
                    await self._take(item)
                await self._offer()
            reading.result()
        finally:
            reading.cancel()
            self._subscriptions.close()
            await self._publish_status(AggregatorStatus(session=self._session, online=False))
            self._room.cleanup()

    async def _read(self) -> None:
        async for item in self._link.incoming():
            await self._items.put(item)
        await self._items.put(None)

    async def _next(self) -> Incoming | None:
        """The next item; None when something is due."""
        now = _now()
        due = [at for at in (self.summing.wake_at, self._again_at) if at is not None]
        timeout_s: float | None = None
        if due:
            timeout_s = max(min(due) - now, 0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self._items.get()
        return None

    async def _take(self, item: Incoming) -> None:
        match item:
            case Up(broker):
                self._say(f"connected to {broker}")
                await self._up()
            case Down(why):
                self._say(f"broker: {why}; trying again")
            case Message():
                try:
                    await self._message(item)
                except DecodeError as error:
                    self._say(f"refused a message on {item.topic}: {error}")

    async def _up(self) -> None:
        topics = self._topics
        self._subscriptions.connected()
        self._task_parts = []
        self._precedence.connected()
        wanted = [
            topics.aggregator_status,
            topics.coordinator_status,
            topics.aggregator_order,
            topics.every_report,
        ]
        await self._subscriptions.add(wanted)
        await self._tell()
        self._again_soon()

    def _refused(self, topics: tuple[str, ...]) -> None:
        if topics:
            named = ", ".join(topics)
            self._say(
                f"the broker refuses the subscription to {named}; expected the credentials of an aggregator, from "
                "`broker enroll --role aggregator`"
            )

    async def _tell(self) -> None:
        """Publish that this aggregator is here, and which order it has read."""
        order = self._order
        status = AggregatorStatus(session=self._session, online=True)
        if order is not None:
            status = AggregatorStatus(
                session=self._session, online=True, run=order.run, step=order.step
            )
        await self._publish_status(status)

    async def _publish_status(self, status: AggregatorStatus) -> None:
        await self._link.publish(self._topics.aggregator_status, status.to_bytes(), retain=True)

    # -- messages ----------------------------------------------------------------------------------

    async def _message(self, message: Message) -> None:
        if not message.payload:  # the topic was cleared
            return
        match self._topics.parse(message.topic):
            case PlainTopic("coordinator/status"):
                await self._coordinator(message.payload)
            case PlainTopic("aggregator/status") if not message.retained:
                await self._other(AggregatorStatus.from_bytes(message.payload))
            case PlainTopic("aggregator/order"):
                await self._follow(AggregatorOrder.from_bytes(message.payload))
            case PlainTopic("aggregator/task"):
                await self._task_part(message.payload)
            case AgentTopic(agent, "report"):
                await self._report(agent, message)

    async def _other(self, status: AggregatorStatus) -> None:
        """The status of an aggregator at this broker: perhaps that of a second one."""
        match self._precedence.observe(status):
            case Reaction.ANNOUNCE:
                await self._tell()
            case Reaction.STAND_BY:
                self._say(
                    f"another aggregator serves this broker (session {status.session}); this one stands by until it ends"
                )
                self._rest()
            case Reaction.TAKE_OVER:
                self._say("the other aggregator is gone; this one takes over")
                await self._tell()
                if self._order is not None:
                    await self._follow(self._order)

    async def _coordinator(self, payload: bytes) -> None:
        """Answer a roll call. A coordinator that has started again may not have what was offered to the one before."""
        status = CoordinatorStatus.from_bytes(payload)
        if status.online and status.epoch != self._epoch:
            self._epoch = status.epoch
            if not self._precedence.stands_by:
                await self._tell()
            self._again_soon()

    async def _follow(self, order: AggregatorOrder) -> None:
        """Do what the coordinator's newest order asks for."""
        self._order = order
        task = order.task
        if task is None or self._precedence.stands_by:
            self._rest()
            return
        if task.digest == self._task:
            self.summing.follow(order)
            if self._again_at is None:
                self._again_soon()
            return
        self.summing.begin(None)
        await self._fetch(task)

    def _rest(self) -> None:
        """Add nothing up until another order comes."""
        self._early.clear()
        self._early_bytes = 0
        if self.summing.step is not None:
            self.summing.begin(None)
        self._task = b""

    async def _fetch(self, task: ModelRef) -> None:
        """Subscribe to the parts of a task, one topic for each: some brokers retain nothing for wildcards."""
        await self._leave_task()
        self._tasks.forget(COORDINATOR, task.digest)
        self._task_parts = [self._topics.aggregator_task(part) for part in range(task.parts)]
        await self._subscriptions.add(self._task_parts)

    async def _leave_task(self) -> None:
        if self._task_parts:
            await self._subscriptions.remove(self._task_parts)
            self._task_parts = []

    async def _task_part(self, payload: bytes) -> None:
        part = Part.from_bytes(payload)
        order = self._order
        if order is None or order.task is None or part.digest != order.task.digest:
            return
        if part.digest == self._task or self._precedence.stands_by:
            return
        sink = self._tasks.feed(COORDINATOR, part, _now())
        if sink is None:
            return
        self._task = part.digest
        await self._leave_task()
        await asyncio.to_thread(self._open, taken(sink), order, _now())
        await self._tell()
        early = list(self._early)
        self._early.clear()
        self._early_bytes = 0
        for message in early:
            topic = self._topics.parse(message.topic)
            if isinstance(topic, AgentTopic):
                await self._report(topic.agent, message)

    def _open(self, content: bytes, order: AggregatorOrder, now: float) -> None:
        """Begin with the step of a task. One that cannot be read here is left to the coordinator."""
        task = AggregatorTask.from_bytes(content)
        folder = self._new_state_folder()
        try:
            step = read_task(task, folder, self._allowed)
        except (CoveyError, ValueError, TypeError, KeyError) as error:
            self._say(f"step {task.step}: {error}; its reports go to the coordinator itself")
            self.summing.decline(task.run, task.step, str(error), now)
            return
        self._say(f"step {step.number} ({step.phase.name}): {len(order.agents)} agents")
        largest = largest_report_of(step.phase)
        self._part_bytes = step.scenario.wire.part_bytes
        self._rates = Rates(self._part_bytes)
        self._reports.expire(math.inf)  # nobody needs them now, and they are files
        self._reports = self._new_assembler(largest)
        self.summing.begin(step)
        self.summing.follow(order)

    def _new_state_folder(self) -> Path:
        """An empty folder for the state of a step. That of the step before is removed: states are large."""
        if self._state_folder is not None:
            shutil.rmtree(self._state_folder, ignore_errors=True)
        self._state_folder = Path(tempfile.mkdtemp(dir=self._folder))
        return self._state_folder

    async def _report(self, agent: str, message: Message) -> None:
        """A part of a report."""
        order = self._order
        if order is None or order.task is None or self._precedence.stands_by:
            return  # the coordinator, or another aggregator, reads the reports
        if order.task.digest != self._task:
            self._keep_early(message)
            return
        now = _now()
        if not self.summing.expects(agent, now):
            return
        if not self._rates.part(agent, len(message.payload), self._reports.largest_bytes, now):
            return
        if now >= self._tidy_at:  # reports whose parts have stopped coming take room from others
            self._tidy_at = now + TIDY_S
            self._reports.expire(now)
        try:
            part = Part.from_bytes(message.payload)
            sink = self._reports.feed(agent, part, now)
        except DecodeError as error:
            self.summing.refuse(agent, error, now)
            return
        if sink is None:
            return
        # an agent may have to send the same report again: after a sum that came to nothing, or a refusal
        self._reports.forget(agent, part.digest)
        await asyncio.to_thread(self.summing.accept, agent, taken(sink), now, part.digest)

    def _keep_early(self, message: Message) -> None:
        """Fast agents report while a large task is still on its way."""
        size = len(message.payload)
        if self._early_bytes + size <= MAX_EARLY_BYTES:
            self._early.append(message)
            self._early_bytes += size

    def _new_assembler(self, largest: int) -> Assembler:
        return Assembler(
            self._new_sink,
            largest_bytes=largest,
            per_sender=2,
            total_bytes=MAX_REPORTS_BYTES,
            max_age_s=MAX_AGE_S,
        )

    def _new_sink(self, sender: str, part: Part) -> Sink:
        if part.count == 1:
            return MemorySink()
        self._files += 1
        return FileSink(self._folder / str(self._files), part.size)

    # -- sums --------------------------------------------------------------------------------------

    async def _offer(self) -> None:
        """Send what is due: a new sum, or those that the coordinator has not settled."""
        now = _now()
        content = await asyncio.to_thread(self.summing.take, now)
        if content is not None:
            self._say(f"step {self.summing.number}: sent {self.summing.sent}")
            await self._send(content)
            self._again_s = AGAIN_S
            self._again_at = _now() + self._again_s
        elif self._again_at is not None and now >= self._again_at:
            unsettled = self.summing.unsettled
            for content in unsettled:
                await self._send(content)
            self._again_s = min(2 * self._again_s, AGAIN_LIMIT_S)
            self._again_at = _now() + self._again_s if unsettled else None

    def _again_soon(self) -> None:
        """Offer again, a moment after the order that may settle it."""
        self._again_s = 1.0
        if self.summing.unsettled:
            self._again_at = _now() + self._again_s

    async def _send(self, content: bytes) -> None:
        """Publish a sum in parts."""
        parts = split(
            io.BytesIO(content),
            digest=digest(content),
            size=len(content),
            part_bytes=self._part_bytes,
            about=self.summing.number,
        )
        for part in parts:
            taken = await self._link.publish(self._topics.aggregator_sum, part.to_bytes())
            if not taken:
                return  # offered again


def _now() -> float:
    return asyncio.get_running_loop().time()
