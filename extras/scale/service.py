"""The machine of an aggregator: messages of one broker and sums of the open step in, what to publish out."""

from __future__ import annotations

import io
import math
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from covey.coordinator.checks import MAX_OTHER_BYTES, largest_report_of
from covey.coordinator.serve.rate import Rates
from covey.extras.scale.summing import HOLD_S, Summing, read_task
from covey.shared.errors import CoveyError, DecodeError
from covey.shared.mqtt.link import Down, Echo, Incoming, Link, Received, Up, Will
from covey.shared.mqtt.part_window import PartWindow
from covey.shared.mqtt.profiles import Profile
from covey.shared.mqtt.program import Effect, Items, Publish, Show, Subscribe, Unsubscribe, program
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.own_code.consent import NO_CODE, AllowedCode
from covey.shared.programs.timers import Timers, earliest
from covey.shared.programs.version import version
from covey.shared.wire.aggregates import AggregatorOrder, AggregatorStatus, AggregatorTask
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.format import FORMAT, speaks_other
from covey.shared.wire.messages import ModelRef, Part, digest
from covey.shared.wire.parts import Assembler, FileSink, MemorySink, Sink, split, taken
from covey.shared.wire.topics import AgentTopic, PlainTopic, Topics


class RivalReaction(Enum):
    """What follows from the status of another aggregator."""

    NOTHING = "continue"
    ANNOUNCE = "publish our own status"
    STAND_BY = "leave the work to the older aggregator"
    TAKE_OVER = "the older aggregator is gone: publish our own status and do its work"


class Precedence:
    """Whether this aggregator works or stands by.

    Args:
        session: of this process.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._older = ""  # the session that works while this one stands by; "" while this one works

    def __repr__(self) -> str:
        return f"<Precedence of {self._session}, stands by for {self._older or 'none'}>"

    @property
    def stands_by(self) -> bool:
        return self._older != ""

    def connected(self) -> None:
        """After a connection nothing is known of others. One that works answers our status with its own."""
        self._older = ""

    def observe(self, status: AggregatorStatus) -> RivalReaction:
        """React to a live status on the topic that all aggregators of a broker share."""
        other = status.session
        if other == self._session:
            return RivalReaction.NOTHING
        if other < self._session and status.online:
            was_standing_by = self.stands_by
            self._older = other
            return RivalReaction.NOTHING if was_standing_by else RivalReaction.STAND_BY
        if other == self._older:
            self._older = ""
            return RivalReaction.TAKE_OVER
        if self.stands_by:
            return RivalReaction.NOTHING
        return RivalReaction.ANNOUNCE  # the other's status has taken the place of ours


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
AGAIN = "offer again what is not settled"


def last_will(topics: Topics, session: str) -> Will:
    """The status that the broker publishes when an aggregator vanishes."""
    status = AggregatorStatus(session=session, online=False)
    return Will(topics.aggregator_status, status.to_bytes())


@dataclass(frozen=True)
class SumSent:
    """The parts of a sum were published, or the link broke."""


class AggregatorService:
    """An aggregator over the link to its broker.

    Args:
        link: open.
        topics: of the federation.
        session: of this process, new for each start.
        allowed: code of a user's own that scenarios may name.
        hold_s: how long the first report of a sum waits for others.
        show: gets a line for people about what happens.
    """

    def __init__(
        self,
        link: Link,
        topics: Topics,
        session: str,
        *,
        allowed: AllowedCode = NO_CODE,
        hold_s: float = HOLD_S,
        show: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._link = link
        self._topics = topics
        self._session = session
        self._allowed = allowed
        self._write_line = show
        self.summing = Summing(session, hold_s)
        self._precedence = Precedence(session)
        self._timers = Timers()
        self._effects: list[Effect] = []  # of the items that are handled now
        self._order: AggregatorOrder | None = None  # the newest
        self._task = b""  # digest of the task that was read last
        self._parts = PartWindow[Effect](
            Subscribe, Unsubscribe
        )  # of the task that is being fetched
        self._early: deque[Received] = deque()  # reports that came before the task of their step
        self._early_bytes = 0
        self._epoch = ""  # of the coordinator
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
        """Work until the link is closed, or this is cancelled."""
        items = Items(MAX_WAITING, together=[Received])
        try:
            await program(self, self._link, items=items, show=self._write_line, off_loop=True)
        finally:
            gone = last_will(self._topics, self._session)
            await self._link.publish(gone.topic, gone.payload, retain=True)
            self._room.cleanup()

    @property
    def wake_at(self) -> float | None:
        return earliest(self.summing.wake_at, self._timers.next)

    def read(self, incoming: Incoming, now: float) -> tuple[Incoming, ...]:
        return (incoming,)

    def handle(
        self, items: Sequence[Incoming | TopicsRefused | SumSent], now: float
    ) -> list[Effect]:
        self._effects = []
        for item in items:
            self._take(item, now)
        self._offer(now)
        return self._effects

    def _take(self, item: Incoming | TopicsRefused | SumSent, now: float) -> None:
        match item:
            case Up():
                self._show(f"connected to {item.broker}")
                self._up(item.profile, now)
            case Down(why=why):
                self._show(f"broker: {why}; trying again")
            case Echo(why):
                self._show(why)
            case TopicsRefused(accepted_before=True):
                self._show(item.why)
            case TopicsRefused(topics) if topics:
                self._show(
                    f"the broker refuses the subscription to {', '.join(topics)}; expected the credentials of an "
                    "aggregator, from `broker enroll --role aggregator`"
                )
            case SumSent():
                self._timers.set(AGAIN, now + self._again_s)
            case Received():
                try:
                    self._message(item, now)
                except DecodeError as error:
                    self._show(f"refused a message on {item.topic}: {error}")

    def _show(self, text: str) -> None:
        self._effects.append(Show(text))

    def _up(self, profile: Profile, now: float) -> None:
        topics = self._topics
        self._precedence.connected()
        every_topic = (
            topics.aggregator_status,
            topics.coordinator_status,
            topics.aggregator_order,
            topics.every_report,
        )
        self._effects.append(Subscribe(every_topic))
        self._parts = PartWindow(Subscribe, Unsubscribe)
        self._parts.fit(profile, profile.subscriptions - len(every_topic))
        self._announce()
        self._again_soon(now)

    def _announce(self) -> None:
        """Publish that this aggregator is here, and which order it has read."""
        order = self._order
        status = AggregatorStatus(session=self._session, online=True, version=version())
        if order is not None:
            status = status.model_copy(update={"run": order.run, "step": order.step})
        self._effects.append(Publish([(self._topics.aggregator_status, status.to_bytes())]))

    # -- messages ----------------------------------------------------------------------------------

    def _message(self, message: Received, now: float) -> None:
        if not message.payload:  # the topic was cleared
            return
        match self._topics.parse(message.topic):
            case PlainTopic("coordinator/status"):
                self._coordinator(message.payload, now)
            case PlainTopic("aggregator/status") if not message.retained:
                self._other(AggregatorStatus.from_bytes(message.payload), now)
            case PlainTopic("aggregator/order"):
                self._follow(AggregatorOrder.from_bytes(message.payload), now)
            case PlainTopic("aggregator/task"):
                self._task_part(message, now)
            case AgentTopic(agent, "report"):
                self._report(agent, message, now)

    def _other(self, status: AggregatorStatus, now: float) -> None:
        """The status of an aggregator at this broker: perhaps that of a second one."""
        match self._precedence.observe(status):
            case RivalReaction.ANNOUNCE:
                self._announce()
            case RivalReaction.STAND_BY:
                self._show(
                    f"another aggregator serves this broker (session {status.session}); this one stands by until it ends"
                )
                self._rest()
            case RivalReaction.TAKE_OVER:
                self._show("the other aggregator is gone; this one takes over")
                self._announce()
                if self._order is not None:
                    self._follow(self._order, now)

    def _coordinator(self, payload: bytes, now: float) -> None:
        """Answer a roll call. A coordinator that has started again may not have what was offered to the one before."""
        status = CoordinatorStatus.from_bytes(payload)
        if status.online and status.epoch != self._epoch:
            self._epoch = status.epoch
            if status.format != FORMAT:
                here = "this aggregator"
                self._show(speaks_other("the coordinator", status.format, status.version, here))
            if not self._precedence.stands_by:
                self._announce()
            self._again_soon(now)

    def _follow(self, order: AggregatorOrder, now: float) -> None:
        """Do what the coordinator's newest order asks for."""
        self._order = order
        task = order.task
        if task is None or self._precedence.stands_by:
            self._rest()
            return
        if task.digest == self._task:
            self.summing.follow(order)
            if not self._timers.is_set(AGAIN):
                self._again_soon(now)
            return
        self.summing.begin(None)
        self._fetch(task)

    def _rest(self) -> None:
        """Add nothing up until another order comes, and keep nothing of the step: all of it is about agents."""
        self._early.clear()
        self._early_bytes = 0
        self._await(())
        self._tasks.drop(COORDINATOR)
        self._drop_reports(MAX_OTHER_BYTES)
        self._drop_state_folder()
        if self.summing.step is not None:
            self.summing.begin(None)
        self._task = b""

    def _fetch(self, task: ModelRef) -> None:
        """Subscribe to the parts of a task, one topic for each: some brokers retain nothing for wildcards."""
        self._await(())  # what the broker retains comes with a new subscription alone
        self._tasks.forget(COORDINATOR, task.digest)
        self._await(tuple(self._topics.aggregator_task(part) for part in range(task.parts)))

    def _await(self, topics: tuple[str, ...]) -> None:
        """Be subscribed to these parts of a task, or to as many of them as the broker allows."""
        self._effects += self._parts.need(topics)

    def _task_part(self, message: Received, now: float) -> None:
        part = Part.from_bytes(message.payload)
        order = self._order
        if order is None or order.task is None or part.digest != order.task.digest:
            return
        if part.digest == self._task or self._precedence.stands_by:
            return
        sink = self._tasks.feed(COORDINATOR, part, now)
        if sink is None:
            self._parts.came(message.topic)
            self._await(self._parts.needed)
            return
        self._task = part.digest
        self._await(())
        self._open(taken(sink), order, now)
        self._announce()
        early = list(self._early)
        self._early.clear()
        self._early_bytes = 0
        for message in early:
            topic = self._topics.parse(message.topic)
            if isinstance(topic, AgentTopic):
                self._report(topic.agent, message, now)

    def _open(self, content: bytes, order: AggregatorOrder, now: float) -> None:
        """Begin with the step of a task. One that cannot be read here is left to the coordinator."""
        task = AggregatorTask.from_bytes(content)
        folder = self._new_state_folder()
        try:
            step = read_task(task, folder, self._allowed)
        except (CoveyError, ValueError, TypeError, KeyError) as error:
            self._show(f"step {task.step}: {error}; its reports go to the coordinator itself")
            self.summing.decline(task.run, task.step, str(error), now)
            return
        self._show(f"step {step.number} ({step.phase.name}): {len(order.agents)} agents")
        largest = largest_report_of(step.phase)
        self._part_bytes = step.scenario.wire.part_bytes
        self._drop_reports(largest)
        self.summing.begin(step)
        self.summing.follow(order)

    def _drop_reports(self, largest: int) -> None:
        """Forget the reports that are arriving, which are files, and how many parts their agents have sent."""
        self._reports.expire(math.inf)
        self._reports = self._new_assembler(largest)
        self._rates = Rates(self._part_bytes)

    def _new_state_folder(self) -> Path:
        """An empty folder for the state of a step. That of the step before is removed: states are large."""
        self._drop_state_folder()
        self._state_folder = Path(tempfile.mkdtemp(dir=self._folder))
        return self._state_folder

    def _drop_state_folder(self) -> None:
        if self._state_folder is not None:
            shutil.rmtree(self._state_folder, ignore_errors=True)
            self._state_folder = None

    def _report(self, agent: str, message: Received, now: float) -> None:
        """A part of a report."""
        order = self._order
        if order is None or order.task is None or self._precedence.stands_by:
            return  # the coordinator, or another aggregator, reads the reports
        if order.task.digest != self._task:
            self._keep_early(message)
            return
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
        self.summing.accept(agent, taken(sink), now, part.digest)

    def _keep_early(self, message: Received) -> None:
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

    def _offer(self, now: float) -> None:
        """Send what is due: a new sum, or those that the coordinator has not settled."""
        content = self.summing.take(now)
        if content is not None:
            self._show(f"step {self.summing.number}: sent {self.summing.sent}")
            self._timers.stop(AGAIN)
            self._again_s = AGAIN_S
            self._send(content)
        elif self._timers.take(AGAIN, now):
            self._again_s = min(2 * self._again_s, AGAIN_LIMIT_S)
            for unsettled in self.summing.unsettled:
                self._send(unsettled)

    def _again_soon(self, now: float) -> None:
        """Offer again, a moment after the order that may settle it."""
        self._again_s = 1.0
        if self.summing.unsettled:
            self._timers.set(AGAIN, now + self._again_s)

    def _send(self, content: bytes) -> None:
        """Publish a sum in parts. It is offered again if the link breaks."""
        parts = split(
            io.BytesIO(content),
            digest=digest(content),
            size=len(content),
            part_bytes=self._part_bytes,
            about=self.summing.number,
        )
        messages = ((self._topics.aggregator_sum, part.to_bytes()) for part in parts)
        self._effects.append(Publish(messages, retain=False, then=lambda taken: SumSent()))
